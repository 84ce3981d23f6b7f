"""The topic catalog: a log of its own, claimed by the instance that changes it, with snapshots.

What its records mean is in `muster_core.log.topics.topics`; this package reads, writes and trims the log.
"""
