"""Which shards this process owns, and until when it may be sure of it: lease, claims, hand-overs.

Read `reconcile` and `placement` first, they are pure; `outlook` says what they decide on, and `ownership`
carries out what they say, one task per shard.
"""
