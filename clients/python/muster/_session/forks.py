"""Whether this process was forked from one that was connected to a cluster.

gRPC does not survive that: the child hangs or crashes, and reads what was meant for its parent, whose
members then lose their partitions for good.
"""

import os
import weakref

_connected: "weakref.WeakSet[object]" = weakref.WeakSet()
_forked_from_connected = False


def note_connected(pool: object) -> None:
    """A pool of connections has its first one."""
    _connected.add(pool)


def note_closed(pool: object) -> None:
    """A pool has closed all its connections."""
    _connected.discard(pool)


def forked_from_connected() -> bool:
    """Whether a connection was open in the parent when it forked this process."""
    return _forked_from_connected


def _forked() -> None:
    global _forked_from_connected
    _forked_from_connected = _forked_from_connected or len(_connected) > 0


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
