"""Workers that commit all the time and write down what they were told; runs inside the cluster.

    python fleet.py NAME FOLDER SERVERS GROUPS MEMBERS

One worker of each of GROUPS groups. Each group has a topic with MEMBERS partitions, so that MEMBERS such
processes have one partition for each worker. Ends, workers closed in order, at SIGTERM.
"""

import asyncio
import random
import signal
import sys
from pathlib import Path

import muster
from chaos.history import Recorder

COMMIT_SECONDS, READ_SECONDS = 0.1, 2.0


class Worker:
    """A member that commits growing values, ten a second, and now and then reads back what it committed.

    A commit whose outcome is not known is not repeated: the next one has a higher value.
    """

    def __init__(self, slot: str, group: str, cluster: muster.Cluster, history: Recorder) -> None:
        self._slot = slot
        self._group = group
        self._history = history
        self._values: dict[int, tuple[str, int]] = {}
        self.member = muster.Member(
            cluster,
            group_id=group,
            topics=group,
            protocol="classic",
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=lambda _: self._tell("revoked"),
            on_partitions_lost=lambda _: self._tell("lost"),
            client_id=slot.replace("/", "-"),
        )

    def _assigned(self, owned: tuple[muster.TopicPartition, ...]) -> None:
        tokens = {str(partition.number): self.member.token(partition) for partition in owned}
        self._tell("assigned", gen=self.member.generation, tokens=tokens)

    def _tell(self, what: str, **fields: object) -> None:
        self._history.note(what, s=self._slot, g=self._group, m=self.member.member_id, **fields)

    async def commit_for_ever(self) -> None:
        """The work."""
        await asyncio.sleep(random.random() * COMMIT_SECONDS)
        while True:
            for partition in self.member.partitions:
                try:
                    await self._commit(partition)
                except muster.MusterError as error:
                    self._tell("uncommitted", p=partition.number, why=str(error)[:120])
            await asyncio.sleep(COMMIT_SECONDS)

    async def read_for_ever(self) -> None:
        """Reads see what was acknowledged before they began; the checker compares."""
        await asyncio.sleep(random.random() * READ_SECONDS)
        while True:
            for partition in self.member.partitions:
                try:
                    await self._read(partition)
                except muster.MusterError as error:
                    self._tell("unread", why=str(error)[:120])
            await asyncio.sleep(READ_SECONDS)

    async def _commit(self, partition: muster.TopicPartition) -> None:
        token = self.member.token(partition)
        known = self._values.get(partition.number)
        value = 1 + (known[1] if known is not None and known[0] == token else await self._read(partition))
        self._values[partition.number] = (token, value)
        operation = self._history.invoke(
            "commit", s=self._slot, g=self._group, p=partition.number, v=value, m=self.member.member_id
        )
        try:
            await self.member.commit({partition: value})
        except muster.MusterError as error:
            self._history.end("info", operation, why=str(error)[:120])
            raise
        self._history.end("ok", operation)

    async def _read(self, partition: muster.TopicPartition) -> int:
        operation = self._history.invoke("fetch", s=self._slot, g=self._group, ps=[partition.number])
        found = await self.member.committed([partition])
        value = found[partition].offset if partition in found else -1
        self._history.end("ok", operation, vs={str(partition.number): value})
        return value


async def main(name: str, folder: str, servers: str, groups: str, members: str) -> None:
    """Runs the workers until SIGTERM."""
    history = Recorder(Path(folder) / f"{name}.jsonl", name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with muster.Cluster(servers) as cluster:
        workers = []
        for number in range(int(groups)):
            group = f"e2e-{number}"
            await cluster.ensure_topic(group, int(members))
            workers.append(Worker(f"{group}/{name}", group, cluster, history))
        await asyncio.gather(*(worker.member.start() for worker in workers))
        work = [
            asyncio.create_task(part())
            for worker in workers
            for part in (worker.commit_for_ever, worker.read_for_ever)
        ]
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            task.cancel()
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.gather(*(worker.member.close() for worker in workers))
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
