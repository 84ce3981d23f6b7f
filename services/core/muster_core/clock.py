"""Time as the core sees it: handed in, never read."""

from typing import NamedTuple

CLOCK_LIMIT_MS = 60_000
"""A wall clock that differs from the log's by more is not believed."""


class Now(NamedTuple):
    """One reading of both clocks, in whole milliseconds.

    Attributes:
        boot_ms: time since boot (`CLOCK_BOOTTIME`), for every deadline.
        wall_ms: Unix time, for what is shown and for retention; no protocol step reads it.
        wall_trusted: whether the wall clock agrees with the clocks of the log's nodes: what is measured by
            wall time pauses while it does not, or while that is not known.
    """

    boot_ms: int
    wall_ms: int
    wall_trusted: bool = True


def reading(boot_ms: int, wall_ms: int, log_ahead_ms: int | None) -> Now:
    """What the clocks of a process say, beside those of the log.

    A wall clock that is not believed is not used either: the time is then the log's, so that nothing is
    stamped with a date that a later owner would take for old.

    Args:
        boot_ms: the boot clock.
        wall_ms: the wall clock.
        log_ahead_ms: how far the wall clock of the log's nodes is ahead of this boot clock; None: not known.
    """
    if log_ahead_ms is None:
        return Now(boot_ms, wall_ms, wall_trusted=False)
    log_ms = boot_ms + log_ahead_ms
    if abs(wall_ms - log_ms) > CLOCK_LIMIT_MS:
        return Now(boot_ms, log_ms, wall_trusted=False)
    return Now(boot_ms, wall_ms)
