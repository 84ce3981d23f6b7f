"""The room in memory that a plan has while it is gone through."""

from muster_core.protocol.context import ShardContext
from muster_core.state.group import Group
from muster_core.state.members.claims import Claims
from muster_core.state.plan import Plan

KEPT_AT_ONCE = 1_000_000
"""Partitions that members keep, which the plans of a process look through at a time: 65 bytes for each."""


class PlanRoom:
    """What a plan takes in memory while it is gone through counts (LIM-22).

    Else many groups could each hand one in that there is room for alone.

    Args:
        context: the shard.
        group: the group.

    Attributes:
        bytes: what it takes beyond what the assignment before it does.
    """

    def __init__(self, context: ShardContext, group: Group) -> None:
        self._context = context
        self._group = group
        self._kept = 0
        self.bytes = 0

    def take(self, plan: Plan) -> str:
        """Counts a plan as far as it was read; returns why there is no room for it, or an empty text."""
        more = plan.held_bytes - self._group.assigned_bytes - self.bytes
        full = self._context.bounds.too_much(more, at_work=True)
        if more > 0 and not full:
            self.bytes += more
            self._context.holdings.bytes += more
        return full

    def look_through(self, claims: Claims) -> str:
        """Counts what was looked through of what members keep; returns why it must wait, or an empty text.

        There is always room for one plan: groups are not to stop for being large.
        """
        kept = self._context.room.kept
        others = kept.partitions - self._kept
        if others and others + claims.looked_at > KEPT_AT_ONCE:
            return (
                f"plans around more than {KEPT_AT_ONCE:,} partitions that members keep are gone through now"
            )
        kept.partitions += claims.looked_at - self._kept
        self._kept = claims.looked_at
        return ""

    def leave(self) -> None:
        """It is refused, or on its way to the log and counts with its record."""
        self._context.holdings.bytes -= self.bytes
        self._context.room.kept.partitions -= self._kept
        self.bytes = self._kept = 0
