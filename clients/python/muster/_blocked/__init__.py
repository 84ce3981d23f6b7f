"""A blocked event loop: found by a thread, named in the log, and stood in for by Heartbeat calls.

One thread watches all loops of a process. Begin with `watch`; `naming` and `stand_in` are what it calls.
"""
