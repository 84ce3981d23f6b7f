"""One shard in this process: taken, loaded, served, suspended, given up.

Read `owned_shard` first, then `core_driver`, which hands events to the core and carries out its decisions.
Which shards this process should have is `muster_coordinator.ownership`; how their logs are reached is
`muster_coordinator.log`.
"""
