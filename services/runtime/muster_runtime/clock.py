"""The two clocks of a process. Only the edge reads them; the core is handed what they say."""

import time

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> int:
    """Milliseconds since boot, for every deadline.

    It counts the time that a machine is suspended, so that a lease ends while its holder sleeps. Where
    the system has no such clock (macOS) it is the monotonic one, which counts it there.
    """
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def wall_ms() -> int:
    """Unix time in milliseconds, for what is shown and for retention; no protocol step reads it."""
    return time.time_ns() // 1_000_000
