"""The clocks that a member's life is measured with, and who else has to know of time that passes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _boot_ns() -> int:
    if _CLOCK is None:
        return time.monotonic_ns()  # which is the clock since boot on Windows
    return time.clock_gettime_ns(_CLOCK)


class Time:
    """The time of the machine. `muster.testing` puts one of its own in its place.

    Attributes:
        virtual: whether it passes only in the event loop, so that threads have to wait there.
    """

    virtual = False

    def boot_ms(self) -> int:
        """See `muster._clock.boot_ms`."""
        return _boot_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See `muster._clock.monotonic_s`."""
        return time.monotonic()

    def thread_runs(self) -> None:
        """A thread runs the user's code from now on. Called on the event loop."""

    def thread_rests(self) -> None:
        """A thread waits for the event loop from now on, or has ended. Called on the event loop."""


_time = Time()


def current() -> Time:
    """The time that is in force."""
    return _time


@contextmanager
def replaced(by: Time) -> Iterator[None]:
    """Puts another time in force, for the whole process."""
    global _time
    before, _time = _time, by
    try:
        yield
    finally:
        _time = before


def boot_ms() -> int:
    """Milliseconds since boot; the time asleep counts where the system has a clock for that."""
    return _time.boot_ms()


def monotonic_s() -> float:
    """Seconds of a clock that never jumps; the time asleep need not count."""
    return _time.monotonic_s()
