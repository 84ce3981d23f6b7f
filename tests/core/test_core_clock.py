"""What is believed of a wall clock, beside those of the log's nodes."""

import pytest
from muster_core.clock import CLOCK_LIMIT_MS, Now, reading

LOG_AHEAD_MS = 1_700_000_000_000
BOOT_MS = 5_000
WEEK_MS = 7 * 86_400_000


@pytest.mark.parametrize(
    ("off_ms", "trusted"),
    [
        (0, True),
        (CLOCK_LIMIT_MS, True),
        (-CLOCK_LIMIT_MS, True),
        (CLOCK_LIMIT_MS + 1, False),
        (-CLOCK_LIMIT_MS - 1, False),
        (WEEK_MS, False),
        (-WEEK_MS, False),
    ],
    ids=["right", "a minute ahead", "a minute behind", "more", "less", "a week ahead", "a week behind"],
)
def test_a_wall_clock_far_from_the_logs_is_neither_trusted_nor_used(off_ms: int, trusted: bool) -> None:
    log_ms = BOOT_MS + LOG_AHEAD_MS
    now = reading(BOOT_MS, log_ms + off_ms, LOG_AHEAD_MS)
    assert now == Now(BOOT_MS, log_ms + off_ms if trusted else log_ms, trusted)


def test_a_wall_clock_that_nothing_is_known_of_is_used_and_not_trusted() -> None:
    assert reading(BOOT_MS, 42, None) == Now(BOOT_MS, 42, wall_trusted=False)


def test_a_clock_that_jumps_after_it_was_compared_is_noticed_at_the_next_reading() -> None:
    """The boot clock goes on, so what the log's clocks show now is known without asking them."""
    later_ms = BOOT_MS + 10 * 86_400_000
    assert reading(later_ms, later_ms + LOG_AHEAD_MS, LOG_AHEAD_MS).wall_trusted
    assert not reading(later_ms, later_ms + LOG_AHEAD_MS + WEEK_MS, LOG_AHEAD_MS).wall_trusted
