"""Calls in the name of a member without its secret: counted, logged, and told in the trail."""

from collections.abc import Callable

import structlog
from muster_runtime.logs import Seldom

log = structlog.get_logger()


class Strangers:
    """Counts calls that a wrong or missing secret was given with, and logs one of them now and then.

    Args:
        boot_ms: the boot clock.
        counted: called for each.
        told: called for each, with what `spoke` is.
    """

    def __init__(
        self,
        boot_ms: Callable[[], int],
        counted: Callable[[], None],
        told: Callable[[str, str, str, str], None],
    ) -> None:
        self._counted = counted
        self._told = told
        self._lines = Seldom(lambda: boot_ms() / 1_000)

    def spoke(self, group_id: str, member_id: str, identity: str, host: str) -> None:
        """Counts one call; of whom, empty: it proved no identity; from which address, empty: not known."""
        self._counted()
        self._told(group_id, member_id, identity, host)
        if calls := self._lines.count():
            log.warning("member_secret_wrong", group_id=group_id, member_id=member_id, host=host, calls=calls)
