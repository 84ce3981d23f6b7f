"""What a log tells of its times: who owned it, which groups rebalanced and why, what was written when."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from muster_core import causes
from muster_core.group import Group
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_audit.facts import Activity, Fact, GroupSeen, Owned, Rebalances

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
    commits: int = 0
    last_cause: str = ""


@dataclass(slots=True)
class Timeline:
    """Watches the records of one log.

    Args:
        shard: number of the log.
        span_ms: width of the spans of time that are counted together.
    """

    shard: int
    span_ms: int
    _activity: Counter[tuple[int, str]] = field(default_factory=Counter)
    _rebalances: Counter[tuple[int, str]] = field(default_factory=Counter)
    _members: Counter[tuple[int, str]] = field(default_factory=Counter)
    _owners: list[Owned] = field(default_factory=list)
    _groups: defaultdict[str, _Seen] = field(default_factory=lambda: defaultdict(_Seen))
    _last_ms: int = 0
    _handed_off: bool = False

    def watch(self, position: Position, kind: str, record: records_pb2.Record) -> None:
        """Takes the next record."""
        now_ms = record.written_at_ms
        span = now_ms - now_ms % self.span_ms
        self._activity[span, kind] += 1
        if kind == "offset_committed":
            self._groups[record.offset_committed.group_id].commits += 1
        elif kind == "generation_started":
            self._generation(span, record.generation_started)
        elif kind == "member_left":
            self._left(span, record.member_left)
        elif kind == "claim":
            self._claimed(position, now_ms, record.claim)
        elif kind == "handoff":
            self._handed_off = True
        self._last_ms = now_ms

    def _generation(self, span: int, message: records_pb2.GenerationStarted) -> None:
        seen = self._groups[message.group_id]
        cause = cause_in_words(message.cause.kind)
        seen.rebalances += 1
        seen.unexpected += message.cause.kind in _UNEXPECTED
        seen.last_cause = cause
        self._rebalances[span, cause] += 1
        self._members[span, cause] += len(message.members) - seen.members
        seen.members = len(message.members)

    def _left(self, span: int, message: records_pb2.MemberLeft) -> None:
        seen = self._groups[message.group_id]
        if seen.members:
            seen.members -= 1
            self._members[span, cause_in_words(message.cause.kind)] -= 1

    def _claimed(self, position: Position, now_ms: int, claim: records_pb2.Claim) -> None:
        unowned_ms = max(now_ms - self._last_ms, 0) if self._owners else 0
        self._owners.append(
            Owned(self.shard, position.epoch, now_ms, claim.node_id, self._handed_off, unowned_ms)
        )
        self._handed_off = False

    def facts(self, groups: Mapping[str, Group]) -> Iterator[Fact]:
        """What was seen.

        Args:
            groups: as the replay left them.
        """
        for (span, kind), count in self._activity.items():
            yield Activity(self.shard, span, kind or "unknown", count)
        for key in self._rebalances.keys() | self._members.keys():
            yield Rebalances(self.shard, *key, self._rebalances[key], self._members[key])
        yield from self._owners
        for group_id, seen in self._groups.items():
            group = groups.get(group_id)
            yield GroupSeen(
                self.shard,
                group_id,
                "gone" if group is None else group.state.name.lower().replace("_", " "),
                0 if group is None else group.generation,
                0 if group is None else len(group.members),
                0 if group is None else len(group.offsets),
                seen.rebalances,
                seen.unexpected,
                seen.commits,
                seen.last_cause,
            )
