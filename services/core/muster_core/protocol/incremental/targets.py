"""How a target comes about: in a turn, aside, or later (docs/safety.md, INC-30 to 36, 106, LIM-69)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from muster_protos.muster.log.v1.incremental_pb2 import TargetAssigned
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.catalog import NOTHING_KNOWN
from muster_core.events import Assign, Assigned, Request
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.upkeep import assign_due
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import Partitions
from muster_core.incremental.targets.hold import without_moves
from muster_core.incremental.targets.late import what_counts
from muster_core.incremental.targets.target import (
    When,
    are_alike,
    are_as_much,
    question_of,
    subscribed_topics,
)
from muster_core.position import Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.holds import Holds
from muster_core.protocol.incremental.pauses import Pauses, is_due
from muster_core.protocol.incremental.settings import assignor_in_use, assignors_of
from muster_core.protocol.incremental.topics import topics_of
from muster_core.record_bounds import is_one_append
from muster_core.state.group import Group
from muster_core.waiting.timing_wheel import CallbackTimer

_FAILED_PAUSE_MS = 1_000
"""How long after a failed computation the next one begins."""
_NAMES_AS_ONE = 16
"""So many topic names in members' lists take as long to assign as one partition, known or not."""


class Waiting(NamedTuple):
    """A request that waits for a target.

    Attributes:
        call: the call.
        request: what it asks.
        before: what its member worked on when it came.
        joined: the join of its member.
        version: what its member was told last.
        epoch: the group's epoch by then: the target of that one or of a later one will do.
    """

    call: Request
    request: ConsumerGroupHeartbeatRequest
    before: Partitions
    joined: Position
    version: Position
    epoch: int


GoOn = Callable[[Group, Sequence[Waiting]], None]
"""Goes on with requests that have waited. They keep no order with others, so they wait in line again."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An assignment that is computed aside.

    Attributes:
        number: which.
        group: the group.
        incremental: the group, in this life as an incremental one.
        epoch: for which it is computed.
        server_assignor: what computes it.
        incarnations: which topic has a name.
    """

    number: int
    group: Group
    incremental: IncrementalGroup
    epoch: int
    server_assignor: str
    incarnations: Mapping[str, int]


class Targets:
    """Computes targets that are out of date: in the turn, aside where that takes long, or after a pause.

    Decisions ask `when` it is. What they leave is computed here: in a group with members on streams as soon
    as may be, and in one whose members make calls alone when one of them asks.

    Args:
        context: the shard.

    Attributes:
        holds: ends what members' joins hold back.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._go_on: GoOn = lambda _, __: None
        self._numbers = count(1)
        self._running: dict[str, _Running] = {}
        self._pauses = Pauses(context, self.needed)
        self.holds = Holds(context)
        self._in_line: dict[str, Group] = {}
        self._changed: dict[str, Group] = {}
        self._waiting: dict[str, dict[str, Waiting]] = {}
        self._patience: dict[str, CallbackTimer] = {}

    def go_on_with(self, go_on: GoOn) -> None:
        """Sets what takes requests that have waited."""
        self._go_on = go_on

    # --- when

    def when(self, group: Group, draft: IncrementalGroup) -> When:
        """When the target of a group is computed that is out of date before or by a decision.

        Args:
            group: the group.
            draft: the group as the decision would leave it.
        """
        if self._runs(group):
            return When.ASIDE
        if self._pauses.is_running(group):
            return When.LATER
        if self._is_large(group, draft):
            return When.ASIDE
        return When.LATER if self._pauses.waits_for_turn(group, self._size(draft)) else When.NOW

    def _is_large(self, of: Group, group: IncrementalGroup) -> bool:
        """Whether an assignment would hold up a turn of the shard."""
        room = self._context.room
        if _members_and_names(group) > room.at_once_max * room.alike_factor:
            return True
        size = self._size(group)
        if not room.at_once_max < size <= room.at_once_max * room.alike_factor:
            return size > room.at_once_max
        default = next(iter(room.assignors))
        if not are_as_much(group, topics_of(self._context.catalog)):
            return True
        return not group.wants_alike or assignor_in_use(room.assignors, of.settings, group) != default

    def _size(self, group: IncrementalGroup) -> int:
        """How many members and partitions an assignment looks at."""
        partitions = self._context.catalog.partitions
        return _members_and_names(group) + sum(partitions.get(name, 0) for name in subscribed_topics(group))

    def changed(self, group: Group, kind: str, record: Any) -> None:
        """Notes that a record of a group was applied; `attend_changed` follows in the same turn."""
        self._changed[group.group_id] = group
        if kind == "target_assigned":
            self._pauses.begin(group, _moved_by(record))
        elif kind == "moves_held" or (kind == "member_removed" and _is_empty(group)):
            self.holds.follow(group)

    def shorten_pause(self, group: Group) -> None:
        """What is set for the pause of a group may be shorter now."""
        self._pauses.shorten(group)

    def attend_changed(self) -> None:
        """Attends to each group of which the turn has applied records."""
        changed, self._changed = self._changed, {}
        for group in changed.values():
            self._context.working_on = group
            self.attend(group)

    def attend(self, group: Group) -> None:
        """Begins what is due, if anybody is to hear of it though nobody asks."""
        if self._may_begin(group) and group.incremental is not None and group.incremental.has_stream_members:
            self.needed(group)

    def needed(self, group: Group) -> None:
        """The target may be out of date: it is computed, after the pause, or is being computed."""
        if self._may_begin(group) and self._in_line.get(group.group_id) is not group:
            self._in_line[group.group_id] = group
            self._context.lines.in_line(group, partial(self._begin, group))

    def _may_begin(self, group: Group) -> bool:
        """Whether the target is out of date while none is being computed and the group does not pause.

        Not before the topics are known, as just after a load: a target without them would give nobody
        anything, and nothing would say that it is wrong.
        """
        if self._context.catalog is NOTHING_KNOWN:
            return False
        is_present = self._context.groups.get(group.group_id) is group
        return is_due(group) and is_present and not self._runs(group) and not self._pauses.is_running(group)

    def _runs(self, group: Group) -> bool:
        """Whether an assignment is being computed for this very group, not for an earlier one of its name."""
        running = self._running.get(group.group_id)
        return running is not None and running.group is group and running.incremental is group.incremental

    def drop(self) -> None:
        """Nobody waits any more, and results of what runs come too late: the shard is suspended.

        What is due is begun again at the end of the first turn after that.
        """
        self._running.clear()
        self._waiting.clear()
        self._changed = dict(self._context.groups)

    # --- computing

    def _begin(self, group: Group) -> None:
        group_id, incremental, context = group.group_id, group.incremental, self._context
        if self._in_line.get(group_id) is group:
            del self._in_line[group_id]
        if not self._may_begin(group):
            return  # somebody's request was earlier
        assert incremental is not None
        if self._pauses.waits_for_turn(group, self._size(incremental)):
            return
        topics = topics_of(context.catalog)
        if not self._is_large(group, incremental):
            decision = Decision(incremental, group_id, context.record, context.catalog.removed)
            assignors = assignors_of(context.room.assignors, group.settings)
            assign_due(decision, topics, assignors, are_alike(incremental))
            self._store(group, decision)
            return
        number = next(self._numbers)
        name = assignor_in_use(context.room.assignors, group.settings, incremental)
        self._running[group_id] = _Running(
            number, group, incremental, incremental.epoch, name, topics.incarnations
        )
        question = question_of(incremental, topics, alike=are_alike(incremental))
        context.effects.work.append(Assign(group_id, number, name, question))

    def assigned(self, event: Assigned) -> None:
        """Takes a result, in line: the group may have gone on since it was asked for."""
        running = self._running.get(event.group_id)
        if running is None or running.number != event.number:
            return  # of before a suspension
        self._context.working_on = running.group
        self._context.lines.in_line(running.group, partial(self._take, running, event))

    def _take(self, running: _Running, event: Assigned) -> None:
        group, context = running.group, self._context
        if self._running.get(group.group_id) is not running:
            return
        del self._running[group.group_id]
        incremental = group.incremental
        if incremental is not running.incremental or context.groups.get(group.group_id) is not group:
            self._release(group)
        elif event.changes is None:
            self._give_up(group)
        elif running.epoch <= incremental.target_epoch:
            self._follow(group)
        else:
            topics = topics_of(context.catalog)
            changes, waits = what_counts(incremental, event.changes, topics, running.incarnations)
            if group.settings.hold or incremental.holds_moves:
                changes = without_moves(incremental, changes)
            decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
            decision.assign(running.server_assignor, running.epoch, changes)
            if waits and running.epoch == incremental.epoch:
                decision.raise_epoch(causes.share_waits(context.now.wall_ms), incremental.topics_hash)
            self._store(group, decision)

    def _store(self, group: Group, decision: Decision) -> None:
        """Stores a target, with the steps that members on streams make by it (docs/safety.md, INC-13)."""
        decision.wake()
        size_bytes = sum(record.ByteSize() for record in decision.records)
        if not is_one_append(decision.records) or self._context.bounds.too_much(size_bytes, at_work=True):
            self._give_up(group)
        else:
            self._context.append(decision.records, partial(self._follow, group), holds=group)

    def _give_up(self, group: Group) -> None:
        """There is no target now: who waits is answered by the one before."""
        self._pauses.begin_after_failure(group, _FAILED_PAUSE_MS)
        self._release(group)

    def _follow(self, group: Group) -> None:
        """There is a new target: who waited for it goes on, and what changed meanwhile is next."""
        incremental = group.incremental
        assert incremental is not None
        self._release(group, incremental.target_epoch)
        if group.group_id in self._waiting:
            self.needed(group)

    # --- who waits

    def wait(self, group: Group, waiting: Waiting) -> None:
        """A request waits until the target is there, or for as long as may be.

        One that its member made before is answered by the target before.
        """
        of_group = self._waiting.setdefault(group.group_id, {})
        earlier = of_group.pop(waiting.request.member_id, None)
        of_group[waiting.request.member_id] = waiting
        if group.group_id not in self._patience:
            patience = CallbackTimer(group.group_id, partial(self._patience_ended, group))
            self._patience[group.group_id] = patience
            wait_ms = self._context.config.incremental_assignment_wait_ms
            self._context.purgatory.wheel.arm(patience, self._context.now.boot_ms + wait_ms)
        if earlier is not None:
            self._go_on(group, [earlier])
        self.needed(group)

    def end(self, group: Group) -> None:
        """The group changed its kind: waiting requests are answered so, a running computation is dropped."""
        self._running.pop(group.group_id, None)
        self.holds.end(group)
        if (patience := self._patience.pop(group.group_id, None)) is not None:
            self._context.purgatory.wheel.cancel(patience)
        for one in self._waiting.pop(group.group_id, {}).values():
            self._context.refuse(one.call.call_id, error_code.GROUP_CLASSIC)

    def _patience_ended(self, group: Group) -> None:
        """The target is not there in time: who waits is answered by the one before."""
        self._patience.pop(group.group_id, None)
        self._release(group)

    def _release(self, group: Group, epoch: int | None = None) -> None:
        """Lets requests go on that waited for the target of an epoch, on streams of any; None: all."""
        waiting = self._waiting.pop(group.group_id, {})
        calls = {who: one for who, one in waiting.items() if one.call.place is None}
        later = {} if epoch is None else {who: one for who, one in calls.items() if one.epoch > epoch}
        if later:
            self._waiting[group.group_id] = later
        elif (patience := self._patience.pop(group.group_id, None)) is not None:
            self._context.purgatory.wheel.cancel(patience)
        ready = [one for who, one in waiting.items() if who not in later]
        if ready:  # they are of the group that has the name now
            self._go_on(self._context.groups.get(group.group_id, group), ready)


def _members_and_names(group: IncrementalGroup) -> int:
    names = group.tally.listed + sum(map(len, group.expressions.values()))
    return len(group.members) + names // _NAMES_AS_ONE


def _moved_by(target: TargetAssigned) -> int:
    """How many partitions a target gives and takes."""
    both = [some for change in target.changes for some in (change.gets, change.loses)]
    return sum([len(topic.partitions) for some in both for topic in some])


def _is_empty(group: Group) -> bool:
    return group.incremental is None or not group.incremental.members
