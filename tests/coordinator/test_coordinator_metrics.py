import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import prod
from typing import Any, get_args

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, group_of, owns
from coordinator.session_client import Session
from kit.scrape import Scrape, scrape
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.log.watch import Watches
from muster_coordinator.settings import CoordinatorSettings, GroupSettings, SessionSettings
from muster_coordinator.telemetry import metrics
from muster_coordinator.telemetry.group_watch import GroupTally, GroupWatch
from muster_coordinator.telemetry.measures import CallTally
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Append, GroupResponse
from muster_core.shard import Shard
from muster_protos.limits import PARKED_PREFIX
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2, session_pb2
from muster_runtime.addresses import Address, parse_addresses
from muster_runtime.telemetry import TelemetrySettings
from muster_runtime.telemetry.process_telemetry import ProcessTelemetry

pytestmark = pytest.mark.cluster

SERIES_MAX = 1_800


class Counted:
    """A coordinator that serves its metrics.

    Args:
        coordinator: it.
        port: where it serves them.
    """

    def __init__(self, coordinator: Coordinator, port: int) -> None:
        self.coordinator = coordinator
        self.caller = Caller(coordinator)
        self.port = port

    async def read(self) -> Scrape:
        return await scrape(self.port)

    async def read_until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """Waits until something can be read."""

        async def read() -> Scrape | None:
            numbers = await self.read()
            return numbers if holds(numbers) else None

        return await until(read, "the numbers")


@asynccontextmanager
async def counted(
    cluster: MemoryCluster, session: SessionSettings | None = None, **limits: Any
) -> AsyncIterator[Counted]:
    listen = Address("127.0.0.1", 0)
    telemetry = ProcessTelemetry(
        TelemetrySettings(prometheus_listen=listen, collect_timeout_ms=20_000), ["coordinator"], "1", "a"
    )
    port = await telemetry.start()
    coordinator = Coordinator(
        CoordinatorSettings(listen=listen, node_id="a", metadata=parse_addresses(",".join(cluster.metadata))),
        group=GroupSettings(initial_rebalance_delay_ms=0, min_session_timeout_ms=500, **limits),
        session=session,
        telemetry=telemetry,
    )
    await coordinator.start()
    counted = Counted(coordinator, port)
    try:
        await owns(coordinator, SHARDS)
        yield counted
    finally:
        await counted.caller.close()
        await coordinator.abort()
        await telemetry.stop()


async def test_rebalances_are_counted_by_cause_with_their_duration(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        caller = one.caller
        first = await caller.join(group_id)
        assert (await caller.sync(group_id, first)).error_code == error_code.NONE
        joining = asyncio.create_task(caller.join(group_id))
        numbers = await one.read_until(
            lambda numbers: (
                numbers.value("muster_groups", state="PreparingRebalance") == 1
                and numbers.value("muster_rebalance_oldest_seconds") > 0
            )
        )
        assert numbers.value("muster_calls_parked", call="JoinGroup") == 1
        again, second = await asyncio.gather(caller.join(group_id, first.member_id), joining)
        syncing = asyncio.create_task(caller.sync(group_id, second if not second.members else again))
        numbers = await one.read_until(
            lambda numbers: numbers.value("muster_calls_parked", call="SyncGroup") == 1
        )
        assert numbers.value("muster_groups", state="CompletingRebalance") == 1
        await caller.sync(group_id, again if again.members else second)
        await syncing
        numbers = await one.read()
        assert numbers.value("muster_rebalances_total", cause="member_joined") == 2
        assert numbers.value("muster_rebalances_total") == 2
        for phase in ("join", "sync", "whole"):
            assert numbers.value("muster_rebalance_duration_seconds_count", phase=phase) == 2
        assert numbers.value("muster_rebalance_failures_total") == 0
        assert numbers.value("muster_rebalance_oldest_seconds") == 0
        assert numbers.value("muster_groups", state="Stable") == 1
        assert numbers.value("muster_members", kind="dynamic") == 2
        assert numbers.value("muster_members_joined_total") == 2
        assert numbers.value("muster_calls_parked") == 0


async def test_expiries_and_leaves_are_counted_by_cause(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        joined = await one.caller.join(group_id, session_timeout_ms=500)
        await one.caller.sync(group_id, joined)
        numbers = await one.read_until(lambda numbers: numbers.value("muster_members_left_total") == 1)
        assert numbers.value("muster_members_left_total", cause="session_expired") == 1
        numbers = await one.read_until(lambda numbers: numbers.value("muster_groups", state="Empty") == 1)
        assert numbers.value("muster_members") == 0
        joined = await one.caller.join(group_id)
        await one.caller.sync(group_id, joined)
        leaving = coordinator_pb2.LeaveGroupRequest(
            group_id=group_id, members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)]
        )
        await one.caller.stub.LeaveGroup(leaving)
        numbers = await one.read_until(lambda numbers: numbers.value("muster_members_left_total") == 2)
        assert numbers.value("muster_members_left_total", cause="member_left") == 1


async def test_generation_without_an_assignment_is_a_failure(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        joined = await one.caller.join(group_id)
        changed = coordinator_pb2.JoinGroupRequest(
            group_id=group_id,
            member_id=joined.member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"changed")],
        )
        again = await one.caller.stub.JoinGroup(changed, timeout=60)
        assert again.generation == joined.generation + 1
        numbers = await one.read()
        assert numbers.value("muster_rebalance_failures_total", reason="no_assignment") == 1
        await one.coordinator.drain_and_stop()
        numbers = await one.read()
        assert numbers.value("muster_rebalance_failures_total", reason="interrupted") == 1


async def test_calls_are_counted_by_code_wherever_they_come_from(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        caller = one.caller
        joined = await caller.join(group_id)
        await caller.sync(group_id, joined)
        await caller.heartbeat(group_id, joined)
        await caller.heartbeat(group_id, coordinator_pb2.JoinGroupResponse(member_id="nobody", generation=1))
        await caller.commit(group_id, 7, joined)
        await caller.commit(group_id, 7, coordinator_pb2.JoinGroupResponse(member_id="nobody", generation=1))
        await caller.fetch(group_id)
        session = await Session(caller.channel).hello()
        await session.attach(group_id, joined)
        await session.beat()
        heartbeat = coordinator_pb2.HeartbeatRequest(
            group_id=group_id, member_id=joined.member_id, generation=joined.generation
        )
        call = session_pb2.Call(call_id=1, heartbeat=heartbeat)
        await session.send(session_pb2.ClientFrame(call=call))
        await session.until(lambda: session.said("reply"))
        numbers = await one.read()
        assert numbers.value("muster_calls_total", call="Heartbeat", code="NONE") == 2
        assert numbers.value("muster_calls_total", call="Heartbeat", code="UNKNOWN_MEMBER_ID") == 1
        assert numbers.value("muster_call_duration_seconds_count", call="OffsetCommit") == 2
        assert numbers.value("muster_calls_total", call="JoinGroup", code="MEMBER_ID_REQUIRED") == 1
        assert numbers.value("muster_calls_total", call="OffsetCommit", code="NONE") == 1
        assert numbers.value("muster_calls_total", call="OffsetCommit", code="UNKNOWN_MEMBER_ID") == 1
        assert numbers.value("muster_calls_total", call="OffsetFetch", code="NONE") == 1
        assert numbers.value("muster_beats_total") == 1
        assert numbers.value("muster_session_streams") == numbers.value("muster_session_members") == 1
        assert numbers.value("muster_session_streams_largest_shard") == 1
        assert numbers.value("muster_session_unread_bytes") == 0
        assert numbers.value("muster_groups_largest_shard") >= 1
        assert (
            numbers.value("muster_offsets_committed_total")
            == numbers.value("muster_partitions_committed")
            == 1
        )
        assert numbers.value("muster_log_step_duration_seconds_count", step="append") > 0
        assert numbers.value("muster_log_records_written_total") >= 3
        assert numbers.value("muster_log_written_bytes_total") > 100
        session.call.cancel()


async def test_what_is_parked_is_counted_and_is_no_progress(cluster: MemoryCluster) -> None:
    async with counted(cluster) as one:
        await one.caller.commit(group_of(0), 7)
        await one.caller.commit(group_of(0), 7, topic=PARKED_PREFIX + "t")
        numbers = await one.read_until(lambda n: n.value("muster_partitions_parked_total") == 1)
        assert numbers.value("muster_offsets_committed_total") == 1


@pytest.mark.brief_lease
async def test_shards_loads_and_lease_are_told(cluster: MemoryCluster) -> None:
    async with counted(cluster) as one:
        numbers = await one.read()
        assert numbers.value("muster_shards", phase="serving") == SHARDS
        assert numbers.value("muster_shard_load_duration_seconds_count") == SHARDS
        assert numbers.value("muster_log_step_duration_seconds_count", step="claim") == SHARDS
        assert 0 < numbers.value("muster_lease_margin_seconds") < 2
        assert numbers.value("muster_coordinators", role="coordinator", state="live") == 1
        assert numbers.value("muster_shards_unowned", role="coordinator") == 0
        await cluster.instances[0].stop()
        numbers = await one.read_until(
            lambda numbers: numbers.value("muster_shards", phase="suspended") == SHARDS
        )
        assert numbers.value("muster_lease_margin_seconds") == 0
        assert numbers.value("muster_lease_lapses_total") == 1
        assert numbers.value("muster_lease_renewals_failed_total") > 0
        assert numbers.value("muster_log_streams_lost_total") > 0
        numbers = await one.read_until(
            lambda numbers: numbers.value("muster_view_age_seconds", role="coordinator") > 0
        )


async def test_what_groups_hold_and_what_is_refused_for_a_limit_is_told(cluster: MemoryCluster) -> None:
    limits = SessionSettings(max_streams=1, max_members=1)
    full, wide = group_of(0), group_of(1)
    async with counted(cluster, limits, max_groups=3, max_bytes=1 << 20) as one:
        caller = one.caller
        first, second = await caller.join(full), await caller.join(wide)
        assert await caller.commit(group_of(2), 1) == error_code.NONE
        numbers = await one.read()
        held_bytes = numbers.value("muster_groups_held_bytes")
        assert 15_000 < held_bytes < 60_000
        assert 5_000 < numbers.value("muster_groups_held_largest_shard_bytes") < held_bytes
        assert numbers.value("muster_limit_refusals_total") == 0
        assert await caller.commit("another", 1) == error_code.COORDINATOR_NOT_AVAILABLE
        topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t")
        for number in range(4_000):
            topic.partitions.add(partition=number, offset=1)
        request = coordinator_pb2.OffsetCommitRequest(group_id=group_of(2), generation=-1, topics=[topic])
        refused = (await caller.stub.OffsetCommit(request, timeout=20)).topics[0].partitions[0]
        assert refused.error_code == error_code.COORDINATOR_NOT_AVAILABLE
        session = await Session(caller.channel).hello()
        assert (await session.attach(full, first)).error_code == error_code.NONE
        assert (await session.attach(wide, second)).error_code == error_code.INVALID_REQUEST
        await Session(caller.channel).end()
        numbers = await one.read()
        names = ("group_max_groups", "group_max_bytes", "session_max_members", "session_max_streams")
        assert [numbers.value("muster_limit_refusals_total", limit=name) for name in names] == [1] * 4
        await session.close()


async def test_every_metric_is_told_by_an_idle_coordinator(cluster: MemoryCluster) -> None:
    async with counted(cluster) as one:
        names = (await one.read()).names
    ends = ("", "_bucket")
    assert [m.name for m in metrics.ALL if not {m.name + end for end in ends} & names] == []


def test_series_are_few_whatever_clients_do() -> None:
    for metric in metrics.ALL:
        combinations = prod(len(values) + 1 for values in metric.labels.values())  # one more for `other`
        assert combinations * (len(metric.bounds) + 3) <= SERIES_MAX, metric.name


def test_every_call_has_a_name() -> None:
    assert set(get_args(GroupResponse)) == set(metrics.CALL_NAMES)
    answers: list[Any] = [kind() for kind in metrics.CALL_NAMES]
    assert len({type(answer) for answer in answers}) == len(answers)


def test_every_answer_is_counted_by_its_code() -> None:
    """One that cannot be is an internal error of a coordinator with metrics, and no call is answered."""
    tally = CallTally()
    for kind in metrics.CALL_NAMES:
        tally.answered(kind(), 0.0)
    described = incremental_pb2.ConsumerGroupDescribeResponse()
    described.groups.add(error_code=error_code.GROUP_ID_NOT_FOUND)
    tally.answered(described, 0.0)
    (family,) = tally.answers.collect()
    found = {
        (sample.labels["call"], sample.labels["code"])
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert found == {
        *((name, "NONE") for name in metrics.CALL_NAMES.values()),
        ("ConsumerGroupDescribe", "GROUP_ID_NOT_FOUND"),
    }


def test_watch_that_fails_has_no_effect_on_others() -> None:
    numbers: list[object] = []

    class Broken(GroupWatch):
        def storing(self, append: Append) -> None:
            raise RuntimeError("broken")

        def stored(self, append_id: int) -> None:
            raise RuntimeError("broken")

    class Whole(GroupWatch):
        def storing(self, append: Append) -> None:
            numbers.append(append.append_id)

        def stored(self, append_id: int) -> None:
            numbers.append(append_id)

    shard, tally = Shard(0, GroupConfig()), GroupTally()
    watches = Watches([kind(shard, tally, lambda: 0) for kind in (Broken, Whole)])
    watches.storing(Append(7, (), ()))
    watches.stored(7)
    assert numbers == [7, 7]
