"""One shard in this process: taken, loaded, served, suspended, given up.

Read `owned_shard` first, then `served_shard`: what is there only while the shard is loaded, its core and its
log. Which shards this process should have is `muster_coordinator.ownership`; how their logs are reached is
`muster_coordinator.log`.
"""
