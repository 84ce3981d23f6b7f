"""Members on session streams, against coordinators that answer as the test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import muster
import pytest_asyncio
from client.client_scripted import ScriptedCluster
from client.client_streams import Stream, StreamingCoordinator
from muster import MemberState, TopicPartition
from muster_protos.muster.v1 import common_pb2 as common
from muster_protos.muster.v1 import session_pb2 as session

FAST: muster.MemberSettings = {
    "session_timeout_ms": 10_000,
    "beat_interval_ms": 100,
    "disconnect_grace_ms": 3_000,
    "heartbeat_interval_ms": 30,
    "rebalance_timeout_ms": 5_000,
    "request_timeout_ms": 2_000,
}
ALL = tuple(TopicPartition("t", n) for n in range(3))


class World:
    """Two coordinators, one connection, and members on it."""

    def __init__(self, cluster: ScriptedCluster, a: StreamingCoordinator, b: StreamingCoordinator) -> None:
        self.cluster, self.a, self.b = cluster, a, b
        self.connection = muster.Cluster(cluster.address)
        self.told: list[str] = []
        self.members: list[muster.Member] = []

    async def join(self, group: str = "g", **settings: Any) -> muster.Member:
        member = muster.Member(
            self.connection,
            group_id=group,
            topics="t",
            on_partitions_assigned=lambda _: self.told.append("assigned"),
            on_partitions_revoked=lambda _: self.told.append("revoked"),
            on_partitions_lost=lambda _: self.told.append("lost"),
            **{**FAST, **settings},
        )
        self.members.append(member)
        await member.start()
        await until(lambda: member.state is MemberState.STABLE and bool(member.partitions))
        return member

    async def told_so(self, *words: str) -> None:
        await until(lambda: self.told[: len(words)] == list(words))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the condition is about another end of a socket
            await asyncio.sleep(0.005)


@asynccontextmanager
async def worlds() -> AsyncIterator[World]:
    a, b = StreamingCoordinator("a"), StreamingCoordinator("b")
    cluster = ScriptedCluster([a, b])
    await cluster.start()
    world = World(cluster, a, b)
    try:
        yield world
    finally:
        await asyncio.gather(*(member.close() for member in world.members))
        await world.connection.close()
        await cluster.stop()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with worlds() as made:
        yield made


def on(stream: Stream, member: muster.Member, generation: int = 1) -> session.RebalanceStarted:
    cause = common.RebalanceCause(kind=common.REBALANCE_CAUSE_KIND_MEMBER_JOINED, sentence="a member joined")
    return session.RebalanceStarted(
        group_id="g", member_id=member.member_id, generation=generation, cause=cause, shard_epoch=1
    )


async def test_a_life_on_one_stream(world: World) -> None:
    a = world.a
    member = await world.join()
    await member.commit({ALL[0]: 5})
    assert await member.committed(ALL) == {ALL[0]: muster.Committed(5)}
    await a.until("Beat", 3)
    assert len(a.streams) == 1
    [stream] = a.streams
    first = stream.messages[0].frames
    assert first[0].hello.client_id == "muster-python"
    [attach] = stream.frames("attach")
    assert (attach.group_id, attach.member_id, attach.generation) == ("g", "m-1", 1)
    numbers = [beat.number for beat in stream.frames("beat")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert a.requests("JoinGroup")[0].disconnect_grace_ms == 3_000
    assert a.requests("Heartbeat") == []
    await member.close()
    await world.connection.close()
    assert len(stream.frames("detach")) == 1
    await until(lambda: stream.half_closed)
    assert world.told == ["assigned", "revoked"]
