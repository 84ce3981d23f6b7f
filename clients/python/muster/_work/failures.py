"""Counts the failures of a partition's work, and says how long to wait after each."""

import traceback

from muster._backoff import JITTER, between
from muster._clock import monotonic_s
from muster._work.policy import WorkPolicy

MOST_PLACES = 256
"""So many places where work raised are remembered."""


class Failures:
    """Failures in a row of the work on one partition; kept while this process keeps the partition.

    Attributes:
        count: failures in a row.
        next_s: monotonic time of the next attempt.
    """

    def __init__(self, policy: WorkPolicy) -> None:
        self._policy = policy
        self.next_s = 0.0
        self.reset()

    def reset(self) -> None:
        """The row is over."""
        self.count = 0
        self._pauses = 0
        self._began_s = 0.0

    def add(self) -> None:
        """The work failed."""
        self.count += 1
        if self.count == 1:
            self._began_s = monotonic_s()

    def wait(self) -> float:
        """Plans the next attempt, and returns how far away it is, s."""
        policy = self._policy
        doubled_ms = policy.retry_backoff_ms * (1 << min(self._pauses, 40))
        pause_ms = min(doubled_ms, policy.retry_backoff_max_ms)
        self._pauses += 1
        pause_s = pause_ms / 1_000 * between(1 - JITTER, 1 + JITTER)
        self.next_s = monotonic_s() + pause_s
        return pause_s

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached."""
        lasted_ms = (monotonic_s() - self._began_s) * 1_000
        return self.count >= self._policy.retry_attempts or (
            self.count > 0 and lasted_ms >= self._policy.retry_for_ms
        )


class Traces:
    """Which tracebacks were logged: each place once, however often and for how many partitions it raises."""

    def __init__(self) -> None:
        self._places: dict[tuple[object, ...], None] = {}

    def is_new(self, error: BaseException) -> bool:
        """Whether no error of this type was raised in this line before."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error), *((frames[-1].filename, frames[-1].lineno) if frames else ()))
        if place in self._places:
            return False
        if len(self._places) >= MOST_PLACES:
            del self._places[next(iter(self._places))]
        self._places[place] = None
        return True
