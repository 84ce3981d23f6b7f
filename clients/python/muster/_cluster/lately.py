"""Where the coordinators of groups have answered lately, so that a new member need not look for its own."""

from typing import NamedTuple

from muster._clock import boot_ms
from muster._cluster.discovery import OLD_VIEW_MS

MOST_GROUPS = 1_000
"""Groups that are remembered."""


class Answered(NamedTuple):
    """A coordinator that has answered a call for a group.

    Attributes:
        address: where it is.
        shard_epoch: of its ownership.
        at_ms: boot time of its newest answer.
    """

    address: str
    shard_epoch: int
    at_ms: int


class AnsweredLately:
    """The coordinators that have answered calls for groups; all links of a connection share it.

    They count for as long as a discovery server's view may be old, which is no better then.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, Answered] = {}

    def note(self, group_id: str, address: str, shard_epoch: int) -> None:
        """A coordinator has answered a call for a group as its owner."""
        before = self._by_group.pop(group_id, None)
        if before is None and len(self._by_group) == MOST_GROUPS:
            del self._by_group[next(iter(self._by_group))]
        self._by_group[group_id] = Answered(address, shard_epoch, boot_ms())

    def forget(self, group_id: str, address: str) -> None:
        """A coordinator does not answer for a group any more."""
        answered = self._by_group.get(group_id)
        if answered is not None and answered.address == address:
            del self._by_group[group_id]

    def of(self, group_id: str) -> Answered | None:
        """The coordinator that has answered for a group lately; None: none has."""
        answered = self._by_group.get(group_id)
        return answered if answered is not None and boot_ms() - answered.at_ms <= OLD_VIEW_MS else None
