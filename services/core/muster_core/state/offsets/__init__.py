"""The offsets of one group: committed ones in the order in which they are read, and reported ends.

Read `offset_store` first. Whose commit counts is decided in `muster_core.protocol.offsets`.
"""
