"""Members for bench/rebalance.py: one process, one stream, at most a hundred members of an incremental
group.

Commands come on standard input, one a line: `add COUNT`, `remove` (the newest), `commit COUNT` (so many
members commit 20 times a second each), `take` (says what was committed since the last time). What happens
goes to standard output as JSON lines with times of the monotonic clock, which all processes of a machine
share.
"""

import asyncio
import json
import sys
import time

import muster
from muster import TopicPartition

COMMIT_INTERVAL_S = 0.05
SAY_AFTER_S = 0.05
"""What happens is written down so much later: writing would take time of what is measured."""

said: list[dict[str, object]] = []


def say(event: str, **fields: object) -> None:
    """Notes it with the time; it is written a little later."""
    if not said:
        asyncio.get_running_loop().call_later(SAY_AFTER_S, write)
    said.append({"event": event, "at_ns": time.monotonic_ns(), **fields})


def write() -> None:
    """Writes what was noted."""
    sys.stdout.write("".join(json.dumps(one) + "\n" for one in said))
    sys.stdout.flush()
    said.clear()


class Worker:
    """A member whose callbacks take no time.

    Args:
        cluster: its connection.
        group: the group, and its topic.
        name: says who it is to the bench.
    """

    def __init__(self, cluster: muster.Cluster, group: str, name: str) -> None:
        self._name = name
        self.member = muster.Member(
            cluster,
            group_id=group,
            topics=group,
            protocol="incremental",
            on_partitions_assigned=lambda some: self._say("assigned", some),
            on_partitions_revoked=lambda some: self._say("revoked", some),
            on_partitions_lost=lambda some: self._say("lost", some),
        )
        self.commits: list[tuple[int, int, int]] = []
        """Partition, when it was sent and how long it took, ns."""

    def _say(self, event: str, some: tuple[TopicPartition, ...]) -> None:
        say(event, member=self._name, partitions=[partition.number for partition in some])

    async def commit_steadily(self) -> None:
        """What cannot be committed in time is not made up for."""
        position = 0
        due = time.monotonic()
        while True:
            due = max(due + COMMIT_INTERVAL_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if not self.member.partitions:
                continue
            position += 1
            partition = self.member.partitions[position % len(self.member.partitions)]
            sent_ns = time.monotonic_ns()
            try:
                await self.member.commit({partition: position})
            except muster.CommitFailed:
                continue  # it moves
            self.commits.append((partition.number, sent_ns, time.monotonic_ns() - sent_ns))


async def main(servers: str, group: str, process: str) -> None:
    workers: list[Worker] = []
    committing: list[asyncio.Task[None]] = []
    started = 0
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with muster.Cluster(servers) as cluster:
        await cluster.describe()  # it is connected before it is told to join
        say("ready")
        while line := (await reader.readline()).decode().split():
            if line[0] == "add":
                added = []
                for _ in range(int(line[1])):
                    added.append(Worker(cluster, group, f"{process}-{started}"))
                    started += 1
                workers += added
                say("adding")
                await asyncio.gather(*(worker.member.start() for worker in added))
            elif line[0] == "remove":
                await workers.pop().member.close("bench")
                say("removed")
            elif line[0] == "commit":
                some = workers[: int(line[1])]
                committing += [loop.create_task(worker.commit_steadily()) for worker in some]
            elif line[0] == "take":
                rows = [row for worker in workers for row in worker.commits]
                for worker in workers:
                    worker.commits.clear()
                say("commits", rows=rows)
        for task in committing:
            task.cancel()
        await asyncio.gather(*(worker.member.close("bench") for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
