"""A connection to a cluster: discovery, the way to a group's coordinator, topics and committed positions.

Read `cluster` first; `link` finds the coordinator of one group, and finds it again when it has moved.
"""
