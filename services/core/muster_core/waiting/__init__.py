"""What waits, and for how long: the purgatory and the timing wheel below it.

They know nothing of groups. What waits in a shard is in `muster_core.protocol.generations.delayed`.
"""
