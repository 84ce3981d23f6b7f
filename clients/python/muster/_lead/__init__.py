"""Leadership: one leader among all who ask, with a token.

Read `term` first, then `candidacy`: a member of a group of its own, whose one partition is the leadership.
`leadership` is the context manager, `entry` what runs a function while this process leads.
"""
