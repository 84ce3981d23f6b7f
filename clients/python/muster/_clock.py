"""The clock that a member's life is measured with."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> int:
    """Milliseconds since boot; the time asleep counts where the system has a clock for that."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
