"""The history in a log: who owned it, which groups rebalanced and why, what was written when."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from muster_core import cause_kind
from muster_core.incremental.application import KINDS as INCREMENTAL_KINDS
from muster_core.log.record_run import RecordRun
from muster_core.position import Position
from muster_core.state.group import Group
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_audit.reading.facts import Activity, Fact, GroupSeen, Owned, Rebalances

_PREFIX = "REBALANCE_CAUSE_KIND_"
_UNEXPECTED = {cause_kind.SESSION_EXPIRED, cause_kind.DISCONNECTED, cause_kind.REBALANCE_TIMEOUT}


def cause_in_words(kind: int) -> str:
    """A cause as reports name it: `member joined`."""
    try:
        name = common_pb2.RebalanceCauseKind.Name(kind)  # type: ignore[arg-type]  # a log may have any number
    except ValueError:
        return f"cause {kind}"
    return name.removeprefix(_PREFIX).replace("_", " ").lower()


@dataclass(slots=True)
class _Seen:
    """What a group went through.

    Attributes:
        members: how many it has.
        rebalances: its generations; of an incremental group the epochs whose targets moved something.
        unexpected: those of them for a member that was lost.
        last_cause: why the latest of them was; None: there was none.
        ids: who the members of an incremental group are.
        raised_for: why its latest epoch was raised; None: a rebalance was counted for that already.
    """

    members: int = 0
    rebalances: int = 0
    unexpected: int = 0
    last_cause: int | None = None
    ids: set[str] = field(default_factory=set)
    raised_for: int | None = None


@dataclass(slots=True)
class Timeline:
    """Watches the records of one log.

    Args:
        shard: number of the log.
        span_ms: width of the spans of time that are counted together.
        began_ms: where the first span begins.
    """

    shard: int
    span_ms: int
    began_ms: int = 0
    _activity: Counter[tuple[int, str]] = field(default_factory=Counter)
    _rebalances: Counter[tuple[int, int]] = field(default_factory=Counter)
    _members: Counter[tuple[int, int]] = field(default_factory=Counter)
    _commits: Counter[str] = field(default_factory=Counter)
    _owners: list[Owned] = field(default_factory=list)
    _groups: defaultdict[str, _Seen] = field(default_factory=lambda: defaultdict(_Seen))
    _last_ms: int = 0
    _handed_off: bool = False
    _session: str = ""

    def watch(self, run: RecordRun) -> None:
        """Takes the next records."""
        times = run.times_ms()
        first, last = self._span(min(times)), self._span(max(times))
        if first == last:
            for kind, count in Counter(run.kinds).items():
                self._activity[first, kind] += count
        else:
            began_ms, span_ms = self.began_ms, self.span_ms
            spans = [(at_ms - began_ms) // span_ms for at_ms in times]
            self._activity.update(zip(spans, run.kinds, strict=True))
        self._commits.update(run.commits.group_ids)
        for index, record in run.others.items():
            kind = run.kinds[index]
            if kind == "generation_started":
                self._generation(self._span(times[index]), record.generation_started)
            elif kind == "member_left":
                self._left(self._span(times[index]), record.member_left)
            elif kind in INCREMENTAL_KINDS or kind == "group_converted":
                self._of_incremental(self._span(times[index]), kind, record)
            elif kind == "claim":
                self._claimed(run.position(index), record, times[index - 1] if index else self._last_ms)
            elif kind == "handoff":
                self._handed_off = True
        self._last_ms = times[-1]

    def _span(self, at_ms: int) -> int:
        return (at_ms - self.began_ms) // self.span_ms

    def _began(self, span: int) -> int:
        return self.began_ms + span * self.span_ms

    def _generation(self, span: int, message: records_pb2.GenerationStarted) -> None:
        seen, members, kind = self._groups[message.group_id], len(message.members), message.cause.kind
        self._rebalanced(span, seen, kind)
        if members != seen.members:
            self._members[span, kind] += members - seen.members
            seen.members = members
        if seen.ids:
            seen.ids.clear()

    def _rebalanced(self, span: int, seen: _Seen, cause: int) -> None:
        seen.rebalances += 1
        seen.unexpected += cause in _UNEXPECTED
        seen.last_cause = cause
        self._rebalances[span, cause] += 1

    def _of_incremental(self, span: int, kind: str, record: records_pb2.Record) -> None:
        """Takes a record of an incremental group, or the one that makes a group incremental."""
        if kind == "member_subscribed":
            subscribed = record.member_subscribed
            seen = self._groups[subscribed.group_id]
            seen.ids.add(subscribed.member.member_id)
            self._count_members(span, cause_kind.JOINED, seen)
        elif kind == "member_removed":
            removed = record.member_removed
            seen = self._groups[removed.group_id]
            seen.ids.discard(removed.member_id)
            self._count_members(span, removed.cause.kind, seen)
        elif kind == "instance_moved":
            moved = record.instance_moved
            seen = self._groups[moved.group_id]
            seen.ids.discard(moved.old_member_id)
            seen.ids.add(moved.member.member_id)
            self._count_members(span, cause_kind.STATIC_REPLACED, seen)
        elif kind == "group_converted":
            converted = record.group_converted
            seen = self._groups[converted.group_id]
            seen.ids = {member.member_id for member in converted.members}
            self._count_members(span, converted.cause.kind, seen)
        elif kind == "epoch_raised":
            raised = record.epoch_raised
            self._groups[raised.group_id].raised_for = raised.cause.kind
        elif kind == "target_assigned":
            self._target(span, record.target_assigned)

    def _target(self, span: int, message: incremental_pb2.TargetAssigned) -> None:
        seen = self._groups[message.group_id]
        if seen.raised_for is not None and any(change.gets or change.loses for change in message.changes):
            self._rebalanced(span, seen, seen.raised_for)
            seen.raised_for = None

    def _count_members(self, span: int, cause: int, seen: _Seen) -> None:
        """Members of an incremental group came or went."""
        change = len(seen.ids) - seen.members
        if change:
            self._members[span, cause] += change
            seen.members += change

    def _left(self, span: int, message: records_pb2.MemberLeft) -> None:
        seen = self._groups[message.group_id]
        if seen.members:
            seen.members -= 1
            self._members[span, message.cause.kind] -= 1

    def _claimed(self, position: Position, record: records_pb2.Record, before_ms: int) -> None:
        now_ms, owner = record.written_at_ms, record.claim.node_id
        unowned_ms = max(now_ms - before_ms, 0) if self._owners else 0
        session = record.claim.session
        self._owners.append(
            Owned(
                self.shard,
                position.epoch,
                now_ms,
                owner,
                self._handed_off,
                unowned_ms,
                session,
                self._session,
            )
        )
        self._handed_off, self._session = False, session

    def facts(self, groups: Mapping[str, Group]) -> Iterator[Fact]:
        """What was seen.

        Args:
            groups: as the replay left them.
        """
        for (span, kind), count in self._activity.items():
            yield Activity(self.shard, self._began(span), kind or "unknown", count)
        for key in self._rebalances.keys() | self._members.keys():
            span, cause = key
            words = cause_in_words(cause)
            at_ms = self._began(span)
            yield Rebalances(self.shard, at_ms, words, self._rebalances[key], self._members[key])
        yield from self._owners
        for group_id in sorted(self._groups.keys() | self._commits.keys()):
            seen, group = self._groups[group_id], groups.get(group_id)
            incremental = None if group is None else group.incremental
            yield GroupSeen(
                self.shard,
                group_id,
                "" if group is None else "classic" if incremental is None else "incremental",
                "gone" if group is None else _state_in_words(group),
                0 if group is None else group.generation,
                0 if group is None else len(group.members if incremental is None else incremental.members),
                0 if group is None else len(group.offsets),
                seen.rebalances,
                seen.unexpected,
                self._commits[group_id],
                "" if seen.last_cause is None else cause_in_words(seen.last_cause),
            )


def _state_in_words(group: Group) -> str:
    """The state of a group of either kind, as reports name it: `completing rebalance`."""
    state = group.state if group.incremental is None else group.incremental.state
    return state.name.lower().replace("_", " ")
