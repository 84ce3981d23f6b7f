"""Members of the client library on real services and a real log, in one process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import muster
import pytest
from coordinator.coordinator_cluster import kill, owns
from coordinator.real_cluster import SHARDS, RealCluster
from kit.waiting import until
from muster import MemberState, TopicPartition
from muster_coordinator.coordinator import Coordinator
from muster_core.sharding import shard_of
from muster_discovery.role import Discovery
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.v1 import common_pb2, discovery_pb2
from muster_runtime.addresses import Address, parse_address

pytestmark = pytest.mark.cluster

SETTINGS: muster.MemberSettings = {
    "session_timeout_ms": 10_000,
    "beat_interval_ms": 100,
    "heartbeat_interval_ms": 100,
    "rebalance_timeout_ms": 10_000,
    "request_timeout_ms": 10_000,
}
ALL = {TopicPartition("sites", number) for number in range(12)}


class World:
    """A cluster with two coordinators, and members that come and go."""

    def __init__(
        self,
        cluster: RealCluster,
        discovery: Discovery,
        connection: muster.Cluster,
        *,
        session: bool,
        protocol: Literal["classic", "incremental"],
    ) -> None:
        self.session = session
        self.protocol = protocol
        self.cluster = cluster
        self.discovery = discovery
        self.connection = connection
        self.told: list[tuple[int, str]] = []
        self._held: dict[int, set[TopicPartition]] = defaultdict(set)
        self.members: list[muster.Member] = []

    async def add(self, **settings: Any) -> muster.Member:
        number = len(self.members)
        member = muster.Member(
            self.connection,
            group_id="crawlers",
            topics="sites",
            on_partitions_assigned=lambda given: self._tell(number, "assigned", given),
            on_partitions_revoked=lambda taken: self._tell(number, "revoked", taken),
            on_partitions_lost=lambda taken: self._tell(number, "lost", taken),
            **{**SETTINGS, "session": self.session, "protocol": self.protocol, **settings},
        )
        self.members.append(member)
        await member.start()
        return member

    def _tell(self, number: int, what: str, partitions: Iterable[TopicPartition]) -> None:
        self.told.append((number, what))
        held = self._held[number]
        held.update(partitions) if what == "assigned" else held.difference_update(partitions)

    def shared(self, *members: muster.Member) -> Callable[[], bool]:
        """Whether these members own everything, each once, and were told so; classic ones in one generation.

        An incremental member may hear its new epoch a moment after the others have what it gave back.
        """

        def check() -> bool:
            owned = [p for member in members for p in member.partitions]
            if len(owned) != len(set(owned)) or set(owned) != ALL:
                return False
            if not all(member.partitions and member.state is MemberState.STABLE for member in members):
                return False
            if any(self._held[self.members.index(member)] != set(member.partitions) for member in members):
                return False
            return self.protocol == "incremental" or len({member.generation for member in members}) == 1

        return check

    def owner(self) -> Coordinator:
        shard = shard_of("crawlers", SHARDS)
        return next(c for c in self.cluster.running if shard in c.serving)


@asynccontextmanager
async def world(
    folder: Path, *, session: bool, protocol: Literal["classic", "incremental"] = "classic"
) -> AsyncIterator[World]:
    cluster = RealCluster(folder)
    await cluster.start()
    await cluster.change_topic(create=discovery_pb2.Topic(name="sites", partitions=12))
    metadata = tuple(map(parse_address, cluster.metadata))
    discovery = Discovery(DiscoverySettings(listen=Address("127.0.0.1", 0), metadata=metadata))
    await discovery.start()
    connection = muster.Cluster(f"127.0.0.1:{discovery.port}")
    made = World(cluster, discovery, connection, session=session, protocol=protocol)
    try:
        first = await cluster.add("a")
        await owns(first, SHARDS)
        await asyncio.wait_for(discovery.ready(), 60)
        yield made
    finally:
        for member in made.members:
            await member.close()
        await made.connection.close()
        await discovery.stop()
        await cluster.stop()


@pytest.fixture(params=[True, False], ids=["session", "unary"])
async def classic(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Whose members are classic ones."""
    async with world(tmp_path, session=request.param) as made:
        yield made


@pytest.fixture(
    params=[
        ("classic", True),
        ("classic", False),
        ("incremental", True),
        ("incremental", False),
    ],
    ids=["classic-session", "classic-unary", "incremental-session", "incremental-unary"],
)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Whose members are of one kind."""
    protocol, session = request.param
    async with world(tmp_path, session=session, protocol=protocol) as made:
        yield made


async def test_members_share_everything_and_take_over_from_one_that_leaves(running: World) -> None:
    several = {"assignors": ["range", "roundrobin"]} if running.protocol == "classic" else {}
    one, two = await running.add(), await running.add(**several)
    await until(running.shared(one, two))
    three = await running.add()
    await until(running.shared(one, two, three))
    assert sorted(len(m.partitions) for m in (one, two, three)) == [4, 4, 4]
    generation = one.generation
    await two.close("its host is drained")
    await until(running.shared(one, three))
    assert one.generation > generation
    assert one.last_cause is not None
    assert "lost" not in {what for _, what in running.told}


async def test_partitions_go_to_members_in_their_zones_and_follow_them(classic: World) -> None:
    def near(zone: str, member: muster.Member) -> set[int]:
        return {number for _, number in member.partitions} - set(zones[zone])

    zones = {"eu": range(0, 12, 2), "us": range(1, 12, 2)}
    await classic.connection.alter_topic("sites", 12, zones=zones)
    refresh = {"topic_refresh_interval_ms": 100}
    one, two = await classic.add(rack_id="us", **refresh), await classic.add(rack_id="eu", **refresh)
    await until(classic.shared(one, two))
    assert (near("us", one), near("eu", two)) == (set(), set())
    zones = {"us": range(6), "eu": range(6, 12)}
    await classic.connection.alter_topic("sites", 12, zones=zones)
    await until(lambda: classic.shared(one, two)() and not near("us", one) and not near("eu", two))


async def test_the_death_of_the_coordinator_is_no_rebalance(running: World) -> None:
    long = {"session_timeout_ms": 120_000, "rebalance_timeout_ms": 120_000, "disconnect_grace_ms": 0}
    one, two = await running.add(**long), await running.add(**long)
    await until(running.shared(one, two))
    await until(lambda: {(0, "assigned"), (1, "assigned")} <= set(running.told), "their callbacks ran")
    before = running.told.copy()
    generation, tokens = two.generation, {p: one.token(p) for p in one.partitions}
    mine = one.partitions[0]
    await one.commit({mine: 41})
    owner = running.owner()
    spare = await running.cluster.add("b")
    running.cluster.running.remove(owner)
    committing = asyncio.create_task(one.commit({mine: 42}))
    await kill(owner)
    await asyncio.wait_for(committing, 30)
    await owns(spare, SHARDS)
    await asyncio.wait_for(two.commit({two.partitions[0]: 7}), 30)
    assert await one.committed([mine]) == {mine: muster.Committed(42)}
    assert running.told == before
    assert (one.generation, two.generation) == (generation, generation)
    assert {p: one.token(p) for p in one.partitions} == tokens


async def test_a_static_member_comes_back_without_a_rebalance(running: World) -> None:
    one, two = await running.add(group_instance_id="blue"), await running.add(group_instance_id="green")
    await until(running.shared(one, two))
    generation, mine, tokens = two.generation, two.partitions, {two.token(p) for p in two.partitions}
    await two.close()
    again = await running.add(group_instance_id="green")
    await until(running.shared(one, again))
    assert again.partitions == mine
    assert again.generation == generation
    assert min(again.token(p) for p in mine) > max(tokens)


async def test_a_second_process_with_the_same_instance_id_fences_the_first(classic: World) -> None:
    one = await classic.add(group_instance_id="blue")
    await until(classic.shared(one))
    two = await classic.add(group_instance_id="blue")
    with pytest.raises(muster.FencedInstance, match="group_instance_id"):
        await asyncio.wait_for(one.wait(), 30)
    await until(classic.shared(two))
    assert (0, "lost") in classic.told


async def test_members_without_a_common_assignor_are_told_so(classic: World) -> None:
    one = await classic.add(assignors=["range"])
    await until(classic.shared(one))
    two = await classic.add(assignors=["roundrobin"])
    with pytest.raises(muster.GroupError, match=r"INCONSISTENT_GROUP_PROTOCOL.*assignors"):
        await asyncio.wait_for(two.wait(), 30)
    assert one.state is MemberState.STABLE


async def test_a_member_of_a_stream_hears_of_a_rebalance_without_asking(tmp_path: Path) -> None:
    async with world(tmp_path, session=True) as running:
        slow = {"heartbeat_interval_ms": 9_000, "beat_interval_ms": 1_000}
        one = await running.add(**slow)
        await until(running.shared(one))
        two = await running.add(**slow)
        await until(running.shared(one, two))
        assert one.last_cause is not None
        assert one.last_cause.kind == common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED


async def test_a_drained_coordinator_is_no_rebalance(running: World) -> None:
    one, two = await running.add(), await running.add()
    await until(running.shared(one, two))
    before, generation = running.told.copy(), two.generation
    owner = running.owner()
    spare = await running.cluster.add("b")
    running.cluster.running.remove(owner)
    await owner.drain_and_stop()
    await owns(spare, SHARDS)
    await asyncio.wait_for(one.commit({one.partitions[0]: 1}), 30)
    await asyncio.wait_for(two.commit({two.partitions[0]: 1}), 30)
    assert running.told == before
    assert (one.generation, two.generation) == (generation, generation)
