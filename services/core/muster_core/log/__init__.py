"""Records: what they do to groups and topics, how they are read back, and snapshots in their place.

The decision to write a record is made in `muster_core.protocol`; reading a log from nodes is I/O and no
part of the core. Read `application` first: it is the only way in which an acknowledged record changes
state. `record_run`, `page` and `commits` do that for many records at once; `replay` and `chain` check a
log before it is believed. The log of topics, which is one of its own, is in `topics`.
"""
