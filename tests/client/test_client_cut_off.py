"""A program is cancelled at each place where it waits, from connect to close: everything ends anyway."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import muster
import pytest
from client.client_scripted import ScriptedCluster
from client.client_streams import StreamingCoordinator
from kit.waiting import until_equal
from muster import TopicPartition
from muster._lead.assignor import TOPIC
from muster._session import forks

pytestmark = pytest.mark.cluster

PACKAGE = str(Path(muster.__file__).parent)
FAST: Any = {
    "heartbeat_interval_ms": 30,
    "beat_interval_ms": 100,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
}
LIMIT_S = 60


class CutOff:
    """Runs a coroutine; its task is cancelled when it waits for the n-th time.

    Args:
        coroutine: what is run.
        at: at which of its waits, from 1.

    Attributes:
        waits: how often it has waited.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, object], at: Collection[int]) -> None:
        self.waits = 0
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, object]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            self.waits += 1
            if self.waits in self._at:
                asyncio.get_running_loop().call_soon(task.cancel)
            error = None
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


class Tale:
    """What a program did, as it told it."""

    def __init__(self, cluster: ScriptedCluster, session: bool) -> None:
        self.servers = cluster.address
        self.session = session
        self.owned: set[TopicPartition] = set()
        self.at_work: list[object] = []
        self.began = asyncio.Event()

    def left(self) -> list[object]:
        """What it owns, does and has open."""
        return [*self.owned, *self.at_work, *left_over(), *forks._connected]


def left_over() -> list[str]:
    """Tasks of the package that have not ended."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    codes = [(task, getattr(task.get_coro(), "cr_code", None)) for task in tasks]
    return [repr(task) for task, code in codes if code is not None and code.co_filename.startswith(PACKAGE)]


async def as_member(tale: Tale) -> None:
    """Joins, commits, reads it again, rejoins, and leaves."""
    assigned = asyncio.Queue[int]()

    def gets(partitions: tuple[TopicPartition, ...]) -> None:
        assert not tale.owned & set(partitions)
        tale.owned.update(partitions)
        assigned.put_nowait(1)

    def gives_up(partitions: tuple[TopicPartition, ...]) -> None:
        assert tale.owned >= set(partitions)
        tale.owned.difference_update(partitions)

    async with (
        muster.Cluster(tale.servers) as cluster,
        muster.Member(
            cluster,
            group_id="g",
            topics="t",
            on_partitions_assigned=gets,
            on_partitions_revoked=gives_up,
            on_partitions_lost=gives_up,
            session=tale.session,
            **FAST,
        ) as member,
    ):
        await assigned.get()
        await member.commit(dict.fromkeys(member.partitions, 5))
        assert len(await member.committed(member.partitions)) == 3
        member.rejoin("as the test wants it")
        await assigned.get()
        tale.began.set()


async def as_worker(tale: Tale) -> None:
    """Works on three partitions until it is stopped."""
    stop = asyncio.Event()

    async def work(p: muster.Partition) -> None:
        tale.at_work.append(p)
        try:
            await p.commit(1)
            if len(tale.at_work) == 3:
                stop.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            tale.at_work.remove(p)

    await _run_until(stop, work, tale)


async def as_thread(tale: Tale) -> None:
    """The same in threads."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def work(p: muster.BlockingPartition) -> None:
        tale.at_work.append(p)
        try:
            p.commit(1)
            if len(tale.at_work) == 3:
                loop.call_soon_threadsafe(stop.set)
            p.wait_ending(LIMIT_S)
        finally:
            tale.at_work.remove(p)

    await _run_until(stop, work, tale)


async def _run_until(stop: asyncio.Event, work: Any, tale: Tale) -> None:
    """Works on the three partitions of a topic."""
    await muster.arun(
        work,
        group="g",
        topic="t",
        partitions=3,
        servers=tale.servers,
        stop=stop,
        session=tale.session,
        **FAST,
    )


async def as_leader(tale: Tale) -> None:
    """Leads until its work returns."""

    async def work(term: muster.Term) -> None:
        tale.at_work.append(term)
        try:
            for _ in range(5):
                await asyncio.sleep(0.01)
        finally:
            await asyncio.sleep(0)
            tale.at_work.remove(term)

    await muster.alead(work, name="x", servers=tale.servers, session=tale.session, session_timeout_ms=10_000)


async def in_a_block(tale: Tale) -> None:
    """Leads in a block."""
    async with muster.lead(
        "x", servers=tale.servers, session=tale.session, session_timeout_ms=10_000
    ) as term:
        tale.at_work.append(term)
        try:
            for _ in range(3):
                await asyncio.sleep(0.01)
        finally:
            tale.at_work.remove(term)


@asynccontextmanager
async def served() -> AsyncIterator[ScriptedCluster]:
    cluster = ScriptedCluster([StreamingCoordinator("a")])
    cluster.topics[TOPIC] = 1
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def cut(
    life: Callable[[Tale], Coroutine[Any, Any, None]], at: Collection[int], *, session: bool
) -> int | None:
    """Cuts one life off; returns how often it waited, or None if it had ended before."""
    async with served() as cluster:
        tale = Tale(cluster, session)
        running = CutOff(life(tale), at)

        async def main() -> None:
            await running

        task = asyncio.create_task(main())
        done, _ = await asyncio.wait((task,), timeout=LIMIT_S)
        assert done, f"cut off at {at}, it hangs"
        if not task.cancelled() and (error := task.exception()) is not None:
            raise AssertionError(f"cut off at {at} it raises") from error
        await until_equal(tale.left, [], f"cut off at {at}, nothing is left", LIMIT_S)
        a = cluster.coordinators[0]
        joined = any(request.member_id for request in a.requests("JoinGroup"))
        assert a.requests("LeaveGroup") or not joined, f"cut off at {at}, it stays in the group"
        return running.waits if task.cancelled() else None


LIVES: list[Callable[[Tale], Awaitable[None]]] = [as_member, as_worker, as_thread, as_leader, in_a_block]


@pytest.mark.parametrize("session", [True, False], ids=["stream", "calls"])
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_a_program_that_is_cancelled_anywhere_leaves_nothing_behind(life: Any, session: bool) -> None:
    assert inspect.iscoroutinefunction(life)
    place = 1
    while await cut(life, {place}, session=session) is not None:
        place += 1
    assert place > 3, "it waits somewhere"


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_a_program_that_is_cancelled_twice_leaves_nothing_behind(life: Any) -> None:
    place = 1
    while (waits := await cut(life, {place, place + 1}, session=True)) is not None:
        assert waits >= place
        place += 1
