"""A fleet goes over from assignors that move everything to those that keep, and back, under load."""

import sys
from pathlib import Path

import pytest
from kit.clusters.server_cluster import running
from kit.started.fenced_worker import Sink
from kit.waiting import until
from muster_server.child_process import ChildProcess
from muster_server.dev.cluster import DevCluster
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, PARTITIONS, WORKERS = "g", 12, 3
PATIENCE_S = 120.0
WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "fenced_worker.py")
EAGER, EITHER, KEEPING = "range", "cooperative-sticky,range", "cooperative-sticky"


class Fleet:
    """Worker processes, one in each place."""

    def __init__(self, folder: Path, cluster: DevCluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self._started = 0
        self.sink = Sink(str(folder / "sink.db"))
        self.workers: list[ChildProcess] = []

    def start(self, assignors: str) -> ChildProcess:
        self._started += 1
        name = f"w{self._started}"
        arguments = [self._cluster.servers, GROUP, str(PARTITIONS), str(self._folder / "sink.db")]
        command = [sys.executable, WORKER, *arguments, name, assignors]
        worker = ChildProcess(name, command, self._folder / f"{name}.log", removed=("MUSTER_",))
        worker.start()
        self.workers.append(worker)
        return worker

    async def stop(self, worker: ChildProcess) -> None:
        self.workers.remove(worker)
        assert await worker.terminate(60) == 0, worker.tail()

    async def shared(self) -> None:
        """Waits until the present workers, and nobody else, work on all partitions."""
        names = {worker.name for worker in self.workers}

        def is_shared() -> bool:
            holders = self.sink.rows("SELECT partition, worker FROM holder")
            return len(holders) == PARTITIONS and {worker for _, worker in holders} == names

        await until(is_shared, f"{sorted(names)} share the work", PATIENCE_S)

    async def replace_all(self, assignors: str, *, new_first: bool) -> None:
        for old in tuple(self.workers):
            if new_first:
                self.start(assignors)
                await self.shared()
                await self.stop(old)
            else:
                await self.stop(old)
                self.start(assignors)
            await self.shared()


@pytest.mark.long
@pytest.mark.parametrize("new_first", [False, True], ids=["old-first", "new-first"])
async def test_a_fleet_goes_over_and_back_and_no_partition_has_two_owners(
    tmp_path: Path, new_first: bool
) -> None:
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster:
        fleet = Fleet(tmp_path, cluster)
        try:
            for _ in range(WORKERS):
                fleet.start(EAGER)
            await fleet.shared()
            for assignors in (EITHER, KEEPING, EITHER, EAGER):
                await fleet.replace_all(assignors, new_first=new_first)
                assert fleet.sink.rows("SELECT * FROM wrong") == []
        finally:
            for worker in tuple(fleet.workers):
                await fleet.stop(worker)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.sink.rows("SELECT * FROM holder") == []
        report = verify(cluster.redis_url)
        assert report.clean, report
