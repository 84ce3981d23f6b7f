"""A cluster in this process: the real core, a clock that jumps, and failures on command."""

import asyncio
import contextvars
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc

from muster._clock import replaced
from muster._cluster.cluster import Cluster
from muster._errors import MusterError
from muster._session.channels import in_process
from muster._work.partition import Partition
from muster._work.policy import Work, WorkSettings
from muster.testing._servers import make_servers
from muster.testing._time import VirtualTime
from muster.testing._wire import Link
from muster.testing._worker import Worker
from muster.testing._zombie import FormerOwner

SERVERS = "MUSTER_SERVERS"
TAKEOVER_S = 0.5
"""How long it takes until another coordinator has taken over from one that was killed."""

_LOOK_S = 0.01
_link: contextvars.ContextVar[Link | None] = contextvars.ContextVar("muster_link", default=None)


class LocalCluster:
    """A cluster of its own in the running event loop, without sockets. Use it as an async context manager.

    While it is open, time passes only when nothing else can happen: where the event loop would sleep, its
    clock jumps to the next timer. So `asyncio.sleep(45)` takes no time, in the test and in the work.
    `MUSTER_SERVERS` names it, so that `muster.arun` and `muster.Cluster` reach it without an address. There
    is one at a time in a process.

    Args:
        io_wait_s: where the program has sockets of its own open, real time to wait for them before a jump.

    Raises:
        MusterError: the extra `testing` is not installed, another one is open, or the clock of the event loop
            cannot be controlled.
    """

    _open: "LocalCluster | None" = None

    def __init__(self, *, io_wait_s: float = 0.02) -> None:
        self._io_wait_s = io_wait_s
        self._hosts = 0
        self._workers: list[Worker] = []
        self._connections: list[Cluster] = []
        self._kept = ExitStack()

    async def __aenter__(self) -> Self:
        if LocalCluster._open is not None:
            raise MusterError("another LocalCluster is open in this process; there is one at a time")
        self._time = VirtualTime(io_wait_s=self._io_wait_s)
        self._servers = make_servers(self._time.boot_ms, self._time.wall_ms)
        self._test = self._new_link()
        LocalCluster._open = self
        before = os.environ.get(SERVERS)
        self._kept.callback(_restore, before)
        os.environ[SERVERS] = self.servers
        self._time.start()
        self._kept.callback(self._time.stop)
        self._kept.enter_context(replaced(self._time))
        self._kept.enter_context(in_process(self._connect))
        try:
            await self._servers.start_coordinator()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for worker in self._workers:
                if worker.running:
                    await worker.kill()
            for connection in self._connections:
                await connection.close()
            self._test.broken("the test is over")
            self._servers.stop()
            await asyncio.sleep(0)
        finally:
            self._close()

    def _close(self) -> None:
        LocalCluster._open = None
        self._kept.close()

    # --- who uses it

    @property
    def servers(self) -> str:
        """What `MUSTER_SERVERS` is set to."""
        return self._servers.servers

    def connect(self) -> Cluster:
        """A connection, for topics, groups and members; closed with this."""
        connection = Cluster(self.servers)
        self._connections.append(connection)
        return connection

    @asynccontextmanager
    async def worker(
        self,
        work: Work,
        *,
        group: str,
        topic: str,
        partitions: int | None = None,
        **settings: Unpack[WorkSettings],
    ) -> AsyncIterator[Worker]:
        """Runs `muster.arun` with these arguments, as another process would.

        At the end it is stopped as by SIGTERM, unless it has ended before.

        Raises:
            MusterError: what `arun` raised.
        """
        link = self._new_link()
        context = contextvars.copy_context()
        context.run(_link.set, link)
        worker = Worker(
            work, link, context, group=group, topic=topic, partitions=partitions, settings=settings
        )
        self._workers.append(worker)
        try:
            yield worker
        finally:
            self._workers.remove(worker)
            if worker.running:
                link.mend()
                await worker.stop()
        worker.check()

    # --- time

    @property
    def now_s(self) -> float:
        """Seconds that have passed since it was opened, on its clock."""
        return self._time.passed_s

    async def advance(self, seconds: float) -> None:
        """Lets time pass, and all that happens in it."""
        self._time.allow(seconds)
        await asyncio.sleep(seconds)

    async def until(
        self, condition: Callable[[], object | Awaitable[object]], *, within_s: float = 120
    ) -> None:
        """Lets time pass until a condition holds; an async one is awaited.

        Raises:
            AssertionError: it does not hold after so many seconds of this clock.
            MusterError: a worker failed meanwhile.
        """
        self._time.allow(within_s)
        ends_s = self.now_s + within_s
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            for worker in self._workers:
                worker.check()
            if self.now_s >= ends_s:
                source = getattr(condition, "__qualname__", repr(condition))
                owned = {worker.link.host: worker.numbers for worker in self._workers}
                raise AssertionError(
                    f"{source} does not hold after {within_s:g} s of the test's clock; workers own {owned}"
                )
            await asyncio.sleep(_LOOK_S)

    # --- failures

    @contextmanager
    def drop_beats(self, worker: Worker) -> Iterator[None]:
        """Nothing of a worker arrives any more, beats included, nor does anything arrive there.

        After 7 s both ends take the connection for broken. At the end of the context the network is back.
        """
        worker.link.cut()
        try:
            yield
        finally:
            worker.link.mend()

    async def expire(self, worker: Worker) -> None:
        """Lets a worker's membership expire: its network is gone until the coordinator has removed it."""
        with self.drop_beats(worker):
            await self.until(
                lambda: (worker.group, worker.link.host) not in self._servers.hosts, within_s=7_200
            )

    async def zombie(self, worker: Worker, number: int = 0) -> Partition:
        """Lets a worker lose a partition, and returns it as a process would still see it that was stopped.

        It has the old token, and its commits are refused. When this returns, the partition has a new owner
        with a higher token: another worker, or the same one again.

        Raises:
            AssertionError: the worker does not own the partition, or nobody owns it after it was lost.
        """
        if number not in worker.owned:
            raise AssertionError(f"the worker does not own partition {number}; it owns {worker.numbers}")
        before, connection = worker.owned[number], self.connect()
        kinds = {group.group_id: group.type for group in await connection.list_groups()}
        former = FormerOwner(
            connection,
            group_id=worker.group,
            member_id=before.member_id,
            generation=before.generation,
            token=before.token,
            is_incremental=kinds.get(worker.group) == "consumer",
        )
        zombie = Partition(former, worker.where(number))
        await self.expire(worker)
        await self.until(lambda: any(token > zombie.token for token in self._tokens(worker, number)))
        return zombie

    def _tokens(self, of: Worker, number: int) -> list[str]:
        alike = (w for w in self._workers if (w.group, w.topic) == (of.group, of.topic))
        return [w.owned[number].token for w in alike if number in w.owned]

    async def kill_coordinator(self, *, takeover_s: float = TAKEOVER_S) -> None:
        """Kills the coordinator; returns when another one has taken over, from what was acknowledged.

        Args:
            takeover_s: for so long there is none.
        """
        address = self._servers.coordinator
        for link in (self._test, *(worker.link for worker in self._workers)):
            link.broken("connection reset", address)
        self._servers.kill_coordinator()
        await asyncio.sleep(takeover_s)
        await self._servers.start_coordinator()

    # --- the network

    def _new_link(self) -> Link:
        self._hosts += 1
        return Link(f"10.0.{self._hosts // 250}.{self._hosts % 250 + 1}", self._servers)

    def _connect(self, address: str) -> grpc.aio.Channel:
        return (_link.get() or self._test).channel(address)


def _restore(servers: str | None) -> None:
    if servers is None:
        os.environ.pop(SERVERS, None)
    else:
        os.environ[SERVERS] = servers
