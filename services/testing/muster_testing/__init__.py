"""Coordinator and discovery without gRPC, Redis or clocks of their own: the server half of `muster.testing`.

What decides and what speaks the protocol is the product's: the core, its shards, session streams, checks of
requests, discovery. In place of metadata there is a log in memory, in place of leases one live node at a
time. `servers.py` puts it together; the client finds it by its entry point, so that it needs none of this.
"""
