"""The ends of holds that members' joins have begun (docs/safety.md, INC-171, INC-172)."""

from functools import partial

from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.group_timer import GroupTimer
from muster_core.protocol.open_append import nothing_follows
from muster_core.state.group import Group


class Holds:
    """Ends each hold in time.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._ends: dict[str, GroupTimer] = {}

    def follow(self, group: Group) -> None:
        """A record has changed the hold of a group, or the group was loaded."""
        self.end(group)
        hold = group.incremental.hold if group.incremental is not None else None
        if hold is not None and hold.is_on:
            now = self._context.now
            end = self._ends[group.group_id] = GroupTimer(self.ended, group)
            self._context.purgatory.wheel.arm(end, now.boot_ms + hold.remaining_ms(now.wall_ms))

    def end(self, group: Group) -> None:
        """A group has no hold that would end."""
        end = self._ends.pop(group.group_id, None)
        if end is not None:
            self._context.purgatory.wheel.cancel(end)

    def ended(self, end: GroupTimer) -> None:
        """The time of a hold is over."""
        if self._ends.get(end.group_id) is end:
            del self._ends[end.group_id]
            if (group := end.group) is not None:
                self._context.lines.in_line(group, partial(self._assign_anew, group))

    def _assign_anew(self, group: Group) -> None:
        """What was held back is assigned anew, which follows the records."""
        context, incremental = self._context, group.incremental
        is_present = context.groups.get(group.group_id) is group
        if not is_present or incremental is None or incremental.hold is None or not incremental.hold.is_on:
            return
        if group.group_id in self._ends:
            return  # a join has made it longer while this waited in line
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        decision.end_hold()
        decision.raise_epoch(causes.hold_ended(context.now.wall_ms), incremental.topics_hash)
        context.append(decision.records, nothing_follows, holds=group)
