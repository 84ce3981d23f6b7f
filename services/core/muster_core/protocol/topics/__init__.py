"""Topics that are deleted and partitions that are removed: what groups lose with them, a part each turn.

The topics themselves are in the catalog's log (`muster_core.log.topics`). Begin with `topic_deletions`.
"""
