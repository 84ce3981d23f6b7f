"""Worker processes of a classic group that becomes an incremental one while they work: nothing stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import muster
import pytest
from kit.clusters.fenced_fleet import GROUP, PARTITIONS, PATIENCE_S, Fleet
from kit.clusters.server_cluster import all_served, find, running
from kit.waiting import until
from muster_server.dev.cluster import DevCluster
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

OLD, NEW = "range", "auto"
CONVERTING = {"MUSTER_GROUP_CONVERT": "auto", "MUSTER_GROUP_CONVERT_AFTER_MS": "4000"}


@asynccontextmanager
async def deployed(tmp_path: Path) -> AsyncIterator[tuple[DevCluster, Fleet, muster.Cluster]]:
    """A fleet of classic processes that was replaced, one after the other, by some that can be either."""
    async with running(tmp_path / "cluster", redis_nodes=1, settings=CONVERTING) as cluster:
        await all_served(cluster.servers)
        fleet = Fleet(tmp_path, cluster.servers, OLD)
        async with muster.Cluster(cluster.servers) as connection:
            try:
                for name in ("a", "b", "c"):
                    fleet.start(name)
                await fleet.shared()
                for old, new in (("a", "d"), ("b", "e"), ("c", "f")):
                    starts = fleet.starts()
                    await fleet.stop(old)
                    fleet.start(new, NEW)
                    await fleet.shared()
                    stops = max(count - starts[number] for number, count in fleet.starts().items())
                    assert stops <= 2, "a deployment step is a leave and a join, each one rebalance"
                yield cluster, fleet, connection
            finally:
                for name in tuple(fleet.workers):
                    await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.held() == {}


async def converted(connection: muster.Cluster) -> None:
    """Waits until the group is an incremental one."""

    async def is_converted() -> bool:
        return [group.type for group in await connection.list_groups() if group.group_id == GROUP] == [
            "consumer"
        ]

    await until(is_converted, "the group is converted", PATIENCE_S)


async def test_a_deployment_makes_a_group_incremental_and_nothing_stops(tmp_path: Path) -> None:
    """INC-140, and the promises of the log."""
    async with deployed(tmp_path) as (cluster, fleet, connection):
        before, starts = fleet.held(), fleet.starts()
        await converted(connection)
        await fleet.progresses()
        assert (fleet.held(), fleet.starts()) == (before, starts)
        done = fleet.done()
        stored = await connection.committed(GROUP)
        assert all(stored[muster.TopicPartition(GROUP, n)].offset >= at for n, at in done.items())
        fleet.start("g", NEW)
        await fleet.shared()
        fleet.only_moved(before, starts)
        report = verify(cluster.redis_url)
        assert report.clean, report


async def test_a_coordinator_is_killed_right_after_the_conversion(tmp_path: Path) -> None:
    """INC-140, INC-143."""
    async with deployed(tmp_path) as (cluster, fleet, connection):
        before, starts = fleet.held(), fleet.starts()
        owner = await find(cluster.servers, GROUP)
        await converted(connection)
        await next(p for p in cluster.coordinators if owner.endswith(f":{p.port}")).kill()
        await fleet.progresses()
        assert (fleet.held(), fleet.starts()) == (before, starts)


async def test_a_worker_dies_right_after_the_conversion(tmp_path: Path) -> None:
    """INC-75, INC-104: it has the grace that its classic join asked for, and nobody else is touched."""
    async with deployed(tmp_path) as (_, fleet, connection):
        before, starts = fleet.held(), fleet.starts()
        await converted(connection)
        await fleet.kill("e")
        await until(
            lambda: len(fleet.held()) == PARTITIONS and "e" not in fleet.held().values(),
            "others have what the dead one had",
            PATIENCE_S,
        )
        fleet.only_moved(before, starts)
