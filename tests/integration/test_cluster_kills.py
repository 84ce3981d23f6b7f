"""Real processes are killed and stopped; the members of a group must notice nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.waiting import until, until_equal
from muster_core.sharding import shard_of
from muster_server.dev.cluster import DevCluster
from muster_server.verify.stored_logs import StoredLogs
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, TOPIC, PARTITIONS = "g", "t", 6
WITHIN_SECONDS = 30.0


class Fleet:
    """Two members of one group in this process, on one connection each, and what happened to them."""

    def __init__(self, servers: str) -> None:
        self.clusters = [muster.Cluster(servers) for _ in range(2)]
        self.lost: list[tuple[muster.TopicPartition, ...]] = []
        self.assigned = 0
        self.members = [
            muster.Member(
                cluster,
                group_id=GROUP,
                topics=TOPIC,
                protocol="classic",
                on_partitions_assigned=self._assigned,
                on_partitions_lost=self._lost,
                client_id=f"member-{index}",
                session_timeout_ms=10_000,
                disconnect_grace_ms=10_000,  # a process takes its time to start where many tests run
                heartbeat_interval_ms=200,
                rebalance_timeout_ms=10_000,
            )
            for index, cluster in enumerate(self.clusters)
        ]
        self._position = 0

    def _assigned(self, _: tuple[muster.TopicPartition, ...]) -> None:
        self.assigned += 1

    def _lost(self, partitions: tuple[muster.TopicPartition, ...]) -> None:
        self.lost.append(partitions)

    async def start(self) -> None:
        await self.clusters[0].ensure_topic(TOPIC, PARTITIONS)
        await asyncio.gather(*(member.start() for member in self.members))
        await until_equal(
            lambda: sorted(len(member.partitions) for member in self.members), [3, 3], "both own three"
        )

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self.members))
        for cluster in self.clusters:
            await cluster.close()

    async def commit_all(self) -> None:
        """Every member commits all it owns, and another connection reads it back."""
        self._position += 1
        for member in self.members:
            assert member.partitions, "a member has lost what it owned"
            await member.commit(dict.fromkeys(member.partitions, self._position))
        found = await self.members[0].committed(
            [muster.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        )
        assert {committed.offset for committed in found.values()} == {self._position}

    async def owner(self) -> str:
        """Name of the coordinator that owns the group; empty: nobody."""
        cluster = await self.clusters[0].describe()
        shard = shard_of(GROUP, cluster.shard_count)
        return next((row.node_id for row in cluster.shards if row.shard == shard and row.serving), "")

    async def owned_by_another(self, than: str) -> None:
        """Waits until discovery names another owner: members may find one before its view shows it."""

        async def taken_over() -> bool:
            return await self.owner() not in ("", than)

        await until(taken_over, f"somebody takes over from {than}")

    async def unchanged(self, before: tuple[int, list[object]]) -> None:
        """Generation, owners and tokens are what they were, and nobody lost anything."""
        assert self.standing() == before
        assert self.lost == []
        history = await self.clusters[0].group_history(GROUP)
        assert history[-1].generation == before[0]

    def standing(self) -> tuple[int, list[object]]:
        return self.members[0].generation, [
            [(partition, member.token(partition)) for partition in member.partitions]
            for member in self.members
        ]


@asynccontextmanager
async def fleet_on(cluster: DevCluster) -> AsyncIterator[Fleet]:
    fleet = Fleet(cluster.servers)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with running(tmp_path, redis_nodes=3, coordinators=2) as cluster:
        yield cluster


async def test_a_killed_coordinator_costs_no_rebalance(cluster: DevCluster) -> None:
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before, owner = fleet.standing(), await fleet.owner()
        await cluster.coordinator(owner).kill()
        await fleet.commit_all()
        await fleet.owned_by_another(owner)
        await fleet.unchanged(before)
        await cluster.coordinator(owner).start()
        await fleet.commit_all()
        await fleet.unchanged(before)
    assert verify(cluster.redis_url).clean


async def test_a_stopped_coordinator_hands_over_without_a_rebalance(cluster: DevCluster) -> None:
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before, owner = fleet.standing(), await fleet.owner()
        assert await cluster.coordinator(owner).terminate() == 0
        await fleet.commit_all()
        await fleet.owned_by_another(owner)
        await fleet.unchanged(before)
    assert verify(cluster.redis_url).clean


@pytest.mark.brief_lease
async def test_a_silent_coordinator_is_replaced_and_stays_out_when_it_wakes(cluster: DevCluster) -> None:
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before, owner = fleet.standing(), await fleet.owner()
        cluster.coordinator(owner).pause()
        await fleet.commit_all()
        await fleet.owned_by_another(owner)
        cluster.coordinator(owner).resume()
        for _ in range(5):
            await fleet.commit_all()
        await fleet.unchanged(before)
    assert verify(cluster.redis_url).clean


async def test_metadata_and_discovery_may_be_killed_and_started_again(cluster: DevCluster) -> None:
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before = fleet.standing()
        await cluster.discovery.kill()
        await fleet.commit_all()
        await cluster.discovery.start()
        await cluster.metadata[0].kill()
        await cluster.metadata[0].start()
        await fleet.commit_all()
        await fleet.unchanged(before)
    assert verify(cluster.redis_url).clean


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_one_redis_node_of_three_is_not_missed(cluster: DevCluster, how: str) -> None:
    assert cluster.nodes is not None
    node = cluster.nodes[1]
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before = fleet.standing()
        if how == "killed":
            await node.kill()
        else:
            node.pause()
        for _ in range(5):
            await fleet.commit_all()
        await fleet.unchanged(before)
        if how == "killed":
            await node.start()
        else:
            node.resume()
        await fleet.commit_all()
        await fleet.unchanged(before)
        await repaired(cluster)
    assert verify(cluster.redis_url).clean


async def repaired(cluster: DevCluster) -> None:
    """Waits until every node has every acknowledged entry of the group's log."""

    def missing() -> list[int]:
        with StoredLogs(cluster.redis_url) as reader:
            shard = shard_of(GROUP, reader.shard_count)
            complete = {
                node.index
                for node in reader.nodes
                if node.end(shard, reader.shard_count) >= reader.acknowledged(shard)
            }
            return [index for index in range(1, reader.count + 1) if index not in complete]

    await until_equal(missing, [], "nodes that are not repaired")


@pytest.mark.brief_lease
async def test_all_redis_nodes_stopped_and_continued(cluster: DevCluster) -> None:
    """Nothing is acknowledged meanwhile; afterwards everything goes on by itself, without a rebalance."""
    assert cluster.nodes is not None
    async with fleet_on(cluster) as fleet:
        await fleet.commit_all()
        before = fleet.standing()
        for node in cluster.nodes:
            node.pause()
        committing = asyncio.create_task(fleet.commit_all())
        done, _ = await asyncio.wait([committing], timeout=2.2)
        assert not done, "a commit was acknowledged without a log"
        for node in cluster.nodes:
            node.resume()
        await asyncio.wait_for(committing, WITHIN_SECONDS)
        await fleet.commit_all()
        await fleet.unchanged(before)
    assert verify(cluster.redis_url).clean


async def test_everything_is_found_again_after_a_restart_of_the_whole_cluster(tmp_path: Path) -> None:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster, fleet_on(cluster) as fleet:
        await fleet.commit_all()
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as cluster,
        muster.Cluster(cluster.servers) as connection,
    ):
        assert await connection.topics() == [muster.Topic(TOPIC, PARTITIONS)]
        found = await connection.committed(GROUP)
        assert {committed.offset for committed in found.values()} == {1}
        history = await connection.group_history(GROUP)
        assert history[0].generation == 1
