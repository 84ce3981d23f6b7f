"""The coordinator: owns shards of groups by claim, and drives their cores.

`coordinator` puts the rooms together. A call goes through `api` or `session` to the core of its shard in
`shard`, and what the core stores through `log`; `ownership` decides which shards are here, `failstop` what
happens when a core raises, `telemetry` watches. Which rooms may use which is in the import contracts
(pyproject.toml).

Nothing is imported here: every process checks the names of all settings, and would import the whole service
with them.
"""
