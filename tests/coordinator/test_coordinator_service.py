"""A coordinator over gRPC, on metadata in memory."""

import asyncio
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import SHARDS, MemoryCluster, group_of, owns
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2 as pb
from support.metadata_stand_in import until


async def test_a_member_joins_syncs_beats_commits_and_fetches(cluster: MemoryCluster) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller, group = cluster.caller(coordinator), group_of(1)

    joined = await caller.join(group)
    assert joined.error_code == error_code.NONE
    assert joined.generation == 1
    assert joined.shard_epoch == 1
    assert len(cluster.store.records(1, "generation_started")) == 1
    assert cluster.store.records(1, "generation_started")[0].members[0].host == "127.0.0.1"
    synced = await caller.sync(group, joined)
    assert synced.assignment == b"a"
    assert len(cluster.store.records(1, "assignment_committed")) == 1
    assert (await caller.heartbeat(group, joined)).error_code == error_code.NONE
    assert await caller.commit(group, 42, joined) == error_code.NONE
    assert await caller.fetch(group) == [(error_code.NONE, 42)]


async def test_fetches_pass_a_barrier_and_a_deposed_owner_does_not_answer_with_old_offsets(
    cluster: MemoryCluster,
) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller, group = cluster.caller(coordinator), group_of(2)
    assert await caller.commit(group, 1) == error_code.NONE
    checks = cluster.store.steps["check"]
    assert await caller.fetch(group) == [(error_code.NONE, 1)]
    assert cluster.store.steps["check"] == checks + 1

    cluster.store.fence(2)
    [(code, offset)] = await caller.fetch(group)
    assert code in (error_code.NOT_COORDINATOR, error_code.COORDINATOR_NOT_AVAILABLE)
    assert offset == -2


async def test_batches_are_split_by_shard_and_answered_in_their_order(cluster: MemoryCluster) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller = cluster.caller(coordinator)
    groups = [group_of(3), group_of(0), group_of(3, 1), group_of(1), group_of(0, 1)]
    for offset, group in enumerate(groups):
        assert await caller.commit(group, offset) == error_code.NONE
    assert await caller.fetch(*groups) == [(error_code.NONE, offset) for offset in range(5)]
    described = await caller.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=groups))
    assert [group.group_id for group in described.groups] == groups
    listed = await caller.stub.ListGroups(pb.ListGroupsRequest())
    assert [group.group_id for group in listed.groups] == sorted(groups)
    deleted = await caller.stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=[*groups, groups[0]]))
    assert [(result.group_id, result.error_code) for result in deleted.results] == [(g, 0) for g in groups]
    assert not (await caller.stub.ListGroups(pb.ListGroupsRequest())).groups


async def test_bad_requests_are_refused_and_write_nothing(cluster: MemoryCluster) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller = cluster.caller(coordinator)
    entries = [len(log) for log in cluster.store.logs]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await caller.join("x" * 256)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(caught.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(bytes(trailers["grpc-status-details-bin"]))
    bad = error_details_pb2.BadRequest()
    status.details[0].Unpack(bad)
    assert [violation.field for violation in bad.field_violations] == ["group_id"]

    assert (await caller.join("")).error_code == error_code.INVALID_GROUP_ID
    with pytest.raises(grpc.aio.AioRpcError, match="server_assignor") as caught:
        await caller.join(group_of(1), server_assignor="range")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    garbage: Any = caller.channel.unary_unary("/muster.v1.GroupCoordinatorService/JoinGroup")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await garbage(b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert [len(log) for log in cluster.store.logs] == entries


async def test_answers_for_a_shard_that_lives_elsewhere_name_its_owner(cluster: MemoryCluster) -> None:
    first = await cluster.add("a", settle_ms=3_600_000)
    await owns(first, SHARDS)
    second = await cluster.add("b", settle_ms=3_600_000)
    caller = cluster.caller(second)
    answer = pb.HeartbeatResponse()
    async with asyncio.timeout(20):
        while answer.error_code != error_code.NOT_COORDINATOR:
            answer = await caller.stub.Heartbeat(pb.HeartbeatRequest(group_id=group_of(0), member_id="m"))
    assert answer.coordinator.node_id == "a"
    assert (answer.coordinator.host, answer.coordinator.port) == ("127.0.0.1", first.port)
    assert answer.coordinator.shard == 0
    assert answer.shard_epoch == answer.coordinator.shard_epoch == 1


async def test_a_call_that_its_client_cancels_is_unparked(cluster: MemoryCluster) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller, group = cluster.caller(coordinator), group_of(1)
    for_long: dict[str, Any] = {
        "session_timeout_ms": 600_000,
        "rebalance_timeout_ms": 600_000,
    }  # or time would end the call
    joined = await caller.join(group, **for_long)
    await caller.sync(group, joined)
    parked = asyncio.ensure_future(caller.join(group, **for_long))

    async def state() -> int:
        answer = await caller.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[group]))
        return int(answer.groups[0].state)

    async with asyncio.timeout(20):
        while await state() != pb.GROUP_STATE_PREPARING_REBALANCE:
            pass
    shard = coordinator.shards[1]
    await until(lambda: shard.open_calls == 1)
    parked.cancel()
    await until(lambda: shard.open_calls == 0)


async def test_health_serves_once_the_lease_is_held(cluster: MemoryCluster) -> None:
    cluster.store.stopped = True
    starting = asyncio.ensure_future(cluster.add("a"))
    await until(lambda: bool(cluster.running) and cluster.running[0].port > 0)
    caller = cluster.caller(cluster.running[0])
    health = health_pb2_grpc.HealthStub(caller.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = await caller.stub.Heartbeat(pb.HeartbeatRequest(group_id="g", member_id="m"))
    assert refused.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.store.stopped = False
    await starting
    async with asyncio.timeout(20):
        while answer.status != health_pb2.HealthCheckResponse.SERVING:
            answer = await health.Check(health_pb2.HealthCheckRequest())


async def test_changed_topics_reach_the_groups(cluster: MemoryCluster) -> None:
    cluster.store.catalog.topics.add(name="t", partitions=3)
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller, group = cluster.caller(coordinator), group_of(1)
    assert await caller.commit(group, 5) == error_code.NONE
    del cluster.store.catalog.topics[:]
    cluster.store.catalog.version.offset = 2
    cluster.store.changed()
    await until(lambda: len(cluster.store.records(1, "offset_tombstone")) == 1)
    assert cluster.store.records(1, "offset_tombstone")[0].reason == "topic_deleted"
