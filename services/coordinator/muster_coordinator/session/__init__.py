"""Session streams: one connection that carries the calls, the beats and the news of all members of a process.

Read `stream` first, then `attachments`: how members come onto it and go off. What a beat or a broken stream
means for a member is decided in `muster_core.protocol.membership.streams`.
"""
