"""How calls travel: channels, session streams and their members.

`transport` is the seam: what a member sees of the wire. Read it first, then `session`.
"""
