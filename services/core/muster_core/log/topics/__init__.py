"""Topics, as the records of the catalog's log make them: partitions with names and zones.

`topics` is the state that a load and metadata share; `topic_changes` decides which record a change needs.
What groups lose with a deleted topic is in `muster_core.protocol.topics`.
"""
