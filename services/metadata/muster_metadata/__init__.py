"""The metadata service: the only writer to Redis. Quorum log, leases, owner table, topic catalog, watch.

Nothing is imported here: who reads the log needs its `keys`, and would import the whole service with them.
"""
