"""A coordinator over gRPC, on the real metadata service and log."""

import asyncio
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.waiting import until, until_equal
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster


def group(shard: int, number: int = 0) -> str:
    return group_of(shard, number, SHARDS)


async def test_a_member_joins_syncs_beats_commits_and_fetches(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, name = single.caller(coordinator), group(1)

    joined = await caller.join(name)
    assert joined.error_code == error_code.NONE
    assert joined.generation == 1
    assert joined.shard_epoch == 1
    [started] = await single.records(1, "generation_started")
    assert started.members[0].host == "127.0.0.1"
    synced = await caller.sync(name, joined)
    assert synced.assignment == b"a"
    assert len(await single.records(1, "assignment_committed")) == 1
    assert (await caller.heartbeat(name, joined)).error_code == error_code.NONE
    assert await caller.commit(name, 42, joined) == error_code.NONE
    assert await caller.fetch(name) == [(error_code.NONE, 42)]


async def test_fetches_pass_a_barrier_and_a_deposed_owner_does_not_answer_with_old_offsets(
    single: RealCluster,
) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, name = single.caller(coordinator), group(2)
    assert await caller.commit(name, 1) == error_code.NONE
    assert await caller.fetch(name) == [(error_code.NONE, 1)]
    await single.claim(2)
    [(code, offset)] = await caller.fetch(name)
    assert code in (error_code.NOT_COORDINATOR, error_code.COORDINATOR_NOT_AVAILABLE)
    assert offset == -2


async def test_an_owner_whose_lease_is_good_answers_no_offset_behind_one_that_its_successor_has_stored(
    single: RealCluster,
) -> None:
    """Its lease says nothing about the log: another coordinator has claimed it and stored further commits."""
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller = single.caller(coordinator)
    for shard in range(SHARDS):
        name = group(shard)
        assert await caller.commit(name, 1) == error_code.NONE
        newer = (await single.log(shard))[-1]
        newer.offset_committed.offsets[0].offset = 2
        await single.claim(shard, newer)
        [(code, offset)] = await caller.fetch(name)
        assert offset != 1, "an offset was answered that is older than an acknowledged one"
        assert code != error_code.NONE or offset == 2


async def test_batches_are_split_by_shard_and_answered_in_their_order(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller = single.caller(coordinator)
    groups = [group(3), group(0), group(3, 1), group(1), group(0, 1)]
    for offset, name in enumerate(groups):
        assert await caller.commit(name, offset) == error_code.NONE
    assert await caller.fetch(*groups) == [(error_code.NONE, offset) for offset in range(5)]
    described = await caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=groups))
    assert [entry.group_id for entry in described.groups] == groups
    listed = await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest())
    assert [entry.group_id for entry in listed.groups] == sorted(groups)
    deleted = await caller.stub.DeleteGroups(
        coordinator_pb2.DeleteGroupsRequest(group_ids=[*groups, groups[0]])
    )
    assert [(result.group_id, result.error_code) for result in deleted.results] == [(g, 0) for g in groups]
    assert not (await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest())).groups


async def test_bad_requests_are_refused_and_write_nothing(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller = single.caller(coordinator)
    entries = [len(await single.log(shard)) for shard in range(SHARDS)]
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
        await caller.join(group(1), server_assignor="range")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    garbage: Any = caller.channel.unary_unary("/muster.v1.GroupCoordinatorService/JoinGroup")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await garbage(b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert [len(await single.log(shard)) for shard in range(SHARDS)] == entries


async def test_answers_for_a_shard_that_lives_elsewhere_name_its_owner(single: RealCluster) -> None:
    first = await single.add("a", settle_ms=3_600_000)
    await owns(first, SHARDS)
    second = await single.add("b", settle_ms=3_600_000)
    caller = single.caller(second)
    answer = coordinator_pb2.HeartbeatResponse()
    async with asyncio.timeout(60):
        while answer.error_code != error_code.NOT_COORDINATOR:
            answer = await caller.stub.Heartbeat(
                coordinator_pb2.HeartbeatRequest(group_id=group(0), member_id="m")
            )
    assert answer.coordinator.node_id == "a"
    assert (answer.coordinator.host, answer.coordinator.port) == ("127.0.0.1", first.port)
    assert answer.coordinator.shard == 0
    assert answer.shard_epoch == answer.coordinator.shard_epoch == 1


async def test_a_call_that_its_client_cancels_is_unparked(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, name = single.caller(coordinator), group(1)
    # Or time would end the call.
    for_long: dict[str, Any] = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 600_000}
    joined = await caller.join(name, **for_long)
    await caller.sync(name, joined)
    parked = asyncio.ensure_future(caller.join(name, **for_long))

    async def state() -> int:
        answer = await caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=[name]))
        return int(answer.groups[0].state)

    async with asyncio.timeout(60):
        while await state() != coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE:
            pass
    shard = coordinator.shards[1]
    await until_equal(lambda: shard.open_calls, 1)
    parked.cancel()
    await until_equal(lambda: shard.open_calls, 0)


async def test_health_serves_once_the_lease_is_held(single: RealCluster) -> None:
    for node in single.nodes:
        node.pause()
    starting = asyncio.ensure_future(single.add("a"))
    await until(lambda: bool(single.running) and single.running[0].port > 0)
    caller = single.caller(single.running[0])
    health = health_pb2_grpc.HealthStub(caller.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = await caller.stub.Heartbeat(coordinator_pb2.HeartbeatRequest(group_id="g", member_id="m"))
    assert refused.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    for node in single.nodes:
        node.resume()
    await starting
    async with asyncio.timeout(60):
        while answer.status != health_pb2.HealthCheckResponse.SERVING:
            answer = await health.Check(health_pb2.HealthCheckRequest())


async def test_changed_topics_reach_the_groups(single: RealCluster) -> None:
    await single.change_topic(create=discovery_pb2.Topic(name="t", partitions=3))
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, name = single.caller(coordinator), group(1)
    assert await caller.commit(name, 5) == error_code.NONE
    await single.change_topic(delete="t")
    async with asyncio.timeout(60):
        while not (tombstones := await single.records(1, "offset_tombstone")):
            pass
    assert [tombstone.reason for tombstone in tombstones] == ["topic_deleted"]
