"""Coordinators on the real metadata service and a log of three embedded servers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from coordinator.coordinator_cluster import Caller, group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2 as pb
from support.metadata_stand_in import until

NEVER_MS = 3_600_000
BACK_OFF_S = 0.02


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


def group(shard: int) -> str:
    return group_of(shard, 0, SHARDS)


async def stable(caller: Caller, group_id: str) -> pb.JoinGroupResponse:
    joined = await caller.join(group_id)
    assert joined.error_code == error_code.NONE
    assert (await caller.sync(group_id, joined)).error_code == error_code.NONE
    assert await caller.commit(group_id, 7, joined) == error_code.NONE
    return joined


async def committed_again(caller: Caller, group_id: str, joined: pb.JoinGroupResponse) -> None:
    """Commits until it is taken, as a client does."""
    async with asyncio.timeout(20):
        for offset in itertools.count(8):
            if await caller.commit(group_id, offset, joined) == error_code.NONE:
                return
            await asyncio.sleep(BACK_OFF_S)


async def generations(caller: Caller, group_id: str) -> int:
    answer = await caller.stub.GroupHistory(pb.GroupHistoryRequest(group_id=group_id))
    assert answer.error_code == error_code.NONE
    return len(answer.generations)


async def test_a_group_lives_through_the_kill_of_its_owner(cluster: RealCluster) -> None:
    first = await cluster.add("a", settle_ms=NEVER_MS)
    await owns(first, SHARDS)
    second = await cluster.add("b", settle_ms=NEVER_MS)
    members = {g: await stable(cluster.caller(first), g) for g in map(group, range(SHARDS))}
    await first.abort()
    caller = cluster.caller(second)
    for group_id, joined in members.items():
        await committed_again(caller, group_id, joined)
        assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
        assert await generations(caller, group_id) == 1
    fetched = await caller.fetch(*members)
    assert all(code == error_code.NONE and offset >= 8 for code, offset in fetched)


async def test_a_group_lives_through_the_drain_of_its_owner(cluster: RealCluster) -> None:
    first = await cluster.add("a", settle_ms=NEVER_MS)
    await owns(first, SHARDS)
    second = await cluster.add("b", settle_ms=NEVER_MS)
    group_id = group(3)
    joined = await stable(cluster.caller(first), group_id)
    await first.drain_and_stop()
    await owns(second, SHARDS)
    caller = cluster.caller(second)
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
    assert await generations(caller, group_id) == 1
    assert await caller.fetch(group_id) == [(error_code.NONE, 7)]


async def test_three_balance_and_one_metadata_instance_may_stop(cluster: RealCluster) -> None:
    coordinators = [await cluster.add(name, settle_ms=300) for name in "abc"]
    await until(lambda: sum(len(c.serving) for c in coordinators) == SHARDS)
    await until(lambda: all(c.serving for c in coordinators), 30)
    await cluster.servers[0].stop(0)
    for shard in range(SHARDS):
        await until(lambda shard=shard: any(shard in c.serving for c in coordinators))  # type: ignore[misc]
        owner = next(c for c in coordinators if shard in c.serving)
        await committed_again(cluster.caller(owner), group(shard), pb.JoinGroupResponse(generation=-1))


async def test_all_of_redis_stops_and_everything_goes_on_afterwards(cluster: RealCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group_id = cluster.caller(only), group(1)
    joined = await stable(caller, group_id)
    epochs = only.serving
    for node in cluster.nodes:
        node.pause()
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
    await until(lambda: all(shard.suspended for shard in only.shards.values()))
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert await caller.commit(group_id, 8, joined) == error_code.COORDINATOR_NOT_AVAILABLE
    for node in cluster.nodes:
        node.resume()
    await until(
        lambda: len(only.serving) == SHARDS and not any(s.suspended for s in only.shards.values()), 30
    )
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
    assert await caller.fetch(group_id) == [(error_code.NONE, 7)]
    assert await generations(caller, group_id) == 1
    assert only.serving == epochs


async def test_one_node_of_three_is_killed_and_nobody_notices(cluster: RealCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group_id = cluster.caller(only), group(1)
    joined = await stable(caller, group_id)
    await cluster.nodes[0].kill()
    for offset in range(20):
        assert await caller.commit(group_id, offset, joined) == error_code.NONE
    assert await caller.fetch(group_id) == [(error_code.NONE, 19)]
