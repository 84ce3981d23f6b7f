"""Which kind of worker comes to a group, and what makes a group one of the other kind while it works."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, cast

import grpc
from muster import Cluster as Connection
from muster import MusterError
from muster._session.channels import OPTIONS
from simulation.cluster import Cluster
from simulation.grpc_channel import Channel
from simulation.servers import DISCOVERY
from simulation.worker import AUTO, CLASSIC, INCREMENTAL, Protocol, Worker

_COOPERATIVE = "cooperative-sticky"
_ASSIGNORS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((), ()),
    ((_COOPERATIVE,), (_COOPERATIVE,)),
    (("range",), (_COOPERATIVE, "range")),
)
"""Those of the workers of before, and those of the workers that can be either: there is one in common."""

Later = Callable[[float, Callable[[], object], float], None]
"""Does something after a while: at most so many seconds, what, and at least so many."""


class Deployments:
    """Decides which kind of worker comes next to each group, and replaces workers of another kind.

    Args:
        cluster: where the workers are.
        kinds: of each group; `AUTO`: it changes.
        hire: starts a worker of a group, of a kind, with a static id or without.
        later: does something after a while.
    """

    def __init__(
        self,
        cluster: Cluster,
        kinds: Mapping[str, Protocol],
        hire: Callable[[str, Protocol, str], Worker],
        later: Later,
    ) -> None:
        self._cluster = cluster
        self._random = cluster.world.random
        self._hire = hire
        self._later = later
        self._process = cluster.process("administrator", "10.0.9.3")
        self._call: asyncio.Task[None] | None = None
        self._under_way: set[str] = set()
        self._visitors: list[Worker] = []
        self._changing = [group_id for group_id, kind in kinds.items() if kind == AUTO]
        self._next = dict(kinds)
        for group_id in self._changing:
            self._next[group_id] = self._random.choice((CLASSIC, CLASSIC, AUTO))
        self._assignors = {group_id: self._random.choice(_ASSIGNORS) for group_id in self._changing}

    def next_kind(self, group_id: str) -> Protocol:
        """Which kind of worker comes next to a group."""
        return self._next[group_id]

    def assignors(self, group_id: str, kind: Protocol) -> tuple[str, ...]:
        """What workers of a kind name; nothing: what the library has."""
        if kind == INCREMENTAL or group_id not in self._assignors:
            return ()
        of_before, of_either = self._assignors[group_id]
        return of_before if kind == CLASSIC else of_either

    # --- faults

    def deploy(self) -> bool:
        """A deployment begins, or one that is under way is rolled back: workers are replaced one by one."""
        if not self._changing:
            return False
        group_id = self._random.choice(self._changing)
        if group_id in self._under_way and self._random.random() < 0.7:
            return False  # most come to their end
        self._next[group_id] = CLASSIC if self._next[group_id] == AUTO else AUTO
        self._cluster.world.note("deploy", group_id, self._next[group_id])
        if group_id not in self._under_way:
            self._under_way.add(group_id)
            self._step(group_id)
        return True

    def _step(self, group_id: str) -> None:
        there = [worker for worker in self._cluster.workers if worker.group_id == group_id]
        old = [worker for worker in there if worker.settings.get("protocol") != self._next[group_id]]
        if not old:
            self._under_way.discard(group_id)
            return
        worker = self._random.choice(old)
        self._dismiss(worker)
        # the next process of a place may come as one of the other kind while the one before still ends
        place = worker.settings.get("group_instance_id", "") if self._random.random() < 0.5 else ""
        self._later(1.5, lambda: self._hire(group_id, self._next[group_id], place), 0.0)
        self._later(4.0, lambda: self._step(group_id), 1.0)

    def empty(self) -> bool:
        """All workers of a group leave, and those that come, soon or much later, may be of any kind."""
        if not self._changing:
            return False
        group_id = self._random.choice(self._changing)
        leaving = [worker for worker in self._cluster.workers if worker.group_id == group_id]
        if len(leaving) == len(self._cluster.workers):
            return False  # the other faults want somebody
        self._next[group_id] = self._random.choice((CLASSIC, AUTO, INCREMENTAL))
        self._cluster.world.note("empty", group_id, self._next[group_id])
        for worker in leaving:
            self._dismiss(worker)
        first_s = self._random.choice((0.0, 3.0, 12.0))
        for _ in leaving:
            self._later(first_s + 1.0, lambda: self._hire(group_id, self._next[group_id], ""), first_s)
        return True

    def visit(self) -> bool:
        """A worker that can be of one kind alone comes to a group of any, for a while."""
        group_id, kind = self._random.choice(list(self._next)), self._random.choice((CLASSIC, INCREMENTAL))
        self._cluster.world.note("visit", group_id, kind)
        visitor = self._hire(group_id, kind, "")
        self._visitors.append(visitor)

        def part() -> None:
            if visitor in self._cluster.workers:
                self._dismiss(visitor)

        self._later(20.0, part, 2.0)
        return True

    def convert(self) -> bool:
        """An administrator makes a group one of a kind; False: the call before is not over."""
        if not self._changing or (self._call is not None and not self._call.done()):
            return False
        group_id = self._random.choice(self._changing)
        self._call = self._process.run(self._ask(group_id, self._random.choice(("classic", "incremental"))))
        return True

    async def _ask(self, group_id: str, kind: Literal["classic", "incremental"]) -> None:
        async with Connection([str(address) for address in DISCOVERY], connect=self._connect) as connection:
            try:
                was_other = await connection.convert_group(group_id, kind, "the seed wishes it")
            except MusterError as error:
                self._cluster.world.note("convert", group_id, kind, type(error).__name__)
            else:
                self._cluster.world.note("convert", group_id, kind, was_other)

    # --- who cannot stay

    def take_refused(self) -> list[str]:
        """Takes out workers that ended since their group has members of another kind.

        Returns:
            The groups that lack one now.
        """
        refused = [worker for worker in self._cluster.workers if worker.refused_kind]
        for worker in refused:
            self._cluster.workers.remove(worker)
        return [worker.group_id for worker in refused if worker not in self._visitors]

    def settle(self) -> None:
        """No group has workers any more beside which others of it cannot be."""
        for group_id in self._changing:
            if self._next[group_id] == INCREMENTAL:
                self._next[group_id] = AUTO
        for worker in tuple(self._cluster.workers):
            is_visitor = worker in self._visitors
            if is_visitor or (
                worker.group_id in self._changing and worker.settings.get("protocol") == INCREMENTAL
            ):
                self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        worker.leave()
        self._cluster.workers.remove(worker)

    def _connect(self, address: str) -> grpc.aio.Channel:
        return cast(grpc.aio.Channel, Channel(self._process, self._process.loop, address, OPTIONS))
