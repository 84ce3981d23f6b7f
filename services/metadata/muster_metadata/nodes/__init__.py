"""The servers that hold the logs: one connection, one node, all nodes together.

Only this package speaks Redis' protocol. It has keys, scripts and answers; what a step on a log means is in
`muster_metadata.log`. Read `node`, then `quorum`. The dozen modules are small and stay in one folder, since
most of them describe what `Node` sends (`keys`, `scripts`, `entries`) or gets back (`reply`, `problem`,
`configuration`, `durability`).
"""
