import time

from muster_runtime import clock


def test_clocks_are_whole_milliseconds_and_boot_time_never_goes_back() -> None:
    readings = [clock.boot_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert isinstance(readings[0], int)
    assert abs(clock.wall_ms() - time.time() * 1000) < 60_000


def test_deadlines_use_the_clock_that_counts_sleep() -> None:
    """A lease must end while its holder sleeps, and must not when somebody sets the wall clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert boot == clock._BOOT_CLOCK
    before_ms = time.clock_gettime_ns(boot) // 1_000_000
    assert 0 <= clock.boot_ms() - before_ms < 60_000
