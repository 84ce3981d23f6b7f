"""Worker processes of a group that becomes an incremental one while they work, and a classic one again."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import muster
import pytest
from kit.clusters.fenced_fleet import GROUP, PARTITIONS, PATIENCE_S, Fleet
from kit.clusters.linked_cluster import inside
from kit.clusters.server_cluster import all_served, find, running
from kit.waiting import until
from muster_server.dev.cluster import DevCluster
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

OLD, NEW = "range", "auto"
CONVERTING = {"MUSTER_GROUP_CONVERT": "auto", "MUSTER_GROUP_CONVERT_AFTER_MS": "4000"}


@asynccontextmanager
async def deployed(
    tmp_path: Path, changes: Mapping[str, str] | None = None, **members: int
) -> AsyncIterator[tuple[DevCluster, Fleet, muster.Cluster]]:
    """A fleet of classic processes that was replaced, one after the other, by some that can be either.

    Args:
        tmp_path: of the test.
        changes: settings of the servers.
        members: settings of those that can be either.
    """
    settings = {**CONVERTING, **(changes or {})}
    async with running(tmp_path / "cluster", redis_nodes=1, settings=settings) as cluster:
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
                    fleet.start(new, NEW, environment=None, **members)
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


@pytest.mark.parametrize("step", ["asked", "stored", "heard"])
async def test_a_coordinator_is_killed_in_the_middle_of_the_conversion(tmp_path: Path, step: str) -> None:
    """INC-70, INC-73, INC-75: before the log has it, before anybody has heard of it, and when one member has.

    The next owner converts the group, or finds it converted and says so: nothing stops.
    """
    mark = tmp_path / "died"
    async with deployed(tmp_path, inside(DIES_IN_CONVERSION=f"{step}={mark}")) as (
        cluster,
        fleet,
        connection,
    ):
        before, starts, done = fleet.held(), fleet.starts(), fleet.done()
        await until(mark.exists, "the coordinator dies", PATIENCE_S)
        await converted(connection)
        await fleet.progresses()
        assert (fleet.held(), fleet.starts()) == (before, starts)
        assert all(at >= done[number] for number, at in fleet.done().items()), "no progress is lost"
        fleet.start("g", NEW)
        await fleet.shared()
        fleet.only_moved(before, starts)
        report = verify(cluster.redis_url)
        assert report.clean, report


async def test_a_worker_dies_right_after_the_conversion(tmp_path: Path) -> None:
    """INC-75, INC-104: it has the grace that its classic join asked for, and nobody else is touched."""
    async with deployed(tmp_path, session_timeout_ms=15_000, disconnect_grace_ms=10_000) as (
        _,
        fleet,
        connection,
    ):
        before, starts = fleet.held(), fleet.starts()
        await converted(connection)
        await fleet.kill("e")
        await until(
            lambda: len(fleet.held()) == PARTITIONS and "e" not in fleet.held().values(),
            "others have what the dead one had",
            PATIENCE_S,
        )
        fleet.only_moved(before, starts)


@pytest.mark.long
@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "kills"])
@pytest.mark.parametrize("how_far", [1, 3], ids=["half-way", "fully"])
async def test_a_deployment_is_rolled_back(tmp_path: Path, how_far: int, kills: bool) -> None:
    """INC-180 to INC-184: old workers come in, one after the other, and each step is a rebalance of today.

    A partition of the worker that leaves begins with another one at once. When the old worker comes, the
    others keep what they have through the next generation, release what its `range` gives to others, and join
    again:
    with that second generation all begin once more, now where they belong. There is no third one: who has not
    heard its assignment in the first gives up what it kept (INC-181). With a coordinator that dies meanwhile
    there may be.
    """
    async with deployed(tmp_path) as (cluster, fleet, connection):
        await converted(connection)
        await fleet.progresses()
        for new, old in (("d", "x"), ("e", "y"), ("f", "z"))[:how_far]:
            starts, done = fleet.starts(), fleet.done()
            generation = (await connection.group_history(GROUP))[-1].generation
            await fleet.stop(new)
            fleet.start(old, OLD)
            if kills:
                await kill_the_owner_when_it_is(connection, cluster, "classic")
            await fleet.shared()
            now = fleet.starts()
            stops, number = max((count - starts[number], number) for number, count in now.items())
            since = [one for one in await connection.group_history(GROUP) if one.generation > generation]
            trace = "\n".join(
                [f"partition {number}: {fleet.of(number)}"]
                + [f"{one.generation}: {one.cause.sentence or one.cause.reason}" for one in since]
            )
            assert stops <= (3 if kills else 2), f"a leave, and a join:\n{trace}"
            assert all(at >= done[number] for number, at in fleet.done().items()), "no progress is lost"
        assert await kind_of(connection) == "classic"
        await fleet.progresses()
        if how_far == 1:  # the deployment goes on after all
            await fleet.stop("x")
            fleet.start("g", NEW)
            await fleet.shared()
            before, starts = fleet.held(), fleet.starts()
            await converted(connection)
            await fleet.progresses()
            assert (fleet.held(), fleet.starts()) == (before, starts)
        report = verify(cluster.redis_url)
        assert report.clean, report


async def test_an_operator_makes_it_classic_and_nobody_has_to_be_replaced(tmp_path: Path) -> None:
    """INC-180, INC-181: the members go on by themselves, with no loss and no second owner."""
    async with deployed(tmp_path) as (cluster, fleet, connection):
        await converted(connection)
        starts = fleet.starts()
        assert await connection.convert_group(GROUP, "classic")
        await fleet.progresses()
        await fleet.shared()
        await fleet.progresses()
        stops = max(count - starts[number] for number, count in fleet.starts().items())
        assert stops <= 1, "and none, where the group kept partitions before it was incremental"
        report = verify(cluster.redis_url)
        assert report.clean, report


async def kind_of(connection: muster.Cluster) -> str:
    """Of the group, by the coordinators that answer."""
    return next((group.type for group in await connection.list_groups() if group.group_id == GROUP), "")


async def kill_the_owner_when_it_is(connection: muster.Cluster, cluster: DevCluster, kind: str) -> None:
    """Kills the coordinator of the group as soon as that is of a kind, and starts it again."""

    async def has_changed() -> bool:
        return await kind_of(connection) == kind

    await until(has_changed, f"the group is {kind}", PATIENCE_S)
    owner = await find(cluster.servers, GROUP)
    process = next(p for p in cluster.coordinators if owner.endswith(f":{p.port}"))
    await process.kill()
    process.spawn()
    await process.ready()
