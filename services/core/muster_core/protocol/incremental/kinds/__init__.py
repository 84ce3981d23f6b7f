"""Groups that change their kind: classic to incremental (`conversions`) and back (`reversions`).

`kind_changes` is the operator's call; joins and heartbeats change a group's kind by themselves where its
settings allow it. What the record of a change makes of a group is in `muster_core.incremental.conversion` and
`muster_core.log.reversion`.
"""
