"""Discovery: names the coordinator of each group, and serves the catalog of topics.

`role` is what a process runs. Nothing is imported here, as in the coordinator.
"""
