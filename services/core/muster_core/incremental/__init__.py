"""Incremental groups (KIP-848): the coordinator assigns, and a partition that does not move is never touched.

Here is what such a group is and how one decision about it is made, as values: no calls, no timers, no log.
Begin with `heartbeat.py`, which decides what a request does; `upkeep.py` is what follows without one;
`decision.py` gathers the records of one decision and shows the group as it will be; `application.py` is what
each record does, live and in a replay; `reconciliation.py` brings one member towards its target, and
`target.py` says what the target is. `muster_core.protocol.incremental` gives calls and time to it.
"""
