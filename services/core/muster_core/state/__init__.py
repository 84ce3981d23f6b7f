"""The state of a shard's groups: data and the rules that need nothing else.

Nothing here answers a call, writes a record or starts a rebalance; that is `muster_core.protocol`. Read
`group` first, then `members.member`; `group_state` has the states and the moves between them. Groups that the
coordinator assigns are in `muster_core.incremental`.
"""
