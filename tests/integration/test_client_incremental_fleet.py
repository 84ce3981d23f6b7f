"""Worker processes in an incremental group on a real cluster: only what moves stops, whatever is killed."""

from collections.abc import Awaitable
from pathlib import Path

import muster
import pytest
from kit.clusters.fenced_fleet import GROUP, PARTITIONS, Fleet
from kit.clusters.server_cluster import all_served, find, running
from kit.workers import line_with, worker

pytestmark = pytest.mark.cluster

BLOCKING = """
async def work(p):
    say(p)
    time.sleep(8)  # longer than disconnect_grace_ms
    await p.commit(1)
    print("stored", flush=True)
    await asyncio.sleep(3600)

muster.run(work, group=group, topic=group, partitions=1, protocol="incremental")
"""


@pytest.mark.parametrize("protocol", ["incremental", "incremental-unary"])
async def test_workers_come_go_and_die_and_a_coordinator_dies_and_only_what_moves_stops(
    tmp_path: Path, protocol: str
) -> None:
    async with running(tmp_path / "cluster", redis_nodes=1) as cluster:
        await all_served(cluster.servers)
        fleet = Fleet(tmp_path, cluster.servers, protocol)
        try:
            for name in ("a", "b", "c"):
                fleet.start(name)
            await fleet.shared()
            before, starts = fleet.held(), fleet.starts()
            fleet.start("d")
            await fleet.shared()
            fleet.only_moved(before, starts)
            before, starts = fleet.held(), fleet.starts()
            owner = await find(cluster.servers, GROUP)
            await next(p for p in cluster.coordinators if owner.endswith(f":{p.port}")).kill()
            await fleet.progresses()
            if protocol == "incremental-unary":  # a grace is short for a slow machine's fail-over
                assert (fleet.held(), fleet.starts()) == (before, starts), "a fail-over stopped work"
            await fleet.stop("d")
            fleet.start("e", session_timeout_ms=10_000, disconnect_grace_ms=5_000)
            await fleet.shared()
            before, starts = fleet.held(), fleet.starts()
            await fleet.kill("e")
            await fleet.shared()
            fleet.only_moved(before, starts)
        finally:
            for name in tuple(fleet.workers):
                await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.held() == {}


async def test_a_group_grows_and_its_members_weigh_and_only_what_moves_stops(tmp_path: Path) -> None:
    """INC-162: work on what stays is never begun again."""
    async with (
        running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster,
        muster.Cluster(cluster.servers) as topics,
    ):
        await all_served(cluster.servers)
        await topics.create_topic(GROUP, [f"p{number}" for number in range(12)])
        fleet = Fleet(tmp_path, cluster.servers, "incremental", "-")

        async def changes(change: Awaitable[object], moves: int, **shares: int) -> None:
            before, starts = fleet.held(), fleet.starts()
            await change
            await fleet.has(**shares)
            fleet.only_moved(before, starts)
            now = fleet.held()
            assert sum(now.get(number) not in (owner, None) for number, owner in before.items()) == moves

        async def started(name: str, weight: int) -> None:
            fleet.start(name, weight=weight)

        try:
            fleet.start("a")
            fleet.start("b")
            await fleet.has(a=6, b=6)
            await changes(started("c", 2), 6, a=3, b=3, c=6)
            added = topics.add_partitions(GROUP, [f"p{number}" for number in range(12, 16)])
            await changes(added, 0, a=4, b=4, c=8)
            heavy = min(number for number, owner in fleet.held().items() if owner == "c")
            await changes(topics.add_partitions(GROUP, {f"p{heavy}": 5}), 2, a=5, b=5, c=6)
            light = next(number for number, owner in fleet.held().items() if owner == "a")
            await changes(topics.remove_partitions(GROUP, [f"p{light}"]), 0, a=4, b=5, c=6)
        finally:
            for name in tuple(fleet.workers):
                await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []


async def test_a_rolling_deployment_moves_each_partition_once_and_through_a_fail_over(tmp_path: Path) -> None:
    """INC-170, INC-172: from who leaves to who is new; an operator ends the hold."""
    async with running(tmp_path / "cluster", redis_nodes=1) as cluster:
        await all_served(cluster.servers)
        fleet = Fleet(tmp_path, cluster.servers, "incremental")
        try:
            for name in ("a", "b", "c"):
                fleet.start(name)
            await fleet.shared()
            begun = fleet.starts()
            for old, new in (("a", "d"), ("b", "e"), ("c", "f")):
                before, starts = fleet.held(), fleet.starts()
                fleet.start(new, rollout_hold_ms=600_000)
                await fleet.joined(new)
                await fleet.stop(old)
                await fleet.has(**dict.fromkeys(fleet.workers, PARTITIONS // 3))
                fleet.only_moved(before, starts)
                if new == "d":
                    owner = await find(cluster.servers, GROUP)
                    await next(p for p in cluster.coordinators if owner.endswith(f":{p.port}")).kill()
                    await fleet.progresses()
            assert fleet.starts() == {number: count + 1 for number, count in begun.items()}
            fleet.start("g", rollout_hold_ms=600_000)
            await fleet.joined("g")
            await fleet.progresses()
            assert "g" not in fleet.held().values()
            async with muster.Cluster(cluster.servers) as operator:
                detail = await operator.describe_incremental_group(GROUP)
                assert detail.hold.member_id.startswith("g-")
                await operator.alter_group_settings(GROUP, {"hold": False})
            await fleet.shared()
        finally:
            for name in tuple(fleet.workers):
                await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []


async def test_a_blocked_event_loop_keeps_its_partitions(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster,
        worker(cluster.servers, BLOCKING, "blocked") as process,
    ):
        assert (await line_with(process.stdout, "stored")).count("at 0") == 1
