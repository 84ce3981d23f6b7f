"""Worker processes that share a sink which notices two owners at a time."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import muster
from kit.started.fenced_worker import Sink
from kit.waiting import until
from muster_server.child_process import ChildProcess

GROUP, PARTITIONS = "g", 12
PATIENCE_S = 180.0
WORKER = str(Path(__file__).parents[1] / "started" / "fenced_worker.py")


class Fleet:
    """Worker processes and the sink that they share."""

    def __init__(self, folder: Path, servers: str, protocol: str, partitions: str = str(PARTITIONS)) -> None:
        self._protocol = protocol
        self._partitions = partitions
        self._folder = folder
        self._servers = servers
        self.sink = Sink(str(folder / "sink.db"))
        self.workers: dict[str, ChildProcess] = {}

    def start(
        self,
        name: str,
        protocol: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        """Starts one, of the fleet's protocol or another one."""
        path = str(self._folder / "sink.db")
        protocol = protocol or self._protocol
        arguments = [self._servers, GROUP, self._partitions, path, name, protocol, json.dumps(settings)]
        command = [sys.executable, WORKER, *arguments]
        log = self._folder / f"{name}.log"
        worker = ChildProcess(name, command, log, environment or {}, removed=("MUSTER_",))
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

    def of(self, number: int) -> list[str]:
        """Who began to work on a partition, in order."""
        rows = self.sink.rows(f"SELECT worker FROM starts WHERE partition = {number} ORDER BY rowid")
        return [str(worker) for (worker,) in rows]

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

    async def has(self, **shares: int) -> None:
        """Waits until the workers have so many partitions, and nobody else has any."""
        await until(lambda: Counter(self.held().values()) == shares, f"shares of {shares}", PATIENCE_S)

    async def joined(self, name: str) -> None:
        """Waits until a worker is a member, whatever it has."""
        async with muster.Cluster(self._servers) as cluster:
            while True:
                group = await cluster.describe_group(GROUP)
                if any(member.client_id == name for member in group.members):
                    return
                await asyncio.sleep(0.1)

    async def progresses(self) -> None:
        """Waits until every partition was committed three times more."""
        before = self.done()

        def has_progressed() -> bool:
            now = self.done()
            return all(now[number] >= position + 3 for number, position in before.items())

        await until(has_progressed, "all partitions progress", PATIENCE_S)

    def only_moved(self, before: dict[int, str], starts: dict[int, int]) -> None:
        """Checks that since then work began anew where the owner changed, and nowhere else."""
        now = self.starts()
        for number, owner in self.held().items():
            assert now[number] == starts.get(number, 0) + int(owner != before.get(number)), number
