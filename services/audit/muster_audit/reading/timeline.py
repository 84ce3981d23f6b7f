"""The history in a log: who owned it, which groups rebalanced and why, what was written when."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from muster_core.log.record_run import RecordRun
from muster_core.position import Position
from muster_core.protocol import causes
from muster_core.state.group import Group
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_audit.reading.facts import Activity, Fact, GroupSeen, Owned, Rebalances

_PREFIX = "REBALANCE_CAUSE_KIND_"
_UNEXPECTED = {causes.SESSION_EXPIRED, causes.DISCONNECTED, causes.REBALANCE_TIMEOUT}


def cause_in_words(kind: int) -> str:
    """A cause as reports name it: `member joined`."""
    try:
        name = common_pb2.RebalanceCauseKind.Name(kind)  # type: ignore[arg-type]
    except ValueError:
        return f"cause {kind}"
    return name.removeprefix(_PREFIX).replace("_", " ").lower()


@dataclass(slots=True)
class _Seen:
    members: int = 0
    rebalances: int = 0
    unexpected: int = 0
    last_cause: int | None = None


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
            self._activity.update(
                (self._span(at_ms), kind) for at_ms, kind in zip(times, run.kinds, strict=True)
            )
        self._commits.update(run.commits.group_ids)
        for index, record in run.others.items():
            kind = run.kinds[index]
            if kind == "generation_started":
                self._generation(self._span(times[index]), record.generation_started)
            elif kind == "member_left":
                self._left(self._span(times[index]), record.member_left)
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
        seen.rebalances += 1
        seen.unexpected += kind in _UNEXPECTED
        seen.last_cause = kind
        self._rebalances[span, kind] += 1
        self._members[span, kind] += members - seen.members
        seen.members = members

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
            yield GroupSeen(
                self.shard,
                group_id,
                "gone" if group is None else group.state.name.lower().replace("_", " "),
                0 if group is None else group.generation,
                0 if group is None else len(group.members),
                0 if group is None else len(group.offsets),
                seen.rebalances,
                seen.unexpected,
                self._commits[group_id],
                "" if seen.last_cause is None else cause_in_words(seen.last_cause),
            )
