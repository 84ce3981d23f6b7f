"""A topic gets more partitions while workers that ask for different numbers of them are replaced."""

import sys
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.started.fenced_worker import Sink
from kit.waiting import until
from muster_server.child_process import ChildProcess
from muster_server.dev.cluster import DevCluster

pytestmark = pytest.mark.cluster

GROUP, FEW, MORE = "g", 50, 52
ANY = "-"
PATIENCE_S = 120.0
WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "fenced_worker.py")


class Fleet:
    """Worker processes, each with the number of partitions that it asks for."""

    def __init__(self, folder: Path, cluster: DevCluster) -> None:
        self._folder = folder
        self._servers = cluster.servers
        self._started = 0
        self.sink = Sink(str(folder / "sink.db"))
        self.workers: list[ChildProcess] = []

    def start(self, partitions: int | str) -> None:
        self._started += 1
        name = f"w{self._started}"
        arguments = [self._servers, GROUP, str(partitions), str(self._folder / "sink.db"), name, "range"]
        worker = ChildProcess(
            name, [sys.executable, WORKER, *arguments], self._folder / f"{name}.log", removed=("MUSTER_",)
        )
        worker.start()
        self.workers.append(worker)

    async def stop_oldest(self) -> None:
        worker = self.workers.pop(0)
        assert await worker.terminate(60) == 0, worker.tail()

    async def shared(self, partitions: int) -> None:
        """Waits until the present workers, and nobody else, work on so many partitions."""
        names = {worker.name for worker in self.workers}

        def is_shared() -> bool:
            for worker in self.workers:
                assert worker.returncode is None, worker.tail()
            holders = self.sink.rows("SELECT partition, worker FROM holder")
            return len(holders) == partitions and {worker for _, worker in holders} == names

        await until(is_shared, f"{sorted(names)} share {partitions} partitions", PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("catalog_first", [False, True], ids=["workers-first", "catalog-first"])
async def test_a_topic_grows_below_workers_that_ask_for_fewer_for_more_or_for_none(
    tmp_path: Path, catalog_first: bool
) -> None:
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster:
        fleet = Fleet(tmp_path, cluster)
        try:
            fleet.start(FEW)
            fleet.start(FEW)
            await fleet.shared(FEW)
            if catalog_first:
                async with muster.Cluster(cluster.servers) as connection:
                    await connection.alter_topic(GROUP, MORE)
                await fleet.shared(MORE)
            for asked in (MORE, ANY, FEW):  # the last one goes back
                fleet.start(asked)
                await fleet.shared(MORE)
                await fleet.stop_oldest()
                await fleet.shared(MORE)
        finally:
            while fleet.workers:
                await fleet.stop_oldest()
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        async with muster.Cluster(cluster.servers) as connection:
            assert (await connection.ensure_topic(GROUP)).partitions == MORE
