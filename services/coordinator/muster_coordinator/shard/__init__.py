"""One shard in this process: taken, loaded, served, suspended, given up.

Read `owned_shard` first, then `served_shard`: what is there only while the shard is loaded, its core and its
log. `asking` is how a unary call waits for one, and for its answer. Which shards this process should have is
`muster_coordinator.ownership`; how their logs are reached is `muster_coordinator.log`.
"""
