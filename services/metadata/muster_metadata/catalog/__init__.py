"""The topics: a log of its own, claimed by the instance that changes it, with snapshots.

What a record of it means is `muster_core.log.topics`; this room reads, writes and trims that log.
"""
