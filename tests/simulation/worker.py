"""A simulated worker: a real member of a group that commits, and notes what it was told."""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast
from unittest import mock

import grpc
from muster import (
    Cluster,
    CommitFailed,
    Committed,
    GroupError,
    Member,
    MemberSettings,
    MusterError,
    TopicPartition,
)
from muster._incremental import membership, requests
from muster._member import joiner
from muster._session.channels import OPTIONS
from simulation.grpc_channel import Channel
from simulation.processes import Process
from simulation.servers import DISCOVERY
from simulation.world import World

Protocol = Literal["classic", "incremental", "auto"]
CLASSIC: Protocol = "classic"
INCREMENTAL: Protocol = "incremental"
AUTO: Protocol = "auto"

TOPIC = "work"
PARTITIONS = 8
SIDE_TOPIC = "side"
"""Is created, enlarged and deleted while workers commit to it, in runs that draw this."""


@dataclass(slots=True)
class Commit:
    """A commit as its maker saw it.

    Attributes:
        id: stands in the metadata of the commit, so that it is found again.
        began_s: virtual time before it was asked for.
        ended_s: when its outcome came; 0: not yet.
        outcome: ok, refused (never done) or unknown.
    """

    id: str
    group_id: str
    partition: TopicPartition
    offset: int
    member_id: str
    generation: int
    token: str
    began_s: float
    ended_s: float = 0.0
    outcome: str = "unknown"


@dataclass(slots=True)
class Fetch:
    """A fetch as its maker saw it; `id` is that of the commit it found, empty: none."""

    group_id: str
    partition: TopicPartition
    id: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Assigned:
    """What a member was given, as it saw it: what was new of it.

    Attributes:
        incremental: whether its group was an incremental one then.
    """

    group_id: str
    generation: int
    member_id: str
    partitions: tuple[TopicPartition, ...]
    tokens: tuple[str, ...]
    at_s: float
    incremental: bool


@dataclass(slots=True)
class Change:
    """A change of a topic as its maker saw it.

    Attributes:
        kind: create, alter or delete.
        began_s: virtual time before it was asked for.
        ended_s: when its outcome came.
        done: whether that was a success; False: refused, or not known.
    """

    kind: str
    topic: str
    began_s: float
    ended_s: float = 0.0
    done: bool = False


class History:
    """What all workers saw."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.commits: dict[str, Commit] = {}
        self.fetches: list[Fetch] = []
        self.assigned: list[Assigned] = []


_REFUSED_KINDS = ("INCONSISTENT_GROUP_PROTOCOL", "GROUP_ID_NOT_FOUND")


class Worker:
    """One worker in a process of its own.

    Args:
        process: where it runs.
        group_id: its group.
        history: takes what it sees.
        pace_s: shortest and longest time between two commits of a partition.
        settings: of the member.
        topics: what it subscribes to.

    Attributes:
        busy: while it is not set, nothing is committed.
        ended: the task that runs it.
        error: why the member stopped by itself; None: it did not.
        losses: how often it gave its partitions up by itself.
    """

    def __init__(
        self,
        process: Process,
        group_id: str,
        history: History,
        pace_s: tuple[float, float],
        settings: MemberSettings,
        topics: tuple[str, ...] = (TOPIC,),
    ) -> None:
        self.process = process
        self.topics = topics
        self.group_id = group_id
        self.settings = settings
        self.error: MusterError | None = None
        self.losses = 0
        self.member: Member | None = None
        self.ended: asyncio.Task[None] | None = None
        self.busy = asyncio.Event()
        self.busy.set()
        self._history = history
        self._pace_s = pace_s
        self._work: dict[TopicPartition, asyncio.Task[None]] = {}
        self._count = 0
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begins."""
        self.ended = self.process.run(self._run())

    def leave(self) -> None:
        """Ends in order: the member leaves its group."""
        self.process.loop.post(self._stopping.set)

    @property
    def incremental(self) -> bool:
        """Whether it takes part as a member of an incremental group."""
        return self.member is not None and self.member.is_incremental

    @property
    def refused_kind(self) -> bool:
        """Whether it ended since its group is, or has members, of a kind that it cannot be."""
        return isinstance(self.error, GroupError) and self.error.code in _REFUSED_KINDS

    @property
    def settled(self) -> bool:
        """Whether the member holds its assignment."""
        return self.member is not None and self.member.state.name == "STABLE"

    def _connect(self, address: str) -> grpc.aio.Channel:
        return cast(grpc.aio.Channel, Channel(self.process, self.process.loop, address, OPTIONS))

    async def _run(self) -> None:
        try:
            async with Cluster([str(address) for address in DISCOVERY], connect=self._connect) as cluster:
                await cluster.ensure_topic(TOPIC, PARTITIONS)
                self.member = Member(
                    cluster,
                    group_id=self.group_id,
                    topics=self.topics,
                    on_partitions_assigned=self._assigned,
                    on_partitions_revoked=self._revoked,
                    on_partitions_lost=self._lost,
                    **self.settings,
                )
                await self.member.start()
                stop = asyncio.ensure_future(self._stopping.wait())
                wait = asyncio.ensure_future(self.member.wait())
                await asyncio.wait((stop, wait), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                await self.member.close("the worker was told to leave")
                await asyncio.wait((wait,))
                wait.result()
        except MusterError as error:
            self.error = error
            self.process.world.note(self.process.name, "ended", type(error).__name__)
        finally:
            self._end_work(tuple(self._work))

    # --- the member's callbacks

    def _assigned(self, owned: tuple[TopicPartition, ...]) -> None:
        member = self.member
        assert member is not None
        self.process.watch.adopted(self.process)
        self._history.assigned.append(
            Assigned(
                self.group_id,
                member.generation,
                member.member_id,
                owned,
                tuple(member.token(partition) for partition in owned),
                self.process.world.now_s,
                self.incremental,
            )
        )
        self._end_work(owned)
        loop = asyncio.get_running_loop()
        for partition in owned:
            self._work[partition] = loop.create_task(self._work_on(member, partition))

    async def _revoked(self, owned: tuple[TopicPartition, ...]) -> None:
        self._end_work(owned)
        await asyncio.sleep(0.01)

    def _lost(self, owned: tuple[TopicPartition, ...]) -> None:
        self.losses += 1
        self._end_work(owned)

    def _end_work(self, owned: tuple[TopicPartition, ...]) -> None:
        for partition in owned:
            if (task := self._work.pop(partition, None)) is not None:
                task.cancel()

    async def _work_on(self, member: Member, partition: TopicPartition) -> None:
        random = self.process.world.random
        try:
            position = await self._fetch(member, partition)
            while True:
                await asyncio.sleep(random.uniform(*self._pace_s))
                await self.busy.wait()
                if random.random() < 0.05:
                    position = await self._fetch(member, partition)
                position += 1
                await self._commit(member, partition, position)
        except CommitFailed:
            return

    async def _fetch(self, member: Member, partition: TopicPartition) -> int:
        world = self.process.world
        began_s = world.now_s
        found = await member.committed([partition])
        position = found.get(partition)
        self._history.fetches.append(
            Fetch(self.group_id, partition, position.metadata if position else "", began_s, world.now_s)
        )
        return position.offset if position else 0

    async def _commit(self, member: Member, partition: TopicPartition, position: int) -> None:
        world = self.process.world
        self._count += 1
        commit = Commit(
            id=f"{self.process.name}/{self._count}",
            group_id=self.group_id,
            partition=partition,
            offset=position,
            member_id=member.member_id,
            generation=member.generation,
            token=member.token(partition),
            began_s=world.now_s,
        )
        self._history.commits[commit.id] = commit
        try:
            await member.commit({partition: Committed(position, commit.id)})
            commit.outcome = "ok"
        finally:
            commit.ended_s = world.now_s


@contextmanager
def own_process_ids(world: World) -> Iterator[None]:
    """Lets each simulated process say that it is one of its own, though all are in one."""

    def drawn() -> bytes:
        clock = world.clock
        assert isinstance(clock, Process)
        return hashlib.blake2b(clock.name.encode(), digest_size=requests.PROCESS_ID_BYTES).digest()

    with mock.patch.object(membership, "process_id", drawn), mock.patch.object(joiner, "process_id", drawn):
        yield


def settings_for(
    random: Any, *, unary: bool, static: str, protocol: Protocol, assignors: tuple[str, ...] = ()
) -> MemberSettings:
    """Settings of a member, drawn, but for what its group decides."""
    settings = MemberSettings(
        client_id="worker",  # the default names the process, which is another one each time
        session_timeout_ms=random.choice((6_000, 10_000)),
        heartbeat_interval_ms=1_500,
        rebalance_timeout_ms=random.choice((5_000, 8_000)),
        request_timeout_ms=5_000,
        beat_interval_ms=1_600,
        disconnect_grace_ms=random.choice((4_800, 6_000)),
        session=not unary,
        topic_refresh_interval_ms=10_000,
        protocol=protocol,
        weight=random.choice((1, 1, 2, 3)),
        rollout_hold_ms=random.choice((0, 0, 5_000, 15_000)),
    )
    if static:
        settings["group_instance_id"] = static
    if assignors:
        settings["assignors"] = assignors
    return settings
