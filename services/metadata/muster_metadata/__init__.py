"""The metadata service: the only writer to Redis. Quorum log, leases, owner table, topic catalog, watch.

`metadata` assembles the parts and `service` has the RPCs; below them `cluster` (which processes are alive),
`catalog` (topics), `log` (the quorum log) and `nodes` (the servers that hold it); `operator` is used by
command lines, not by the service.

Nothing is imported here: a reader of the log that needs only `nodes.keys` would import the whole service.
"""
