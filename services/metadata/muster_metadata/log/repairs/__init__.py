"""Repairs: one node's copy of a log is brought up to the log of a claim.

`repair` copies a missing tail or cuts a divergent end; begin there. `sources` says which node can be believed
about what is missing, and `rebuilding` copies a whole log. When a repair is needed is decided in `upkeep`,
`patrol` and `claim`.
"""
