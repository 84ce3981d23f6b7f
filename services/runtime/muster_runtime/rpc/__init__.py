"""gRPC as every process uses it: the server and what guards it, channels to others, certificates.

Begin with `server`, then `_guard`. Who calls, what it may do and how much of it are the rooms `identity`,
`access` and `quotas`. Each file beside these is one guard, or one way in which processes trust each other.
"""
