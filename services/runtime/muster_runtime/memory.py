"""Memory of a process: how much it may have, and how much of what was freed it keeps at hand."""

import ctypes
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KEPT_BYTES = 128 << 20
"""How much freed memory a process keeps at most for its next large messages."""

OWN_BYTES = 128 << 20
"""What a process takes by itself, with some of what it keeps: it is not there for what it remembers."""

_KEPT_SHARE = 8
"""It keeps no more than this part of what it may have."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def keep_freed() -> bool:
    """Keeps what large messages took for the next ones, instead of giving it back to the system each time.

    The system clears each page of memory that it gives: in a virtual machine that takes four times as long as
    to encode the message that is put there, and the event loop waits for it (docs/safety.md, LIM-47).

    Returns:
        Whether the C library takes that setting; those of macOS and of Alpine Linux do not.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    kept_bytes = min(KEPT_BYTES, (limit_bytes() or _KEPT_SHARE * KEPT_BYTES) // _KEPT_SHARE)
    return bool(mallopt(_M_MMAP_THRESHOLD, kept_bytes) and mallopt(_M_TRIM_THRESHOLD, kept_bytes))


def usable_bytes() -> int | None:
    """What is left of the memory for what a process remembers; None: nobody says how much it may have."""
    memory_bytes = limit_bytes()
    return None if memory_bytes is None else max(memory_bytes - OWN_BYTES, memory_bytes // 4)


def limit_bytes(control_groups: Path = _CONTROL_GROUPS, own_group: Path = _OWN_GROUP) -> int | None:
    """How much memory this process and those beside it in its container may have.

    Args:
        control_groups: where the system shows control groups.
        own_group: the file that names those of this process.

    Returns:
        The lowest limit of its control groups (version 2 or 1), that of its data (RLIMIT_DATA), or the memory
        of the machine where that is less; None: nobody says.
    """
    limits = [_limit_of(path) for path in _files(control_groups, own_group)]
    data_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if data_bytes != resource.RLIM_INFINITY:
        limits.append(data_bytes)
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in limits if limit), default=None)


def _files(control_groups: Path, own_group: Path) -> Sequence[Path]:
    """The files of limits that count for this process: its own groups and all above them."""
    found = [control_groups / "memory.max", control_groups / "memory" / "memory.limit_in_bytes"]
    with suppress(OSError, ValueError):
        for line in own_group.read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            root, file = control_groups, "memory.max"
            if kinds:
                root, file = control_groups / "memory", "memory.limit_in_bytes"
                if "memory" not in kinds.split(","):
                    continue
            path = root / name.lstrip("/")
            found += [group / file for group in (path, *path.parents) if group.is_relative_to(root)]
    return found


def _limit_of(path: Path) -> int:
    """The limit in a file; 0: there is none."""
    with suppress(OSError, ValueError):
        return int(path.read_text())  # "max" is none
    return 0
