"""Who is in a classic group: the calls of its members, unary and on session streams.

Read `joins`, then `syncs` and `leaves`, in the order of a member's life. What follows when the members
change is in `muster_core.protocol.generations`.
"""
