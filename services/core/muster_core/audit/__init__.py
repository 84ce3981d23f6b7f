"""What a log must never show: the promises that can be checked from what is stored.

`muster verify`, `muster-audit` and the simulator run these checks; the state machine uses none of them.
Read `invariants` for the list, then `log_audit`, which puts one pass over a log together.
"""
