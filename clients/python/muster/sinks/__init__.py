"""Sinks that refuse a worker that is not the owner any more.

A worker that was paused (a stopped virtual machine, a long collection of garbage) may write after its
partition went to another. Every ownership has a token that grows with each owner; a sink that keeps the
highest one and refuses lower ones is safe. These fences do that where data is kept: `SqlFence` in a
transaction (SQLite, PostgreSQL), `RedisFence` with each command, `ObjectFence` on an object of S3, and
`FencingMiddleware` at the door of an HTTP service.

    fence = muster.sinks.SqlFence("postgresql")

    def store(connection, p, rows):
        with connection.transaction():
            fence.check(connection, p)  # raises StaleToken
            connection.executemany("INSERT …", rows)

None of them needs a package of its own: each uses the connection that it is given.
"""

from muster.sinks._objects import ObjectFence
from muster.sinks._redis import RedisFence
from muster.sinks._resource import Owned, StaleToken, resource_of
from muster.sinks._sql import SqlFence
from muster.sinks._web import FencingMiddleware, MemoryTokens, Tokens, TooManyResources, fence_headers

__all__ = [
    "FencingMiddleware",
    "MemoryTokens",
    "ObjectFence",
    "Owned",
    "RedisFence",
    "SqlFence",
    "StaleToken",
    "Tokens",
    "TooManyResources",
    "fence_headers",
    "resource_of",
]
