"""Which shards this process owns, and until when it may be sure of it: lease, claims, hand-overs.

Read `reconcile` and `placement` first, they are pure; `ownership` carries out what they say, one task per
shard.
"""
