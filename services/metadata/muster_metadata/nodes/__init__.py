"""The servers that hold the logs: one connection, one node, all nodes together.

Only this room speaks Redis' protocol. It knows keys, scripts and answers, and nothing of what a step on a
log means: that is `muster_metadata.log`. Read `node`, then `quorum`.
"""
