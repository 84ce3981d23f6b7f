"""What a shard and its process may hold, and how a request is refused that would be too much."""

from collections.abc import Sized

from muster_core.config import GroupConfig
from muster_core.protocol.room import ALONE, Limit
from muster_core.state.holdings import GROUP_BYTES, Holdings

_RESERVE = 1.25
"""How far members that are at work may go above a limit of bytes."""


class Bounds:
    """Compares what is held with the limits, the shard's own and those of the process.

    Args:
        config: the limits.
        groups: the groups of the shard.
        held: those of them that are in quarantine.
        holdings: what all of them hold.

    Attributes:
        room: the process around the shard.
    """

    def __init__(self, config: GroupConfig, groups: Sized, held: Sized, holdings: Holdings) -> None:
        self._config = config
        self.room = ALONE
        self._groups = groups
        self._held = held
        self._holdings = holdings

    def too_many_groups(self) -> str:
        """Why no group can be added, for people; empty: one can."""
        limit = self._config.max_groups_per_shard
        if len(self._groups) + len(self._held) >= limit:
            return self.over(Limit.GROUPS_PER_SHARD, f"the shard has its limit of {limit:,} groups")
        limit = self._config.max_groups
        if self.room.groups() >= limit:
            return self.over(Limit.GROUPS, f"the coordinator has its limit of {limit:,} groups")
        return self.too_much(GROUP_BYTES)

    def over(self, limit: Limit, text: str) -> str:
        """Counts a refusal because of a limit; returns the text for people, with the name of the setting."""
        self.room.refused(limit)
        return f"{text} ({limit.setting}); try again"

    def too_much(self, bytes_: int, *, at_work: bool = False) -> str:
        """Why so many bytes more cannot be held, for people; empty: they can, or they are none.

        Args:
            bytes_: what would come.
            at_work: whether it is for members that the log knows. They may use a reserve, so that newcomers
                alone bring no group to a halt, whose members give partitions to each other.
        """
        if bytes_ <= 0:
            return ""
        limit = self._limit_reached(bytes_, _RESERVE if at_work else 1)
        if limit is None:
            return ""
        if limit is Limit.BYTES_PER_SHARD:
            text = f"the groups of the shard have their limit of {self._config.max_bytes_per_shard:,} bytes"
        else:
            text = f"the groups of the coordinator have their limit of {self._config.max_bytes:,} bytes"
        return self.over(limit, text)

    def is_full_with(self, bytes_: int) -> bool:
        """Whether more would be held with these than may be, the reserve aside."""
        return self._limit_reached(bytes_, 1) is not None

    def _limit_reached(self, bytes_: int, reserve: float) -> Limit | None:
        if self._holdings.bytes + bytes_ > reserve * self._config.max_bytes_per_shard:
            return Limit.BYTES_PER_SHARD
        if self.room.held_bytes() + bytes_ > reserve * self._config.max_bytes:
            return Limit.BYTES
        return None
