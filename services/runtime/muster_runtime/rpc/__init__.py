"""gRPC as every process uses it: the server and what guards it, channels to others, certificates.

Begin with `server`, then `_guard`. Who calls, what it may do and how much of it are the rooms `identity`,
`access` and `quotas`; with what processes show each other that they are trusted, `trust`. Each file beside
these is one guard, or what several of them use.
"""
