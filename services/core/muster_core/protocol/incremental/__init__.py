"""Calls and time of incremental groups: here decisions are stored and answered, and their clocks run.

`muster_core.incremental` decides. Begin with `heartbeats.py`; `heartbeat_checks.py` has what is refused
before that; `deadlines.py` the two clocks of a member, its session and the time that it has to give
partitions back; `targets.py` says when an assignment is computed, and where, and `pauses.py` how far apart;
`descriptions.py` shows groups, and `commits.py` says whose commits and fetches count. Groups that change
their kind are in `kinds`. They are one room because each file is a call or a clock of one group, and all work
on the same `ShardContext`.
"""
