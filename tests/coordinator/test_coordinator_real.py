"""Two coordinators and the loss of one, of the lease, or of the log; on the real metadata service and log."""

import asyncio
import itertools
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, group_of, kill, owns
from coordinator.real_cluster import SHARDS, RealCluster
from kit.waiting import until, until_equal
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.log.log_client import LogClient
from muster_coordinator.shard.phase import Phase
from muster_core import error_code
from muster_core.events import Request
from muster_core.shard import Shard
from muster_metadata.nodes.reply import Status
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from redis.asyncio import Redis

pytestmark = pytest.mark.cluster

NEVER_MS = 3_600_000
BACK_OFF_S = 0.02


def group(shard: int) -> str:
    return group_of(shard, 0, SHARDS)


async def stable(caller: Caller, group_id: str, **fields: Any) -> coordinator_pb2.JoinGroupResponse:
    """A group of one member, stable, with a commit."""
    joined = await caller.join(group_id, **fields)
    assert joined.error_code == error_code.NONE
    assert (await caller.sync(group_id, joined)).error_code == error_code.NONE
    assert await caller.commit(group_id, 7, joined) == error_code.NONE
    return joined


async def committed_again(caller: Caller, group_id: str, joined: coordinator_pb2.JoinGroupResponse) -> None:
    """Commits until it is taken, as a client does."""
    async with asyncio.timeout(60):
        for offset in itertools.count(8):
            if await caller.commit(group_id, offset, joined) == error_code.NONE:
                return
            await asyncio.sleep(BACK_OFF_S)


async def generations(caller: Caller, group_id: str) -> int:
    answer = await caller.stub.GroupHistory(coordinator_pb2.GroupHistoryRequest(group_id=group_id))
    assert answer.error_code == error_code.NONE
    return len(answer.generations)


async def sees(coordinator: Coordinator, node_id: str) -> None:
    """Waits until a coordinator's view has another one."""
    parts = coordinator._parts
    assert parts is not None
    await until(lambda: parts.view.node(node_id) is not None)


def log_client(coordinator: Coordinator) -> LogClient:
    parts = coordinator._parts
    assert parts is not None
    return parts.log_client


async def test_a_group_lives_through_the_kill_of_its_owner(real: RealCluster) -> None:
    first = await real.add("a", settle_ms=NEVER_MS)
    await owns(first, SHARDS)
    second = await real.add("b", settle_ms=NEVER_MS)
    members = {g: await stable(real.caller(first), g) for g in map(group, range(SHARDS))}
    await kill(first)
    caller = real.caller(second)
    for group_id, joined in members.items():
        await committed_again(caller, group_id, joined)
        assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
        assert await generations(caller, group_id) == 1
    fetched = await caller.fetch(*members)
    assert all(code == error_code.NONE and offset >= 8 for code, offset in fetched)


async def test_a_group_lives_through_the_drain_of_its_owner(real: RealCluster) -> None:
    first = await real.add("a", settle_ms=NEVER_MS)
    await owns(first, SHARDS)
    second = await real.add("b", settle_ms=NEVER_MS)
    await sees(first, "b")  # else there is nobody to hand over to
    groups = [group(3), group(1)]
    members = {group_id: await stable(real.caller(first), group_id) for group_id in groups}
    parked = asyncio.ensure_future(real.caller(first).join(groups[1]))
    shard = first.shards[1]
    await until_equal(lambda: shard.open_calls, 1)
    await first.drain_and_stop()
    moved = await parked
    assert moved.error_code == error_code.NOT_COORDINATOR
    assert (moved.coordinator.node_id, moved.coordinator.port) == ("b", second.port)
    await owns(second, SHARDS)
    for number in range(SHARDS):
        [handoff] = await real.records(number, "handoff")
        assert (handoff.node_id, handoff.successor) == ("a", "b")
    caller = real.caller(second)
    assert (await caller.heartbeat(groups[0], members[groups[0]])).error_code == error_code.NONE
    for group_id in groups:
        assert await generations(caller, group_id) == 1
    assert await caller.fetch(*groups) == [(error_code.NONE, 7)] * 2


async def test_callers_are_sent_to_the_successor_whatever_address_was_asked_with(real: RealCluster) -> None:
    first = await real.add("a", settle_ms=NEVER_MS)
    await owns(first, SHARDS)
    second = await real.add("b", settle_ms=NEVER_MS)
    await sees(first, "b")
    await stable(real.caller(first), group(1))
    parked = asyncio.ensure_future(real.caller(first).join(group(1)))
    shard = first.shards[1]
    await until_equal(lambda: shard.open_calls, 1)
    parts = first._parts
    assert parts is not None
    parts.ownership.draining = True
    stranger = common_pb2.Coordinator(node_id="b", host="192.0.2.1", port=9)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{first.port}") as channel:
        peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(channel)
        asked = peer_pb2.RequestHandoffRequest(shard=1, successor=stranger)
        given = await peer.RequestHandoff(asked, timeout=60)
    assert given.outcome == peer_pb2.HANDOFF_OUTCOME_HANDED_OVER
    moved = await parked
    assert moved.error_code == error_code.NOT_COORDINATOR
    assert (moved.coordinator.node_id, moved.coordinator.port) == ("b", second.port)


async def test_a_drained_owner_lingers_to_name_the_successor(real: RealCluster) -> None:
    first = await real.add("a", settle_ms=NEVER_MS, linger_ms=60_000)
    await owns(first, SHARDS)
    second = await real.add("b", settle_ms=NEVER_MS)
    await sees(first, "b")
    joined = await stable(real.caller(first), group(1))
    stopping = asyncio.ensure_future(first.drain_and_stop())
    await owns(second, SHARDS)
    parts = second._parts
    assert parts is not None
    await until(lambda: not parts.view.node("a"))  # its lease is released before it ends
    for number in range(SHARDS):
        answer = await real.caller(first).heartbeat(group(number), joined)
        assert answer.error_code == error_code.NOT_COORDINATOR
        assert (answer.coordinator.node_id, answer.coordinator.port) == ("b", second.port)
    assert not stopping.done()
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)


async def test_a_drained_owner_without_a_successor_releases_what_it_has(real: RealCluster) -> None:
    only = await real.add("a")
    await owns(only, SHARDS)
    await only.drain_and_stop()
    assert [len(await real.records(shard, "handoff")) for shard in range(SHARDS)] == [1] * SHARDS
    again = await real.add("a2")
    await owns(again, SHARDS)


def server(shard: int, coordinators: Iterable[Coordinator]) -> Coordinator | None:
    """The coordinator that serves a shard, if one does."""
    return next((c for c in coordinators if shard in c.serving), None)


async def test_members_notice_nothing_when_shards_move_for_balance(real: RealCluster) -> None:
    first = await real.add("a")
    await owns(first, SHARDS)
    members = {g: await stable(real.caller(first), g) for g in map(group, range(SHARDS))}
    second = await real.add("b")
    await until(lambda: len(first.serving) + len(second.serving) == SHARDS and len(second.serving) > 0)
    for shard, (group_id, joined) in enumerate(members.items()):
        caller = real.caller(await until(partial(server, shard, (first, second)), f"shard {shard} is served"))
        assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
        assert await generations(caller, group_id) == 1


@pytest.mark.row("PT-27")
async def test_a_foreign_claim_makes_the_owner_drop_the_shard_and_claim_it_again(real: RealCluster) -> None:
    only = await real.add("a")
    await owns(only, SHARDS)
    caller, group_id = real.caller(only), group(1)
    joined = await stable(caller, group_id)
    foreign = await real.claim(1)
    assert await caller.commit(group_id, 9, joined) != error_code.NONE
    await until(lambda: only.serving.get(1, 0) > foreign)
    assert await caller.fetch(group_id) == [(error_code.NONE, 7)]
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE


async def test_a_second_run_of_the_same_name_supersedes(real: RealCluster) -> None:
    first = await real.add("a")
    await owns(first, SHARDS)
    second = await real.add("a")
    await asyncio.wait_for(first.superseded(), 60)
    answer = await real.caller(first).heartbeat(group(1), coordinator_pb2.JoinGroupResponse(member_id="m"))
    assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    await first.abort()
    await owns(second, SHARDS)


async def test_three_balance_and_one_metadata_instance_may_stop(real: RealCluster) -> None:
    coordinators = [await real.add(name, settle_ms=300) for name in "abc"]
    await until_equal(lambda: sum(len(c.serving) for c in coordinators), SHARDS)
    await until(lambda: all(c.serving for c in coordinators))
    await real.servers[0].stop(0)
    for shard in range(SHARDS):
        owner = await until(partial(server, shard, coordinators), f"shard {shard} is served")
        await committed_again(
            real.caller(owner), group(shard), coordinator_pb2.JoinGroupResponse(generation=-1)
        )


@pytest.mark.brief_lease
async def test_all_of_redis_stops_and_everything_goes_on_afterwards(real: RealCluster) -> None:
    only = await real.add("a")
    await owns(only, SHARDS)
    caller, group_id = real.caller(only), group(1)
    joined = await stable(caller, group_id)
    await stable(caller, group(3), session_timeout_ms=600_000, rebalance_timeout_ms=600_000)
    parked = asyncio.ensure_future(caller.join(group(3), rebalance_timeout_ms=600_000))
    waiting = only.shards[3]
    await until_equal(lambda: waiting.open_calls, 1)
    epochs = only.serving
    for node in real.nodes:
        node.pause()
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
    await until(lambda: all(shard.suspended for shard in only.shards.values()))
    assert (await parked).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert await caller.commit(group_id, 8, joined) == error_code.COORDINATOR_NOT_AVAILABLE
    for node in real.nodes:
        node.resume()
    await until(lambda: len(only.serving) == SHARDS and not any(s.suspended for s in only.shards.values()))
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.NONE
    assert await caller.fetch(group_id) == [(error_code.NONE, 7)]
    assert await generations(caller, group_id) == 1
    assert only.serving == epochs


async def test_one_node_of_three_is_killed_and_nobody_notices(real: RealCluster) -> None:
    only = await real.add("a")
    await owns(only, SHARDS)
    caller, group_id = real.caller(only), group(1)
    joined = await stable(caller, group_id)
    await real.nodes[0].kill()
    for offset in range(20):
        assert await caller.commit(group_id, offset, joined) == error_code.NONE
    assert await caller.fetch(group_id) == [(error_code.NONE, 19)]


async def test_a_shard_is_loaded_again_while_an_append_of_it_is_open(
    real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = await real.add("only")
    await owns(only, SHARDS)
    caller, group_id = real.caller(only), group(2)
    joined = await stable(caller, group_id, session_timeout_ms=60_000)
    handle = Shard.handle

    def poisoned(shard: Shard, event: Any, now: Any) -> Any:
        heartbeat = isinstance(event, Request) and isinstance(event.message, coordinator_pb2.HeartbeatRequest)
        if heartbeat:
            monkeypatch.undo()
            raise RuntimeError("planted")
        return handle(shard, event, now)

    monkeypatch.setattr(Shard, "handle", poisoned)
    for node in real.nodes:
        node.pause()
    commit = asyncio.create_task(caller.commit(group_id, 8, joined))
    shard = only.shards[2]
    await until(lambda: shard.open_calls)
    assert (await caller.heartbeat(group_id, joined)).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    again = await until(lambda: found if (found := only.shards.get(2)) not in (None, shard) else None)
    await until(lambda: log_client(only).repeats or again.phase is Phase.FAILED)
    for node in real.nodes:
        node.resume()
    await until(lambda: again.phase is not Phase.CLAIMING)
    assert again.phase in (Phase.LOADING, Phase.SERVING)
    assert await commit in (error_code.NONE, error_code.COORDINATOR_NOT_AVAILABLE)
    await committed_again(caller, group_id, joined)


async def test_a_node_is_filled_again_though_another_one_promised_to_a_claimant_that_died(
    real: RealCluster,
) -> None:
    """Nobody uses the shard, and its claim has no majority without the node that lost its data."""
    owner = await real.add("a", quiet_log_ms=200)
    await owns(owner, SHARDS)
    first = real.servers[0].metadata.quorum.nodes[0]
    shard, epoch = next(iter(owner.serving.items()))
    assert (await first.prepare(shard, epoch + 1, secrets.token_bytes(16), b"tag")).status is Status.OK
    async with Redis.from_url(real.nodes[2].url) as client:
        await client.flushall()
        for number in range(SHARDS):
            await until(partial(client.exists, f"muster:{{{number}}}:log"), "the log is filled again")
