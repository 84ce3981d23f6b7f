"""What a log must never show: the promises that can be checked from what is stored.

`muster verify`, `muster-audit` and the simulator run these checks; the state machine uses none of them.
Read `invariants` for the list, then `log_audit`, which puts one pass over a log together; `log_checker`
has the promises about any log, `groups` those about what its records say of groups, `catalog_audit` those
about the log of topics and nodes.
"""
