"""Worker processes in an incremental group on a real cluster: only what moves stops, whatever is killed."""

import sys
from pathlib import Path

import pytest
from kit.clusters.server_cluster import all_served, find, running
from kit.started.fenced_worker import Sink
from kit.waiting import until
from kit.workers import line_with, worker
from muster_server.child_process import ChildProcess

pytestmark = pytest.mark.cluster

GROUP, PARTITIONS = "g", 12
PATIENCE_S = 180.0
BLOCKING = """
async def work(p):
    say(p)
    time.sleep(8)  # longer than disconnect_grace_ms
    await p.commit(1)
    print("stored", flush=True)
    await asyncio.sleep(3600)

muster.run(work, group=group, topic=group, partitions=1, protocol="incremental")
"""
WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "fenced_worker.py")


class Fleet:
    """Worker processes and the sink that they share."""

    def __init__(self, folder: Path, servers: str, protocol: str) -> None:
        self._protocol = protocol
        self._folder = folder
        self._servers = servers
        self.sink = Sink(str(folder / "sink.db"))
        self.workers: dict[str, ChildProcess] = {}

    def start(self, name: str) -> None:
        path = str(self._folder / "sink.db")
        arguments = [self._servers, GROUP, str(PARTITIONS), path, name, self._protocol]
        command = [sys.executable, WORKER, *arguments]
        worker = ChildProcess(name, command, self._folder / f"{name}.log", {}, removed=("MUSTER_",))
        worker.start()
        self.workers[name] = worker

    async def stop(self, name: str) -> None:
        worker = self.workers.pop(name)
        assert await worker.terminate(60) == 0, worker.tail()

    async def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        await worker.kill()
        self.sink.killed(name)

    def held(self) -> dict[int, str]:
        """Who works on what."""
        rows = self.sink.rows("SELECT partition, worker FROM holder")
        return {int(str(number)): str(worker) for number, worker in rows}

    def starts(self) -> dict[int, int]:
        """How often work on each partition began."""
        return self._numbers("SELECT partition, COUNT(*) FROM starts GROUP BY partition")

    def done(self) -> dict[int, int]:
        """How far each partition was committed."""
        return self._numbers("SELECT partition, position FROM done")

    def _numbers(self, query: str) -> dict[int, int]:
        return {int(str(number)): int(str(value)) for number, value in self.sink.rows(query)}

    async def shared(self) -> None:
        """Waits until the present workers have equal shares of all partitions."""
        share = PARTITIONS // len(self.workers)

        def is_shared() -> bool:
            owners = list(self.held().values())
            return all(owners.count(name) == share for name in self.workers) and len(owners) == PARTITIONS

        await until(is_shared, f"{sorted(self.workers)} share the work", PATIENCE_S)

    async def progresses(self) -> None:
        """Waits until every partition was committed three times more."""
        before = self.done()

        def has_progressed() -> bool:
            now = self.done()
            return all(now[number] >= position + 3 for number, position in before.items())

        await until(has_progressed, "all partitions progress", PATIENCE_S)


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
            _only_moved(before, starts, fleet)
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
            _only_moved(before, starts, fleet)
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


def _only_moved(before: dict[int, str], starts: dict[int, int], fleet: Fleet) -> None:
    """Work began anew where the owner changed, and nowhere else."""
    now = fleet.starts()
    for number, owner in fleet.held().items():
        assert now[number] == starts[number] + int(owner != before[number]), number
