"""Decisions about a group: what a request or a due step makes of it, as records that are stored together.

Begin with `heartbeat`, which decides what a request does; `upkeep` is what follows without one,
`together` makes one decision of several requests. `decision` gathers the records and shows the group as
they will leave it, and `reconciliation` brings one member towards its target.
"""
