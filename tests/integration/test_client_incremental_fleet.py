"""Worker processes in an incremental group on a real cluster: only what moves stops, whatever is killed."""

from pathlib import Path

import pytest
from kit.clusters.fenced_fleet import GROUP, Fleet
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
            await fleet.shared()
            before, starts = fleet.held(), fleet.starts()
            await fleet.kill("d")
            await fleet.shared()
            fleet.only_moved(before, starts)
        finally:
            for name in tuple(fleet.workers):
                await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.held() == {}


async def test_a_blocked_event_loop_keeps_its_partitions(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster,
        worker(cluster.servers, BLOCKING, "blocked") as process,
    ):
        assert (await line_with(process.stdout, "stored")).count("at 0") == 1
