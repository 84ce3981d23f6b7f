"""Time as the core sees it: handed in, never read."""

from typing import NamedTuple


class Now(NamedTuple):
    """One reading of both clocks, in whole milliseconds.

    Attributes:
        boot_ms: time since boot (`CLOCK_BOOTTIME`), for every deadline.
        wall_ms: Unix time, for what is shown and for retention; no protocol step reads it.
    """

    boot_ms: int
    wall_ms: int
