"""How calls travel: channels, session streams and what hangs on them.

`transport` is the seam: what a member sees of the wire. Read it first, then `session`.
"""
