"""A member of an incremental group: what it says, hears and does, without I/O.

`membership.py` is the member as a state machine, and the file to read first; `_member` carries it out.
"""
