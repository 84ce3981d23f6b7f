"""How calls travel: channels, session streams and their members.

`transport` is the seam: what a member sees of the wire. Read it first, then `session`. The files stay in one
folder: all but those about certificates, tokens and forks are parts of the one stream of `session`.
"""
