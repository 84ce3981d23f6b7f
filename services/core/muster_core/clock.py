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


class ClockWatch:
    """Whether both clocks go alike: what is measured by wall time pauses while they do not.

    Args:
        now: the reading that later ones are compared with.
    """

    LIMIT_MS = 60_000

    def __init__(self, now: Now) -> None:
        self._difference_ms = now.wall_ms - now.boot_ms

    def agree(self, now: Now) -> bool:
        """Whether they disagree by a minute at most since the first reading."""
        return abs(now.wall_ms - now.boot_ms - self._difference_ms) <= self.LIMIT_MS
