"""A process with members of many groups; each writes to the sink and commits once a second.

    python -m chaos.worker NAME SERVERS SINK FOLDER NUMBER COUNT MEMBERS KIND/GROUP...

Of each group's MEMBERS it runs those whose number is NUMBER modulo COUNT; KIND is the protocol of the group,
`classic` or `incremental`. It ends, members closed in order, when standard input ends.
"""

import asyncio
import random
import sys
from pathlib import Path
from typing import Literal

import muster
import uvloop
from chaos.history import Recorder
from chaos.kinds import INCREMENTAL
from chaos.sink import Sink

COMMIT_SECONDS, WORK_SECONDS = 1.0, 0.3


class Worker:
    """One member and its work.

    The value of a partition grows by one with each commit, from what was committed before on. A commit whose
    outcome is not known is not repeated: the next one has a higher value.
    """

    def __init__(
        self,
        slot: str,
        group: str,
        protocol: Literal["classic", "incremental"],
        cluster: muster.Cluster,
        sink: Sink,
        history: Recorder,
    ) -> None:
        self._slot = slot
        self._group = group
        self._protocol = protocol
        self._sink = sink
        self._history = history
        self._values: dict[muster.TopicPartition, tuple[str, int]] = {}
        self.member = muster.Member(
            cluster,
            group_id=group,
            topics=group,
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=lambda _: self._tell("revoked"),
            on_partitions_lost=lambda _: self._tell("lost"),
            client_id=slot.replace("/", "-"),
            protocol=protocol,
        )

    def _assigned(self, owned: tuple[muster.TopicPartition, ...]) -> None:
        tokens = {str(partition.number): self.member.token(partition) for partition in owned}
        self._tell("assigned", gen=self.member.generation, tokens=tokens, kind=self._protocol)

    def _tell(self, what: str, **fields: object) -> None:
        self._history.note(what, s=self._slot, g=self._group, m=self.member.member_id, **fields)

    async def run(self) -> None:
        """Works for ever."""
        await asyncio.sleep(random.random() * COMMIT_SECONDS)
        while True:
            listed = self.member.partitions
            self._tell("listed", ps=[partition.number for partition in listed])
            asked = [asyncio.create_task(self._advance(partition)) for partition in listed]
            await asyncio.sleep(COMMIT_SECONDS)
            if asked:
                await asyncio.wait(asked)

    async def _advance(self, partition: muster.TopicPartition) -> None:
        try:
            token, member_id = self.member.token(partition), self.member.member_id
            known = self._values.get(partition)
            if known is None or known[0] != token:
                known = token, await self._read(partition)
            value = known[1] + 1
            self._values[partition] = (token, value)
            await asyncio.sleep(
                WORK_SECONDS
            )  # between the token and the write: here a process becomes a zombie
            if not await self._sink.write(self._group, partition.number, token, member_id, value):
                self._tell("refused", p=partition.number, token=token)
                return
        except muster.CommitFailed:
            return  # it was lost meanwhile
        operation = self._history.invoke(
            "commit", s=self._slot, g=self._group, p=partition.number, v=value, m=member_id
        )
        try:
            await self.member.commit({partition: value})
        except muster.MusterError as error:
            self._history.end("info", operation, why=str(error)[:120])
        else:
            self._history.end("ok", operation)

    async def _read(self, partition: muster.TopicPartition) -> int:
        operation = self._history.invoke("fetch", s=self._slot, g=self._group, ps=[partition.number])
        found = await self.member.committed([partition])
        value = found[partition].offset if partition in found else -1
        self._history.end("ok", operation, vs={str(partition.number): value})
        return value


async def main(name: str, servers: str, sink_url: str, folder: str, *rest: str) -> None:
    """Runs the members until standard input ends."""
    number, count, members = map(int, rest[:3])
    groups = [kind_and_group.split("/") for kind_and_group in rest[3:]]
    history = Recorder(Path(folder) / f"{name}.jsonl", name)
    sink = Sink(sink_url)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with muster.Cluster(servers) as cluster:
        workers = [
            Worker(
                f"{group}/{member}",
                group,
                "incremental" if kind == INCREMENTAL else "classic",
                cluster,
                sink,
                history,
            )
            for kind, group in groups
            for member in range(number, members, count)
        ]
        await asyncio.gather(*(worker.member.start() for worker in workers))
        work = [asyncio.create_task(worker.run()) for worker in workers]
        await reader.read()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await asyncio.gather(*(worker.member.close() for worker in workers))
    await sink.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
