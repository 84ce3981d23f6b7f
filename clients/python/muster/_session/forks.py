"""Whether this process was forked from one that was connected to a cluster.

gRPC does not survive that: the child hangs or crashes, and reads what was meant for its parent, whose
members then lose their partitions for good. Once the last connection is closed, a child may connect; but
gRPC's threads end a little later, and a child that is forked meanwhile hangs as well.

A child that was forked in the event loop of its parent's members, and comes back to it, shares that loop's
sockets and what it waits for: from then on the parent would hear no signal any more.
"""

import asyncio
import os
import threading
import time
import weakref
from pathlib import Path

_GRPC_ENDS_S = 1.0
"""How long after the last connection a fork waits for gRPC's threads at most."""
_TICK_S = 0.005
_THREADS = Path("/proc/self/task")

_EXIT_CODE = 70
"""Of a child that came back to the loop of its parent: `EX_SOFTWARE`."""
_RETURNED = b"""\
muster: a process that was forked in the event loop of a worker came back to that loop, which is its \
parent's: it ends. End a child with os._exit, or start it with multiprocessing.
"""

_connected: "weakref.WeakSet[object]" = weakref.WeakSet()
_forked_from_connected = False
_closed_s = float("-inf")


class _Forking(threading.local):
    """In which running event loop a thread forks."""

    loop: asyncio.AbstractEventLoop | None = None


_forking = _Forking()


def note_connected(pool: object) -> None:
    """A pool of connections has its first one."""
    _connected.add(pool)


def note_closed(pool: object) -> None:
    """A pool has closed all its connections."""
    global _closed_s
    _connected.discard(pool)
    _closed_s = time.monotonic()


def forked_from_connected() -> bool:
    """Whether a connection was open in the parent when it forked this process."""
    return _forked_from_connected


def _before_fork() -> None:
    """Waits until gRPC has ended, where the last connection was closed just now."""
    while not _connected and time.monotonic() < _closed_s + _GRPC_ENDS_S and _has_foreign_threads():
        time.sleep(_TICK_S)
    try:
        _forking.loop = asyncio.get_running_loop()
    except RuntimeError:
        _forking.loop = None


def _has_foreign_threads() -> bool:
    """Whether there may be threads that are not Python's, as gRPC's are."""
    try:
        return sum(1 for _ in _THREADS.iterdir()) > threading.active_count()
    except OSError:  # no Linux
        return True


def _forked() -> None:
    global _forked_from_connected
    _forked_from_connected = _forked_from_connected or len(_connected) > 0
    if _forking.loop is not None and _connected:
        _forking.loop.call_soon(_end)


def _end() -> None:
    """Ends this process at once: nothing of the parent's loop may be closed or removed."""
    os.write(2, _RETURNED)
    os._exit(_EXIT_CODE)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_forked)
