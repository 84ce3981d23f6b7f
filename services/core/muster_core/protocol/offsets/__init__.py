"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, and offsets that expire.

`offset_commits` decides what counts and what a commit is answered; begin there. Where offsets are kept is
`muster_core.state.offsets`; how a log is read back that consists of commits is `muster_core.log.commits`.
"""
