"""Calls in the name of members without their secrets, as an operator hears of them."""

from collections.abc import Callable

import structlog

log = structlog.get_logger()

LOGGED_EVERY_MS = 10_000
"""Whoever tries ids is counted, and does not fill the log."""


class Strangers:
    """Counts such calls, and logs one of them now and then.

    Args:
        boot_ms: the boot clock.
        counted: called for each.
    """

    def __init__(self, boot_ms: Callable[[], int], counted: Callable[[], None]) -> None:
        self._boot_ms = boot_ms
        self._counted = counted
        self._logged_ms = -LOGGED_EVERY_MS
        self._unlogged = 0

    def spoke(self, group_id: str, member_id: str, host: str) -> None:
        """Somebody did, from an address; empty: it is not known, since the call came on a stream."""
        self._counted()
        self._unlogged += 1
        now_ms = self._boot_ms()
        if now_ms - self._logged_ms < LOGGED_EVERY_MS:
            return
        log.warning(
            "member_secret_wrong", group_id=group_id, member_id=member_id, host=host, calls=self._unlogged
        )
        self._logged_ms, self._unlogged = now_ms, 0
