"""Which processes are alive: leases, owners, servers, features, and the view that every process watches.

Leases and owner tables are hints; the last Claim of a log decides (docs/safety.md, OWN rules). Read
`leases`, which is pure, then `tables` and `monitor`, which keep them, then `publisher`. The files stay in one
folder: each is one of the tables, or one reader of them, and nearly all need `leases`.
"""
