"""Two coordinators and the loss of one, of the lease, or of the log; on metadata in memory."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, group_of, owns
from kit.waiting import until, until_equal
from muster_coordinator import coordinator as parts
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.ownership.ownership import OwnershipPace
from muster_core import error_code
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster


async def stable(caller: Caller, group: str) -> coordinator_pb2.JoinGroupResponse:
    """A group of one member, stable, with a commit."""
    joined = await caller.join(group)
    assert (await caller.sync(group, joined)).error_code == error_code.NONE
    assert await caller.commit(group, 7, joined) == error_code.NONE
    return joined


async def generations(cluster: MemoryCluster, shard: int) -> int:
    return len(cluster.store.records(shard, "generation_started"))


async def claimed_again(coordinator: Coordinator, shard: int, epoch: int) -> None:
    await until(lambda: coordinator.serving.get(shard, 0) > epoch)


@pytest.mark.brief_lease
async def test_a_shard_that_was_claimed_during_a_suspension_is_dropped(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    shard = only.shards[1]
    cluster.store.stopped = True
    await until(lambda: shard.suspended)
    cluster.store.fence(1)
    cluster.store.stopped = False
    await until_equal(lambda: only.serving.get(1), 3)
    assert only.serving[0] == 1


async def test_an_owner_of_a_quiet_shard_finds_out_that_its_claim_stands_no_more(
    cluster: MemoryCluster,
) -> None:
    """A claimant took a promise and died: without this nobody would claim before somebody writes."""
    only = await cluster.add("a", quiet_log_ms=100)
    await owns(only, SHARDS)
    cluster.store.fence(1)
    await claimed_again(only, 1, 2)


@pytest.mark.brief_lease
async def test_a_drain_without_a_lease_does_not_wait_for_successors(cluster: MemoryCluster) -> None:
    first = await cluster.add("a", drain_limit_ms=600_000)
    await owns(first, SHARDS)
    await cluster.add("b", settle_ms=3_600_000)
    cluster.store.stopped = True
    await until(lambda: first.shards[1].suspended)
    await asyncio.wait_for(first.drain_and_stop(), 60)


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
    described = await caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=mixed))
    assert [(group.group_id, group.error_code) for group in described.groups] == [
        (group_of(2), error_code.NONE),
        (group_of(1), error_code.COORDINATOR_NOT_AVAILABLE),
    ]
    listed = await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest())
    assert listed.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert [group.group_id for group in listed.groups] == [group_of(2)]


async def test_a_shard_whose_log_is_out_of_reach_holds_up_no_others(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one claim at a time, and that of the first shard does not end."""
    step = cluster.store.step

    def unreached(call: metadata_pb2.LogCall) -> metadata_pb2.LogResult:
        if call.shard == 0:
            return cluster.store.result(call, metadata_pb2.LOG_OUTCOME_UNKNOWN)
        return step(call)

    monkeypatch.setattr(cluster.store, "step", unreached)
    monkeypatch.setattr(parts, "OwnershipPace", partial(OwnershipPace, stuck_ms=300))
    only = await cluster.add("a", moves_max=1)
    await owns(only, SHARDS - 1)
    assert only.shards[0].phase.value == "claiming"
    monkeypatch.setattr(cluster.store, "step", step)
    await owns(only, SHARDS)


@pytest.mark.row("LD-23")
@pytest.mark.row("UL-05")
async def test_news_of_an_older_epoch_changes_nothing(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group = cluster.caller(only), group_of(1)
    cluster.store.fence(1)
    assert await caller.commit(group, 9) != error_code.NONE
    await until_equal(lambda: only.serving.get(1), 3)
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

    async def slow(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.shard < SHARDS:
            await go_on.wait()
        async for page in read(self, request, context):
            yield page

    await cluster.stop()
    monkeypatch.setattr(type(cluster.instances[0]), "ReadLog", slow)
    cluster.metadata.clear()
    await cluster.start()
    only = await cluster.add("a", load_wait_ms=0)
    shards = only.shards
    await until(lambda: 1 in shards and shards[1].phase.value == "loading")
    caller, group = cluster.caller(only), group_of(1)
    joined = coordinator_pb2.JoinGroupResponse(member_id="m", generation=1)
    assert (await caller.join(group)).error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert (await caller.sync(group, joined)).error_code == error_code.REBALANCE_IN_PROGRESS
    assert (await caller.heartbeat(group, joined)).error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert await caller.commit(group, 1) == error_code.COORDINATOR_LOAD_IN_PROGRESS
    assert await caller.fetch(group) == [(error_code.COORDINATOR_LOAD_IN_PROGRESS, -2)]
    listed = await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest())
    assert listed.error_code == error_code.COORDINATOR_LOAD_IN_PROGRESS
    go_on.set()
    await owns(only, SHARDS)
    assert (await caller.join(group)).error_code == error_code.NONE
