"""A worker process that is none: `muster.arun` with a network of its own."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from contextvars import Context
from typing import cast

from muster._run import arun
from muster._values import TopicPartition
from muster._work.attempt import is_async
from muster._work.partition import BlockingPartition, Partition
from muster._work.policy import AsyncWork, BlockingWork, Work, WorkSettings, check_work
from muster.testing._wire import Link


class Worker:
    """What runs `muster.arun(work, …)` as a process of its own would.

    Attributes:
        group: its group.
        topic: its topic.
        owned: what its work is called with now, by number.
    """

    def __init__(
        self,
        work: Work,
        link: Link,
        context: Context,
        *,
        group: str,
        topic: str,
        partitions: int | None,
        settings: WorkSettings,
    ) -> None:
        check_work(work)
        self.group = group
        self.topic = topic
        self.owned: dict[int, Partition | BlockingPartition] = {}
        self.link = link
        self._stop = asyncio.Event()
        running = arun(
            self._noted(work), group=group, topic=topic, partitions=partitions, stop=self._stop, **settings
        )
        self._task = asyncio.get_running_loop().create_task(
            running, name=f"worker-{link.host}", context=context
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The partitions that it works on now."""
        return tuple(sorted(self.owned))

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._task.done()

    def check(self) -> None:
        """Raises what `arun` raised, if it did."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Ends it in order, as SIGTERM does; raises what `arun` raised."""
        self._stop.set()
        await asyncio.wait((self._task,))
        self.check()

    async def kill(self) -> None:
        """Ends it without a word to the coordinator, as SIGKILL does.

        Its work is cancelled, as no process could see to it; what it sends meanwhile does not arrive.
        """
        self.link.broken("connection reset")
        self.link.cut()
        self._task.cancel()
        await asyncio.wait((self._task,))
        self.owned.clear()

    def _noted(self, work: Work) -> Work:
        """The work, with its calls noted."""
        if is_async(work):

            @functools.wraps(work)
            async def run(p: Partition) -> object:
                with self._working(p):
                    return await cast(AsyncWork, work)(p)

            return run

        @functools.wraps(work)
        def run_blocking(p: BlockingPartition) -> object:
            with self._working(p):
                return cast(BlockingWork, work)(p)

        return run_blocking

    @contextlib.contextmanager
    def _working(self, p: Partition | BlockingPartition) -> Iterator[None]:
        self.owned[p.number] = p
        try:
            yield
        finally:
            if self.owned.get(p.number) is p:
                del self.owned[p.number]

    def where(self, number: int) -> TopicPartition:
        """The topic and a number."""
        return TopicPartition(self.topic, number)
