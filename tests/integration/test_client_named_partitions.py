"""Workers on a topic whose partitions have names, which are added and removed while they work."""

import asyncio
import json
import sys
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.waiting import until
from muster_server.child_process import ChildProcess
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, TOPIC = "g", "tenants"
PATIENCE_S = 120.0
WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "named_worker.py")


class Workers:
    """Worker processes, and what each works on as it says itself."""

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder = folder
        self._servers = servers
        self.running: dict[str, ChildProcess] = {}

    def start(self, name: str, *partitions: str) -> None:
        command = [sys.executable, WORKER, self._servers, GROUP, TOPIC, str(self._folder / name), *partitions]
        worker = ChildProcess(name, command, self._folder / f"{name}.log", removed=("MUSTER_",))
        worker.start()
        self.running[name] = worker

    def works_on(self, name: str) -> set[str]:
        try:
            return set(json.loads((self._folder / name).read_text()))
        except FileNotFoundError:
            return set()

    async def share(self, *names: str) -> None:
        """Waits until all workers together, each with something, work on these partitions, each once."""

        def are_shared() -> bool:
            for worker in self.running.values():
                assert worker.returncode is None, worker.tail()
            shares = [self.works_on(name) for name in self.running]
            return all(shares) and sorted(one for share in shares for one in share) == sorted(names)

        await until(are_shared, f"{names} are shared", PATIENCE_S)

    async def let_go(self) -> None:
        """Waits until no worker works on anything."""
        await until(
            lambda: not any(self.works_on(name) for name in self.running), "nothing is worked on", PATIENCE_S
        )

    async def stop(self) -> None:
        for worker in self.running.values():
            assert await worker.terminate(60) == 0, worker.tail()


@pytest.mark.long
async def test_partitions_come_and_go_while_workers_work(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "cluster", redis_nodes=1, coordinators=2) as cluster,
        muster.Cluster(cluster.servers) as connection,
    ):
        workers = Workers(tmp_path, cluster.servers)
        try:
            workers.start("w1", "acme", "globex", "hooli")
            workers.start("w2")
            await workers.share("acme", "globex", "hooli")
            workers.start("w3", "initech")
            await workers.share("acme", "globex", "hooli", "initech")
            await connection.add_partitions(TOPIC, {"umbrella": 5})
            await workers.share("acme", "globex", "hooli", "initech", "umbrella")

            async def is_committed() -> bool:
                return muster.TopicPartition(TOPIC, 1) in await connection.committed(GROUP)

            await until(is_committed, "globex has progress", PATIENCE_S)
            topic = await connection.remove_partitions(TOPIC, ["globex"])
            assert topic.names == ("acme", "", "hooli", "initech", "umbrella")
            assert topic.weights == (1, 0, 1, 1, 5)
            # From the answer on, also before the workers have heard of it.
            assert not await is_committed()
            await workers.share("acme", "hooli", "initech", "umbrella")

            await connection.add_partitions(TOPIC, ["globex"])
            await workers.share("acme", "globex", "hooli", "initech", "umbrella")
            found = {key: await connection.owner_of(GROUP, TOPIC, key) for key in ("globex", 0, "umbrella")}
            assert [owner.partition.number for owner in found.values() if owner] == [5, 0, 4]
            for key in ("missing", 1, 6, "5"):
                with pytest.raises(muster.TopicError, match="has no partition"):
                    await connection.owner_of(GROUP, TOPIC, key)
            for owner in found.values():
                assert owner is not None
                assert owner.client_id in workers.running
            again = await asyncio.to_thread(
                muster.owner_of, TOPIC, "globex", group=GROUP, servers=cluster.servers
            )
            assert again == found["globex"]

            # Another topic of the name: names have numbers of their own there.
            await connection.delete_topic(TOPIC)
            await workers.let_go()
            await connection.create_topic(TOPIC, ["zorg", "acme", "wonka"])
            await workers.share("zorg", "acme", "wonka")
            assert not {place.number for place in await connection.committed(GROUP)} - {0, 1, 2}
        finally:
            await workers.stop()
        report = verify(cluster.redis_url)
        assert report.clean, report
