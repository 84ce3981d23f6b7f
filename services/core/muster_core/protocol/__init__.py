"""What calls and time do to groups: one file for each group of calls, and what they share.

Handlers read the state, answer, and say which records to store; `muster_core.log.application` changes the
state when a record is acknowledged. Read `context` first, then `joins`, `rebalance` and `syncs` in the
order of a group's life.
"""
