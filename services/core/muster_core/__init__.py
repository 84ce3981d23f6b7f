"""The group protocol, pure: no I/O, no clock, no randomness of its own.

Everything that decides lives here: groups and members, the purgatory, records and their replay. The same
code runs in the coordinator, in the simulator and in the audit.
"""
