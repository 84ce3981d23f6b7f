"""Runs the work: one task, or one thread, per owned partition."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from muster._errors import ClusterUnavailable, CommitFailed, WorkFailed
from muster._member.member import Member
from muster._member.partition import BlockingPartition, Partition
from muster._values import TopicPartition

log = logging.getLogger("muster")

AsyncWork: TypeAlias = Callable[[Partition], Awaitable[object]]
BlockingWork: TypeAlias = Callable[[BlockingPartition], object]
Work: TypeAlias = AsyncWork | BlockingWork
"""An `async def` runs as a task that is cancelled, a plain `def` in a thread that is asked to stop."""


class WorkRunner:
    """Starts work on assigned partitions, ends it on revoked and lost ones, keeps the first failure.

    Args:
        work: the user's function.

    Attributes:
        failure: what the program has to stop with: `WorkFailed`, or what is no error, such as `SystemExit`;
            None: it goes on.
        failed: set together with `failure`.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._blocking = not _is_async(work)
        self._running: dict[TopicPartition, tuple[Partition, asyncio.Task[None]]] = {}
        self._leaving: dict[TopicPartition, list[asyncio.Task[None]]] = {}
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()

    def start(self, member: Member, partitions: tuple[TopicPartition, ...]) -> None:
        """Starts the work on some partitions."""
        loop = asyncio.get_running_loop()
        for where in partitions:
            try:
                partition = Partition(member, where)
            except CommitFailed:
                return  # the member's life has just ended: what it owns is lost, and assigned again
            name = f"muster-work-{where}"
            task = loop.create_task(self._run(where, partition, self._leaving.get(where, [])), name=name)
            self._running[where] = (partition, task)

    def end(self) -> list["asyncio.Task[None]"]:
        """Cancels all tasks and sets `is_ending` for threads; returns the tasks that have not ended yet."""
        for where, (partition, task) in self._running.items():
            partition.end()
            task.cancel()
            # Earlier work on the partition may not have ended either: this task may still be waiting for it.
            self._leaving[where] = [*self._leaving.get(where, ()), task]
        self._running.clear()
        leaving = {where: [t for t in tasks if not t.done()] for where, tasks in self._leaving.items()}
        self._leaving = {where: tasks for where, tasks in leaving.items() if tasks}
        return [task for tasks in self._leaving.values() for task in tasks]

    async def end_and_wait(self) -> None:
        """Ends all work and waits for it."""
        if ending := self.end():
            await asyncio.wait(ending)

    async def _run(
        self, where: TopicPartition, partition: Partition, before: "list[asyncio.Task[None]]"
    ) -> None:
        if before:
            # The work of an earlier ownership is still ending; never two at once.
            await asyncio.wait(before)
        try:
            if self._blocking:
                await self._in_thread(where, partition)
            else:
                await cast(AsyncWork, self._work)(partition)
        except CommitFailed as error:
            # The commit may fail shortly before the partition itself ends: the next owner goes on.
            log.info("work on %s ended: %s", where, error)
        except ClusterUnavailable as error:
            if not partition.is_ending:
                self._fail(where, error)
        except asyncio.CancelledError:
            if not partition.is_ending:
                self._fail(where, asyncio.CancelledError("the work cancelled itself"))
        except BaseException as error:  # SystemExit too: it is to end the program in order
            self._fail(where, error)

    def _fail(self, where: TopicPartition, error: BaseException) -> None:
        if self.failure is not None:
            log.error("work on %s failed too", where, exc_info=error)
            return
        self.failure = error
        if isinstance(error, Exception | asyncio.CancelledError):
            self.failure = WorkFailed(where, error)
            self.failure.__cause__ = error
        self.failed.set()

    async def _in_thread(self, where: TopicPartition, partition: Partition) -> None:
        loop = asyncio.get_running_loop()
        blocking = BlockingPartition(partition, loop)
        done: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            error: BaseException | None = None
            try:
                cast(BlockingWork, self._work)(blocking)
            except BaseException as raised:  # else SystemExit would end the thread without a word
                error = raised
            # The loop is gone if the program did not wait for this thread.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, done, error)

        threading.Thread(target=run, name=f"muster-work-{where}", daemon=True).start()
        while not done.done():
            try:
                await asyncio.wait((done,))
            except asyncio.CancelledError:
                # A thread cannot be cancelled, only asked to end; asked twice, it is not waited for.
                if blocking.is_ending:
                    raise
                blocking.end()
        done.result()


def _finish(done: "asyncio.Future[None]", error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _is_async(work: Work) -> bool:
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(type(work).__call__)
