"""Workers of a group that changes its kind while they work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import muster
from muster.testing import LocalCluster

AUTO: muster.MemberSettings = {"protocol": "auto"}
KEEPING: muster.MemberSettings = {"protocol": "auto", "assignors": ["cooperative-sticky"]}
CONVERT_AFTER_S = 5.0
"""How long after the last join a group of a cluster `changing_kind` becomes incremental."""


class Sink:
    """What workers share: who works on what, and what must not be."""

    def __init__(self) -> None:
        self.owner: dict[muster.TopicPartition, str] = {}
        self.tokens: dict[muster.TopicPartition, str] = {}
        self.wrong: list[str] = []

    def begins(self, name: str, partition: muster.TopicPartition, token: str) -> None:
        if partition in self.owner:
            self.wrong.append(f"{name} begins {partition}, which {self.owner[partition]} has")
        if token < self.tokens.get(partition, ""):
            self.wrong.append(f"{name} begins {partition} with an older token")
        self.owner[partition], self.tokens[partition] = name, token

    def ends(self, partition: muster.TopicPartition) -> None:
        self.owner.pop(partition, None)


class Worker:
    """A member that notes each of its callbacks, and tells the sink what it works on."""

    def __init__(self, connection: muster.Cluster, sink: Sink, name: str, **settings: Any) -> None:
        self.calls: list[tuple[str, tuple[muster.TopicPartition, ...]]] = []
        self.slow_s = 0.0

        def noted(called: str) -> Callable[[tuple[muster.TopicPartition, ...]], Awaitable[None]]:
            async def note(some: tuple[muster.TopicPartition, ...]) -> None:
                self.calls.append((called, some))
                if called == "assigned":
                    for one in some:
                        sink.begins(name, one, self.member.token(one))
                    return
                if called == "revoked":
                    await asyncio.sleep(self.slow_s)
                for one in some:
                    sink.ends(one)

            return note

        self.member = muster.Member(
            connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=noted("assigned"),
            on_partitions_revoked=noted("revoked"),
            on_partitions_lost=noted("lost"),
            **settings,
        )

    @property
    def tokens(self) -> dict[muster.TopicPartition, str]:
        return {one: self.member.token(one) for one in self.member.partitions}

    @property
    def names(self) -> list[str]:
        return [called for called, some in self.calls if some]


async def is_of(kind: str, connection: muster.Cluster) -> bool:
    """Whether the one group is of this kind: consumer (incremental) or classic."""
    return [group.type for group in await connection.list_groups()] == [kind]


def share(*workers: Worker, of: int = 6) -> bool:
    """Whether workers have equal shares of all partitions."""
    shares = [worker.member.partitions for worker in workers]
    return {len(one) for one in shares} == {of // len(workers)} and len(set().union(*shares)) == of


class Stage:
    """Workers that come to one group, with the sink that they share."""

    def __init__(self, cluster: LocalCluster, connection: muster.Cluster) -> None:
        self.cluster = cluster
        self.connection = connection
        self.sink = Sink()
        self.workers: list[Worker] = []

    async def add(self, name: str, **settings: Any) -> Worker:
        worker = Worker(self.connection, self.sink, name, **settings)
        self.workers.append(worker)
        await worker.member.start()
        return worker

    async def close(self, *workers: Worker) -> None:
        """Closes these, or all."""
        for worker in workers or tuple(self.workers):
            await worker.member.close()
            self.workers.remove(worker)
        assert self.sink.wrong == []
