"""Watches what the groups of a shard store, and counts rebalances and members by it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from muster_core.events import Append
from muster_core.shard import Shard
from muster_protos.limits import PARKED_PREFIX
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_runtime.telemetry.instruments import Counter, Histogram

from muster_coordinator.telemetry import metrics


class GroupTally:
    """What the groups of all shards did, counted."""

    def __init__(self) -> None:
        self.rebalances = Counter(metrics.REBALANCES)
        self.failures = Counter(metrics.REBALANCE_FAILURES)
        self.durations = Histogram(metrics.REBALANCE_DURATION)
        self.joined = Counter(metrics.MEMBERS_JOINED)
        self.left = Counter(metrics.MEMBERS_LEFT)
        self.committed = Counter(metrics.OFFSETS_COMMITTED)
        self.removed = Counter(metrics.OFFSETS_REMOVED)
        self.parked = Counter(metrics.PARTITIONS_PARKED)

    @property
    def instruments(self) -> tuple[Counter | Histogram, ...]:
        """All of them."""
        return tuple(vars(self).values())


@dataclass(frozen=True, slots=True)
class _Rebalance:
    """A generation that has no stored assignment yet; times are of the wall clock."""

    generation: int
    began_ms: int
    joined_ms: int


class GroupWatch:
    """Is notified of the records of one shard's groups, when they are sent and when they are stored.

    A rebalance is what ends with `GenerationStarted` and is complete with `AssignmentCommitted`: what was not
    stored did not happen.

    Args:
        core: the shard, to be read only.
        tally: where things are counted.
        wall_ms: the wall clock.
    """

    def __init__(self, core: Shard, tally: GroupTally, wall_ms: Callable[[], int]) -> None:
        self._core = core
        self._tally = tally
        self._wall_ms = wall_ms
        self._running: dict[str, _Rebalance] = {}
        self._when_stored: dict[int, list[Callable[[], None]]] = {}

    def storing(self, append: Append) -> None:
        """The core wants records stored; they are not applied yet."""
        steps = [step for record in append.records for step in self._steps(record)]
        if steps:
            self._when_stored[append.append_id] = steps

    def stored(self, append_id: int) -> None:
        """They are on a majority, and about to be applied."""
        for step in self._when_stored.pop(append_id, ()):
            step()

    def sending(self, step: metadata_pb2.AppendStep, append_ids: Sequence[int]) -> None:
        """See `Watch`; steps are timed by `MeasuredLog`."""

    def settled(self) -> None:
        """See `Watch`."""

    def over(self) -> None:
        """The shard is given up."""
        if self._running:
            self._tally.failures.add((metrics.INTERRUPTED,), len(self._running))
            self._running.clear()

    def _steps(self, record: records_pb2.Record) -> Iterator[Callable[[], None]]:
        """What is to be done once a record is stored."""
        match record.WhichOneof("kind"):
            case "offset_committed":
                offsets = record.offset_committed.offsets
                marks = sum([entry.topic.startswith(PARKED_PREFIX) for entry in offsets])
                yield partial(self._tally.committed.add, (), len(offsets) - marks)
                if marks:
                    yield partial(self._tally.parked.add, (), marks)
            case "generation_started":
                yield self._generation(record.generation_started)
            case "assignment_committed":
                yield partial(self._assigned, record.assignment_committed)
            case "member_left":
                cause = metrics.cause_name(record.member_left.cause.kind)
                yield partial(self._tally.left.add, (cause,))
            case "epoch_raised":
                cause = metrics.cause_name(record.epoch_raised.cause.kind)
                yield partial(self._tally.rebalances.add, (cause,))
            case "member_subscribed" if self._is_new(record.member_subscribed):
                yield partial(self._tally.joined.add, (), 1)
            case "member_removed":
                cause = metrics.cause_name(record.member_removed.cause.kind)
                yield partial(self._tally.left.add, (cause,))
            case "offset_tombstone":
                count = sum(len(topic.partitions) for topic in record.offset_tombstone.topics)
                yield partial(self._tally.removed.add, (), count)
            case "group_tombstone" if record.group_tombstone.reason == "deleted":  # others name their offsets
                group = self._core.groups.get(record.group_tombstone.group_id)
                yield partial(self._tally.removed.add, (), 0 if group is None else len(group.offsets))

    def _is_new(self, record: incremental_pb2.MemberSubscribed) -> bool:
        group = self._core.groups.get(record.group_id)
        known = None if group is None else group.incremental
        return known is None or record.member.member_id not in known.members

    def _generation(self, started: records_pb2.GenerationStarted) -> Callable[[], None]:
        group = self._core.groups.get(started.group_id)
        began_ms = self._wall_ms() if group is None else group.state_since_ms
        known = {} if group is None else {key for key, member in group.members.items() if member.recorded}
        staying = {member.member_id for member in started.members}
        return partial(
            self._started, started, began_ms, len(staying.difference(known)), len(set(known) - staying)
        )

    def _started(self, started: records_pb2.GenerationStarted, began_ms: int, new: int, missing: int) -> None:
        tally, now_ms = self._tally, self._wall_ms()
        if self._running.pop(started.group_id, None) is not None:
            tally.failures.add((metrics.NO_ASSIGNMENT,))
        tally.rebalances.add((metrics.cause_name(started.cause.kind),))
        tally.durations.observe((now_ms - began_ms) / 1000, (metrics.JOIN,))
        tally.joined.add((), new)
        if missing:
            tally.left.add((metrics.NOT_REJOINED,), missing)
        if started.members:
            self._running[started.group_id] = _Rebalance(started.generation, began_ms, now_ms)

    def _assigned(self, committed: records_pb2.AssignmentCommitted) -> None:
        running = self._running.get(committed.group_id)
        if running is None or running.generation != committed.generation:
            return  # a leader that assigned anew, or a generation of the owner before
        del self._running[committed.group_id]
        now_ms, durations = self._wall_ms(), self._tally.durations
        durations.observe((now_ms - running.joined_ms) / 1000, (metrics.SYNC,))
        durations.observe((now_ms - running.began_ms) / 1000, (metrics.WHOLE,))
