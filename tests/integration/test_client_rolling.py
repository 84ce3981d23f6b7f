"""A fleet goes over from assignors that move everything to those that keep, and back, under load."""

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import FAST_GROUPS, running
from kit.clusters.two_versions import TwoVersions, history_problem, unpack_previous
from kit.started.fenced_worker import Sink
from kit.waiting import until
from muster_server.child_process import ChildProcess
from muster_server.dev.cluster import DevCluster
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, PARTITIONS, WORKERS = "g", 12, 3
PATIENCE_S = 120.0
WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "fenced_worker.py")
EAGER, EITHER, KEEPING, DEFAULT = "range", "cooperative-sticky,range", "cooperative-sticky", "-"


class Fleet:
    """Worker processes, one in each place."""

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder = folder
        self._servers = servers
        self._started = 0
        self.sink = Sink(str(folder / "sink.db"))
        self.workers: list[ChildProcess] = []

    def start(self, assignors: str, environment: Mapping[str, str] | None = None) -> ChildProcess:
        self._started += 1
        name = f"w{self._started}"
        arguments = [self._servers, GROUP, str(PARTITIONS), str(self._folder / "sink.db")]
        command = [sys.executable, WORKER, *arguments, name, assignors]
        worker = ChildProcess(
            name, command, self._folder / f"{name}.log", environment or {}, removed=("MUSTER_",)
        )
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

    async def replace_all(
        self, assignors: str, *, new_first: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        for old in tuple(self.workers):
            if new_first:
                self.start(assignors, environment)
                await self.shared()
                await self.stop(old)
            else:
                await self.stop(old)
                self.start(assignors, environment)
            await self.shared()


@pytest.mark.long
@pytest.mark.parametrize("new_first", [False, True], ids=["old-first", "new-first"])
async def test_a_fleet_goes_over_and_back_and_no_partition_has_two_owners(
    tmp_path: Path, new_first: bool
) -> None:
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster:
        fleet = Fleet(tmp_path, cluster.servers)
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


@pytest.mark.long
@pytest.mark.parametrize("servers", ["of this version", "of the version before"])
async def test_the_default_goes_over_from_the_version_before_and_back(tmp_path: Path, servers: str) -> None:
    """Workers that name no assignors take over from those of 0.1.0, one by one; nobody does anything else."""
    if history_problem():
        pytest.skip(history_problem())
    before = {"PYTHONPATH": unpack_previous()}
    async with AsyncExitStack() as stack:
        where: DevCluster | TwoVersions
        if servers == "of this version":
            where = await stack.enter_async_context(
                running(tmp_path / "cluster", redis_nodes=1, coordinators=1)
            )
            redis_url = where.redis_url
        else:
            where = await stack.enter_async_context(TwoVersions(tmp_path / "cluster", FAST_GROUPS))
            redis_url = where.nodes.url
        fleet = Fleet(tmp_path, where.servers)
        try:
            for _ in range(WORKERS):
                fleet.start(DEFAULT, before)
            await fleet.shared()
            await fleet.replace_all(DEFAULT, new_first=True)
            assert await protocol_of(where.servers) == "cooperative-sticky"
            fleet.start(DEFAULT)
            await fleet.shared()
            await fleet.stop(fleet.workers[0])
            await fleet.shared()
            await fleet.replace_all(DEFAULT, new_first=True, environment=before)
            assert await protocol_of(where.servers) == "range"
        finally:
            for worker in tuple(fleet.workers):
                await fleet.stop(worker)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.sink.rows("SELECT * FROM holder") == []
        report = verify(redis_url)
        assert report.clean, report


async def protocol_of(servers: str) -> str:
    """The assignor that the group uses."""
    async with muster.Cluster(servers) as cluster:
        return (await cluster.describe_group(GROUP)).protocol_name
