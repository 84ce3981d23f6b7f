"""Files that a crash leaves whole, and that one process holds at a time."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

_PAUSE_S = 0.1


class HeldElsewhere(Exception):
    """Another process holds it; the message says which one, and since when."""


@contextmanager
def held_alone(lock: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Holds a lock file for this process while a block runs.

    The lock goes with the process however it ends. It holds on one machine, and on file systems that pass
    `flock` on.

    Args:
        lock: the file; made where it is not there, and left there.
        patience_s: how long to wait for another process.

    Raises:
        HeldElsewhere: another process holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + patience_s
    with lock.open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    file.seek(0)
                    raise HeldElsewhere(file.read().strip() or "another process") from None
                time.sleep(_PAUSE_S)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}")
        file.flush()
        yield


def replace_file(path: Path, text: str) -> None:
    """Writes a file so that a reader, and a crash, find either the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Has the disk keep what a file holds, or which files a folder has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
