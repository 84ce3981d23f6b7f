"""What the records of a log must never show of groups: their members, generations, assignments and commits.

`group_checker` takes each record to the checks that it concerns; begin there. `followed` is what the
records so far say of one group, kept apart from `muster_core.state`, so that a fault there is seen here.
Incremental groups have a room of their own.
"""
