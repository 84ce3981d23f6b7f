import time

from muster_runtime import clock


def test_clocks_are_whole_milliseconds_and_boot_time_never_goes_back() -> None:
    readings = [clock.boot_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert isinstance(readings[0], int)
    assert abs(clock.wall_ms() - time.time() * 1000) < 60_000
