"""How a classic group goes from one generation to the next: the phases, what ends each, and the cause.

No call is handled here; `muster_core.protocol.membership` does that. Read `rebalance` first; `delayed` has
the waits that end a phase, `causes` why one began.
"""
