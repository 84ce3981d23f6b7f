"""The metadata service: the only writer to Redis. Quorum log, leases, owner table, topic catalog, watch.

`metadata` puts the rooms together and `service` has the RPCs; below them `cluster` (who is there),
`catalog` (topics), `log` (the quorum log) and `nodes` (the servers that hold it); `operator` is used by
command lines, not by the service.

Nothing is imported here: who reads the log needs its `keys`, and would import the whole service with them.
"""
