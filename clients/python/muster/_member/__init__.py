"""A member and its work: joins, owns partitions, commits, loses them.

Read `member` first. How a call reaches a coordinator is no concern of this room: `muster._cluster.link`
finds it, and `muster._session` carries it.
"""
