"""The standing of a member: its seat, its life, what it owns, and what it has to do next.

It belongs to the rooms that share a member (`_member`, `_incremental`, `_session`, `_blocked`), which read
and change it; nothing here makes a call. Begin with `standing`.
"""
