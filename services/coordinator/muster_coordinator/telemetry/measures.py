"""What a coordinator counts and traces, and what it computes when it is asked."""

import asyncio
import time
from collections import Counter as Count
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from muster_core import error_code
from muster_core.clock import Now
from muster_core.events import GroupRequest, GroupResponse
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2
from muster_runtime.telemetry import Metric, Sample, Source
from muster_runtime.telemetry.instruments import Counter, Histogram

from muster_coordinator.log.log_client import Log, LogClient, Step
from muster_coordinator.log.watch import Watch, Watches
from muster_coordinator.ownership.lease import LeaseKeeper
from muster_coordinator.ownership.ownership import Ownership
from muster_coordinator.session.calls import CallWatch
from muster_coordinator.session.sessions import Sessions
from muster_coordinator.shard.owned_shard import OwnedShard, ShardListener
from muster_coordinator.shard.phase import Phase
from muster_coordinator.telemetry import metrics
from muster_coordinator.telemetry.by_group import NamedGroups, Round
from muster_coordinator.telemetry.group_watch import GroupTally, GroupWatch
from muster_coordinator.telemetry.off import Measures, UnaryHandler

if TYPE_CHECKING:
    from muster_coordinator.telemetry.traces import CoordinatorTraces, StreamTraces

GROUPS_AT_ONCE = 500
"""Groups that are looked at before other work of the loop gets its turn."""

_STEP_NAMES = {
    metadata_pb2.ClaimStep: "claim",
    metadata_pb2.AppendStep: "append",
    metadata_pb2.CheckStep: "check",
    metadata_pb2.SnapshotStep: "snapshot",
    metadata_pb2.TrimStep: "trim",
}
_NOTHING = nullcontext()
_RUNNING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)


_WHERE_CODES_ARE: dict[type[Any], tuple[str, ...]] = {
    coordinator_pb2.OffsetCommitResponse: ("topics", "partitions"),
    coordinator_pb2.OffsetFetchResponse: ("groups",),
    coordinator_pb2.DescribeGroupsResponse: ("groups",),
    coordinator_pb2.DeleteGroupsResponse: ("results",),
    incremental_pb2.ConsumerGroupDescribeResponse: ("groups",),
}
"""Answers without a code of their own: the code of the first of what they are about counts."""


def _code_within(response: Any) -> int:
    for name in _WHERE_CODES_ARE[type(response)]:
        parts = getattr(response, name)
        if not parts:
            return int(getattr(response, "error_code", error_code.NONE))
        response = parts[0]
    code: int = response.error_code
    return code


class CallTally:
    """Answers of the group protocol, counted: this is on the way of every heartbeat."""

    def __init__(self) -> None:
        self.answers = Counter(metrics.CALLS, _call_and_code)
        self.beats = Counter(metrics.BEATS)
        self.durations = Histogram(metrics.CALL_DURATION)
        self.instruments = (self.answers, self.beats, self.durations)

    def answered(self, response: GroupResponse, began: float | None) -> None:
        """Counts an answer.

        Args:
            response: the answer.
            began: when the call began, by `time.perf_counter`; None: nobody asks how long it took.
        """
        kind = type(response)
        answer: Any = response  # most kinds have a code of their own
        code = _code_within(answer) if kind in _WHERE_CODES_ARE else answer.error_code
        self.answers.add((kind, code))
        if began is not None and kind is not coordinator_pb2.HeartbeatResponse:
            self.durations.observe(time.perf_counter() - began, (metrics.CALL_NAMES[kind],))

    def timed(self, answer: UnaryHandler) -> UnaryHandler:
        """Wraps a handler of unary calls so that its answers are counted."""

        async def answer_timed(request: GroupRequest, host: str) -> GroupResponse:
            began = time.perf_counter()
            response = await answer(request, host)
            self.answered(response, began)
            return response

        return answer_timed


def _call_and_code(answer: tuple[type[Any], int]) -> tuple[str, str]:
    kind, code = answer
    return metrics.CALL_NAMES[kind], metrics.code_name(code)


class StreamWatch(CallWatch):
    """Counts and traces the calls of one session stream.

    Args:
        tally: counts answers and beats.
        traces: makes the spans; nobody does if absent.
    """

    def __init__(self, tally: CallTally, traces: "StreamTraces | None") -> None:
        self._tally = tally
        self._traces = traces
        self._began: dict[int, float] = {}
        self.beat = tally.beats.add  # type: ignore[method-assign]  # one call less for each beat

    def starting(
        self, call_id: int, kind: str, request: Any, traceparent: str
    ) -> AbstractContextManager[None]:
        """See `CallWatch`."""
        self._began[call_id] = time.perf_counter()
        if self._traces is None:
            return _NOTHING
        return self._traces.starting(call_id, kind, request, traceparent)

    def answered(self, call_id: int, response: GroupResponse) -> None:
        """See `CallWatch`."""
        self._tally.answered(response, self._began.get(call_id))

    def done(self, call_id: int) -> None:
        """See `CallWatch`."""
        if self._began.pop(call_id, None) is not None and self._traces is not None:
            self._traces.done(call_id)

    def cancel(self) -> None:
        """See `CallWatch`."""
        self._began.clear()
        if self._traces is not None:
            self._traces.cancel()


class MeasuredLog:
    """A log client whose steps are timed.

    Args:
        log: what carries them out.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._durations = Histogram(metrics.LOG_STEP_DURATION)
        self._records = Counter(metrics.LOG_RECORDS)
        self._bytes = Counter(metrics.LOG_BYTES)
        self.instruments = (self._durations, self._records, self._bytes)

    def submit(self, shard: int, step: Step) -> "asyncio.Future[metadata_pb2.LogResult]":
        """See `Log`."""
        future = self._log.submit(shard, step)
        future.add_done_callback(partial(self._done, step, time.perf_counter()))
        return future

    def _done(self, step: Step, began: float, future: "asyncio.Future[metadata_pb2.LogResult]") -> None:
        if future.cancelled():
            return
        self._durations.observe(time.perf_counter() - began, (_STEP_NAMES[type(step)],))
        if (
            isinstance(step, metadata_pb2.AppendStep)
            and future.result().outcome == metadata_pb2.LOG_OUTCOME_OK
        ):
            self._records.add((), len(step.records))
            self._bytes.add((), step.ByteSize())


class CoordinatorMeasures(Measures, Source, ShardListener):
    """The numbers of one coordinator.

    Args:
        log_client: carries out steps on logs.
        now: both clocks.
        traces: makes spans; nobody does if absent.
        max_groups: how many groups are shown by their names.
    """

    metrics: Sequence[Metric] = metrics.ALL

    def __init__(
        self,
        log_client: LogClient,
        now: Callable[[], Now],
        traces: "CoordinatorTraces | None" = None,
        max_groups: int = 0,
    ) -> None:
        log = MeasuredLog(log_client)
        super().__init__(log)
        self._traces = traces
        self._calls = CallTally()
        self._now = now
        self._log_client = log_client
        self._groups = GroupTally()
        self._named = NamedGroups(max_groups)
        self._loads = Histogram(metrics.SHARD_LOAD_DURATION)
        self._loaded = Counter(metrics.SHARD_RECORDS_LOADED)
        self._refusals = Counter(metrics.REFUSALS)
        self._unproven = Counter(metrics.UNPROVEN)
        self._looked_at: tuple[Ownership, LeaseKeeper, Sessions] | None = None
        self.instruments = (
            *self._calls.instruments,
            *log.instruments,
            *self._groups.instruments,
            self._loads,
            self._loaded,
            self._refusals,
            self._unproven,
        )

    def attach(self, ownership: Ownership, lease: LeaseKeeper, sessions: Sessions) -> None:
        """See `Measures`."""
        self._looked_at = ownership, lease, sessions
        ownership.listen(self)

    def watch(self, core: Shard) -> Watch:
        """See `Measures`."""
        watches: list[Watch] = [GroupWatch(core, self._groups, lambda: self._now().wall_ms)]
        if self._traces is not None:
            watches.append(self._traces.watch(core))
        return Watches(watches)

    def refused(self, limit: str) -> None:
        """See `Measures`."""
        self._refusals.add((limit,))

    def unproven(self) -> None:
        """See `Measures`."""
        self._unproven.add()

    def of_stream(self) -> CallWatch:
        """See `Measures`."""
        return StreamWatch(self._calls, None if self._traces is None else self._traces.of_stream())

    def answering(self, answer: UnaryHandler) -> UnaryHandler:
        """See `Measures`; joins are known to the rebalance that they wait for."""
        return self._calls.timed(answer if self._traces is None else self._traces.noting(answer))

    def changed(self, shard: OwnedShard) -> None:
        """Counts loads: see `ShardListener`."""
        if shard.phase is Phase.SERVING:
            self._loads.observe(shard.load_ms / 1000)
            self._loaded.add((), shard.loaded_records)

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        samples = [
            Sample(metrics.LOG_REPEATS, self._log_client.repeats),
            Sample(metrics.LOG_STREAMS_LOST, self._log_client.streams_lost),
        ]
        if self._looked_at is not None:
            ownership, lease, sessions = self._looked_at
            shards = tuple(ownership.shards.values())
            samples += self._of_lease(lease)
            samples += _of_shards(shards)
            samples += await _of_groups(shards, self._now, self._named.round())
            samples.append(Sample(metrics.CORE_FAILURES, ownership.core_failures))
            samples.append(Sample(metrics.SESSION_STREAMS, len(sessions)))
            samples.append(Sample(metrics.SESSION_MEMBERS, sessions.members))
            samples.append(Sample(metrics.SESSION_UNREAD, sessions.queued_bytes))
        return samples

    def _of_lease(self, lease: LeaseKeeper) -> list[Sample]:
        return [
            Sample(metrics.LEASE_MARGIN, lease.margin_ms(self._now().boot_ms) / 1000),
            Sample(metrics.LEASE_LAPSES, lease.lapses),
            Sample(metrics.LEASE_FAILURES, lease.failed_renewals),
        ]


def _of_shards(shards: Sequence[OwnedShard]) -> list[Sample]:
    phases = Count(
        metrics.SUSPENDED if shard.suspended else metrics.PHASES[shard.phase]
        for shard in shards
        if shard.phase in metrics.PHASES
    )
    quarantined = sum(len(shard.core.quarantine.groups) for shard in shards if shard.core is not None)
    calls = Count(type(request).__name__ for shard in shards for request in shard.open_requests())
    cores = [shard.core for shard in shards if shard.core is not None]
    return [
        Sample(metrics.GROUPS_OF_A_SHARD, max((len(core.groups) for core in cores), default=0)),
        Sample(metrics.HELD, sum(core.held_bytes for core in cores)),
        Sample(metrics.HELD_BY_A_SHARD, max((core.held_bytes for core in cores), default=0)),
        Sample(metrics.SESSION_STREAMS_OF_A_SHARD, max((core.streams for core in cores), default=0)),
        Sample(metrics.GROUPS_QUARANTINED, quarantined),
        *(
            Sample(metrics.SHARDS, phases[name], (name,))
            for name in (*metrics.PHASES.values(), metrics.SUSPENDED)
        ),
        *(
            Sample(metrics.CALLS_PARKED, calls[f"{name}Request"], (name,))
            for name in metrics.CALL_NAMES.values()
        ),
    ]


async def _of_groups(shards: Sequence[OwnedShard], now: Callable[[], Now], single: Round) -> list[Sample]:
    """Looks at all groups, some hundred at a time, so that a scrape delays no heartbeat."""
    states: Count[str] = Count()
    static = members = pending = assigned = committed = 0
    oldest_ms: int | None = None
    for shard in shards:
        groups: Sequence[Group] = () if shard.core is None else tuple(shard.core.groups.values())
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            for group in groups[first : first + GROUPS_AT_ONCE]:
                await single.see(group)
                incremental = None if group.members else group.incremental
                states[(group.state if incremental is None else incremental.state).value] += 1
                members += len(group.members)
                static += len(group.static_members)
                pending += len(group.pending_members)
                assigned += len(group.owners)
                if incremental is not None:
                    members += len(incremental.members)
                    static += len(incremental.statics)
                    assigned += len(incremental.owners)
                committed += len(group.offsets)
                if group.state in _RUNNING:
                    since_ms = group.state_since_ms
                    oldest_ms = since_ms if oldest_ms is None else min(oldest_ms, since_ms)
            await asyncio.sleep(0)
    age_ms = 0 if oldest_ms is None else max(now().wall_ms - oldest_ms, 0)
    return [
        *(Sample(metrics.GROUPS, states[state], (state,)) for state in metrics.STATES),
        Sample(metrics.MEMBERS, members - static, ("dynamic",)),
        Sample(metrics.MEMBERS, static, ("static",)),
        Sample(metrics.MEMBERS_PENDING, pending),
        Sample(metrics.PARTITIONS_ASSIGNED, assigned),
        Sample(metrics.PARTITIONS_COMMITTED, committed),
        Sample(metrics.REBALANCE_OLDEST, age_ms / 1000),
        *single.samples(now().wall_ms),
    ]
