"""Two coordinators and the loss of one, of the lease, or of the log; on metadata in memory."""

import asyncio
import os

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, group_of, owns
from muster_coordinator import Coordinator
from muster_core import error_code
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_protos.muster.v1 import discovery_pb2
from support.metadata_stand_in import until


async def stable(caller: Caller, group: str) -> pb.JoinGroupResponse:
    """A group of one member, stable, with a commit."""
    joined = await caller.join(group)
    assert (await caller.sync(group, joined)).error_code == error_code.NONE
    assert await caller.commit(group, 7, joined) == error_code.NONE
    return joined


async def generations(cluster: MemoryCluster, shard: int) -> int:
    return len(cluster.store.records(shard, "generation_started"))


async def claimed_again(coordinator: Coordinator, shard: int, epoch: int) -> None:
    await until(lambda: coordinator.serving.get(shard, 0) > epoch)


async def test_a_killed_owner_is_replaced_and_members_notice_nothing(cluster: MemoryCluster) -> None:
    first = await cluster.add("a", settle_ms=3_600_000)
    await owns(first, SHARDS)
    second = await cluster.add("b", settle_ms=3_600_000)
    group = group_of(1)
    joined = await stable(cluster.caller(first), group)
    await first.abort()
    await owns(second, SHARDS)
    caller = cluster.caller(second)
    beat = await caller.heartbeat(group, joined)
    assert beat.error_code == error_code.NONE
    assert beat.shard_epoch == 2
    assert await caller.fetch(group) == [(error_code.NONE, 7)]
    assert await caller.commit(group, 8, joined) == error_code.NONE
    assert await generations(cluster, 1) == 1


async def test_a_drained_owner_hands_over_without_a_rebalance(cluster: MemoryCluster) -> None:
    first = await cluster.add("a", settle_ms=3_600_000)
    await owns(first, SHARDS)
    group = group_of(1)
    caller = cluster.caller(first)
    joined = await stable(caller, group)
    parked = asyncio.ensure_future(caller.join(group))
    shard = first.shards[1]
    await until(lambda: shard.open_calls == 1)
    second = await cluster.add("b", settle_ms=3_600_000)
    parts = first._parts
    assert parts is not None
    await until(lambda: parts.view.node("b") is not None)  # else there is nobody to hand over to
    await first.drain_and_stop()
    await owns(second, SHARDS)
    moved = await parked
    assert moved.error_code == error_code.NOT_COORDINATOR
    assert (moved.coordinator.node_id, moved.coordinator.port) == ("b", second.port)
    for number in range(SHARDS):
        [handoff] = cluster.store.records(number, "handoff")
        assert (handoff.node_id, handoff.successor) == ("a", "b")
    beat = await cluster.caller(second).heartbeat(group, joined)
    assert beat.error_code in (error_code.NONE, error_code.REBALANCE_IN_PROGRESS)
    assert await generations(cluster, 1) == 1
    assert "a" not in cluster.store.nodes


async def test_a_drained_owner_without_a_successor_releases_what_it_has(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    await only.drain_and_stop()
    assert [len(cluster.store.records(shard, "handoff")) for shard in range(SHARDS)] == [1] * SHARDS
    assert cluster.store.nodes == {}
    again = await cluster.add("a2")
    await owns(again, SHARDS)


async def test_shards_move_for_balance_once_the_live_set_is_settled(cluster: MemoryCluster) -> None:
    first = await cluster.add("a")
    await owns(first, SHARDS)
    group = group_of(1)
    joined = await stable(cluster.caller(first), group)
    second = await cluster.add("b")
    await until(lambda: len(first.serving) + len(second.serving) == SHARDS and len(second.serving) > 0)
    owner = first if 1 in first.serving else second
    caller = cluster.caller(owner)
    assert (await caller.heartbeat(group, joined)).error_code == error_code.NONE
    assert await generations(cluster, 1) == 1


@pytest.mark.row("PT-27")
async def test_a_foreign_claim_makes_the_owner_drop_the_shard_and_claim_it_again(
    cluster: MemoryCluster,
) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group = cluster.caller(only), group_of(1)
    joined = await stable(caller, group)
    cluster.store.fence(1)
    assert await caller.commit(group, 9, joined) != error_code.NONE
    await until(lambda: only.serving.get(1) == 3)
    assert await caller.fetch(group) == [(error_code.NONE, 7)]
    assert (await caller.heartbeat(group, joined)).error_code == error_code.NONE


async def test_suspends_at_its_own_deadline_and_resumes_with_its_state(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group = cluster.caller(only), group_of(1)
    joined = await stable(caller, group)
    parked = asyncio.ensure_future(caller.join(group))
    shard = only.shards[1]
    await until(lambda: shard.open_calls == 1)
    cluster.store.stopped = True
    assert (await caller.heartbeat(group, joined)).error_code in (
        error_code.NONE,
        error_code.REBALANCE_IN_PROGRESS,
    )
    assert (await parked).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert shard.suspended
    assert (await caller.heartbeat(group, joined)).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert await caller.commit(group, 8, joined) == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.store.stopped = False
    await until(lambda: not shard.suspended)
    assert only.serving[1] == 1
    assert (await caller.heartbeat(group, joined)).error_code in (
        error_code.NONE,
        error_code.REBALANCE_IN_PROGRESS,
    )
    assert await caller.fetch(group) == [(error_code.NONE, 7)]


async def test_a_shard_that_was_claimed_during_a_suspension_is_dropped(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    shard = only.shards[1]
    cluster.store.stopped = True
    await until(lambda: shard.suspended)
    cluster.store.fence(1)
    cluster.store.stopped = False
    await until(lambda: only.serving.get(1) == 3)
    assert only.serving[0] == 1


@pytest.mark.row("LD-30")
@pytest.mark.row("LD-31")
@pytest.mark.row("OF-10")
@pytest.mark.row("LS-08")
@pytest.mark.row("DG-05")
async def test_a_damaged_log_is_never_served_as_empty(cluster: MemoryCluster) -> None:
    log = cluster.store.logs[1]
    store = cluster.store
    record = records_pb2.Record(claim=records_pb2.Claim(node_id="x", previous=log[-1].position))
    store.write(log, Position(1, 2), record.SerializeToString(), os.urandom(16))
    store.promises[1] = (1, os.urandom(16))
    log[-1].hash = bytes(32)
    only = await cluster.add("a")
    await owns(only, SHARDS - 1)
    shards = only.shards
    await until(lambda: 1 in shards and shards[1].phase.value == "failed")
    caller = cluster.caller(only)
    assert await caller.fetch(group_of(1)) == [(error_code.COORDINATOR_NOT_AVAILABLE, -2)]
    assert await caller.commit(group_of(1), 1) == error_code.COORDINATOR_NOT_AVAILABLE
    assert await caller.commit(group_of(2), 1) == error_code.NONE
    mixed = [group_of(2), group_of(1)]
    assert await caller.fetch(*mixed) == [(error_code.NONE, 1), (error_code.COORDINATOR_NOT_AVAILABLE, -2)]
    described = await caller.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=mixed))
    assert [(group.group_id, group.error_code) for group in described.groups] == [
        (group_of(2), error_code.NONE),
        (group_of(1), error_code.COORDINATOR_NOT_AVAILABLE),
    ]
    listed = await caller.stub.ListGroups(pb.ListGroupsRequest())
    assert listed.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert [group.group_id for group in listed.groups] == [group_of(2)]


@pytest.mark.row("LD-23")
@pytest.mark.row("UL-05")
async def test_news_of_an_older_epoch_changes_nothing(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group = cluster.caller(only), group_of(1)
    cluster.store.fence(1)
    assert await caller.commit(group, 9) != error_code.NONE
    await until(lambda: only.serving.get(1) == 3)
    joined = await caller.join(group)
    assert joined.error_code == error_code.NONE
    shard, served = only.shards[1], only.serving[1]
    for older in (served - 1, served):
        other = only.serving[2]
        for number, epoch in ((1, older), (2, other + 1)):
            cluster.store.owners[number] = discovery_pb2.ShardOwner(
                shard=number, shard_epoch=epoch, node_id="another"
            )
        cluster.store.fence(2)
        cluster.store.changed()
        await claimed_again(only, 2, other)  # newer news are looked into
        assert (only.shards[1], only.serving[1]) == (shard, served)
        assert (await caller.heartbeat(group, joined)).error_code == error_code.NONE


@pytest.mark.row("GV-10")
@pytest.mark.row("GV-11")
@pytest.mark.row("GV-13")
@pytest.mark.row("GV-14")
@pytest.mark.row("GV-16")
async def test_a_shard_that_loads_says_so(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()
    read = type(cluster.instances[0]).ReadLog

    async def slow(self: object, request: object, context: object) -> object:
        await go_on.wait()
        async for page in read(self, request, context):  # type: ignore[arg-type]
            yield page

    await cluster.stop()
    monkeypatch.setattr(type(cluster.instances[0]), "ReadLog", slow)
    cluster.metadata.clear()
    await cluster.start()
    only = await cluster.add("a", load_wait_ms=0)
    shards = only.shards
    await until(lambda: 1 in shards and shards[1].phase.value == "loading")
    caller, group = cluster.caller(only), group_of(1)
    joined = pb.JoinGroupResponse(member_id="m", generation=1)
    assert (await caller.join(group)).error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert (await caller.sync(group, joined)).error_code == error_code.REBALANCE_IN_PROGRESS
    assert (await caller.heartbeat(group, joined)).error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert await caller.commit(group, 1) == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert await caller.fetch(group) == [(error_code.COORDINATOR_LOAD_IN_PROGRESS, -2)]
    listed = await caller.stub.ListGroups(pb.ListGroupsRequest())
    assert listed.error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    go_on.set()
    await owns(only, SHARDS)
    assert (await caller.join(group)).error_code == error_code.NONE


async def test_a_second_run_of_the_same_name_supersedes(cluster: MemoryCluster) -> None:
    only: Coordinator = await cluster.add("a")
    await owns(only, SHARDS)
    cluster.store.sessions["a"] = "another run"
    await asyncio.wait_for(only.superseded(), 20)
    answer = await cluster.caller(only).heartbeat(group_of(1), pb.JoinGroupResponse(member_id="m"))
    assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
