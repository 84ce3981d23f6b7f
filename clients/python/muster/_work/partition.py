"""An owned partition, as the work sees it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from muster._clock import current
from muster._errors import ClusterUnavailable, CommitFailed
from muster._values import Committed, TopicPartition
from muster._work.signs import Signs

LAST_READ_MS = 5_000
"""How long a thread may go on reading the position of a partition that is ending."""

_T = TypeVar("_T")


class Owner(Protocol):
    """What an ownership needs of the member that has it: `Member`, or what stands for one in tests.

    Attributes:
        group_id: the group.
        generation: the generation that it is in.
        member_id: its id.
    """

    @property
    def group_id(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def member_id(self) -> str: ...

    def token(self, partition: TopicPartition) -> str:
        """See `Member.token`."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """See `Member.committed`."""

    async def commit_owned(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """See `Member.commit_owned`."""

    def report_owned(self, ends: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, str]) -> None:
        """See `Member.report_owned`."""


class Partition:
    """One ownership of one partition, from its assignment until it is revoked or lost.

    Attributes:
        topic: name of the topic.
        number: number of the partition, from 0.
        name: name of the partition; None: the topic has numbers alone.
        group: the group.
        generation: generation in which it was assigned.
        member_id: id of the member that owns it.
        token: fencing token of this ownership, a string that grows with each owner. A sink that keeps the
            highest one and refuses lower ones is safe from a worker that was paused and writes after its
            successor.
    """

    def __init__(
        self,
        member: Owner,
        partition: TopicPartition,
        signs: Signs | None = None,
        name: str | None = None,
    ) -> None:
        self.topic: str = partition.topic
        self.number: int = partition.number
        self.name: str | None = name
        self.group: str = member.group_id
        self.generation: int = member.generation
        self.member_id: str = member.member_id
        self.token: str = member.token(partition)
        self._partition = partition
        self._member = member
        self._signs = signs or Signs()
        self._ending = asyncio.Event()

    def __repr__(self) -> str:
        named = f", name={self.name!r}" if self.name else ""
        return f"Partition({self._partition}{named}, generation={self.generation}, token={self.token!r})"

    @property
    def key(self) -> str:
        """What `owner_of` finds the partition by: its name, or its number as text."""
        return self.name or str(self.number)

    @property
    def is_ending(self) -> bool:
        """True from the moment at which it is revoked or lost, or the program stops."""
        return self._ending.is_set()

    async def ending(self) -> None:
        """Waits until it is revoked or lost, or the program stops."""
        await self._ending.wait()

    async def committed(self) -> int | None:
        """The position that any owner committed last; None: none was committed."""
        found = await self.committed_entry()
        return None if found is None else found.offset

    async def committed_entry(self) -> Committed | None:
        """Like `committed`, with the metadata stored with the position."""
        with self._signs.waits():
            found = (await self._member.committed([self._partition])).get(self._partition)
        self._signs.read(found)
        return found

    async def commit(self, offset: int, metadata: str = "") -> None:
        """Stores the position to go on from; returns when a majority of the log has it.

        Raises:
            CommitFailed: the partition is no longer owned.
            CommitRejected: the offset or the metadata is not acceptable.
            TypeError, ValueError: the offset is no whole number of 0 or more, or the metadata is no text.
        """
        position = Committed(offset, metadata)
        with self._signs.waits():
            await self._member.commit_owned({self._partition: position}, {self._partition: self.token})
        self._signs.committed(position)

    def report(self, end: int) -> None:
        """Says where the work ends at present, so that others see how much is left: `end` minus the commit.

        Call it whenever you learn it; the latest one is sent within some seconds. It is shown by `muster
        groups describe` and in the metrics, nothing is decided by it, and it is not kept in the log.

        Args:
            end: position after the last item that there is, as the position after it would be committed.

        Raises:
            TypeError, ValueError: it is no whole number of 0 or more.
        """
        self._member.report_owned({self._partition: end}, {self._partition: self.token})

    def alive(self) -> None:
        """Says that the work goes on, where it commits less often than `max_idle_ms`."""
        self._signs.show()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and `resume` not since."""
        return self._signs.paused

    def pause(self) -> None:
        """Makes `resumed` wait. Lasts while this process keeps the partition, over rebalances too.

        Work that waits in `resumed` is not idle. Whoever has this object may call it, from the event loop.
        """
        self._signs.pause()

    def resume(self) -> None:
        """Ends a pause, also one that began in an earlier ownership of this process."""
        self._signs.resume()

    async def resumed(self) -> None:
        """Waits while the partition is paused. Call it where the work can wait, such as before each item."""
        await self._signs.resumed.wait()

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._ending.set()

    def for_thread(self, loop: asyncio.AbstractEventLoop) -> "BlockingPartition":
        """What work in a thread gets. Called by whoever runs the work."""
        return BlockingPartition(self, loop)


class BlockingPartition:
    """An owned partition, for work that runs in a thread. Every function may be called from any thread.

    Attributes:
        topic: name of the topic.
        number: number of the partition, from 0.
        name: name of the partition, see `Partition`.
        key: its name, or its number as text.
        group: the group.
        generation: generation in which it was assigned.
        member_id: id of the member that owns it.
        token: fencing token of this ownership, see `Partition`.
    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self.topic: str = partition.topic
        self.number: int = partition.number
        self.name: str | None = partition.name
        self.key: str = partition.key
        self.group: str = partition.group
        self.generation: int = partition.generation
        self.member_id: str = partition.member_id
        self.token: str = partition.token
        self._partition = partition
        self._loop = loop
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"Blocking{self._partition!r}"

    @property
    def is_ending(self) -> bool:
        """True from the moment at which it is revoked or lost, or the program stops: return soon then."""
        return self._stop.is_set()

    def wait_ending(self, timeout_s: float | None = None) -> bool:
        """Sleeps until the partition is ending or the time has passed; returns `is_ending`."""
        if current().virtual:
            return self._stop.is_set() or self._run(self._ended_within(timeout_s))
        return self._stop.wait(timeout_s)

    def committed(self) -> int | None:
        """The position that any owner committed last; None: none was committed.

        Raises:
            ClusterUnavailable: the partition ended before a coordinator answered.
        """
        return self._run(self._read())

    def commit(self, offset: int, metadata: str = "") -> None:
        """Stores the position to go on from; see `Partition.commit`."""
        self._run(self._partition.commit(offset, metadata))

    def report(self, end: int) -> None:
        """Says where the work ends at present; see `Partition.report`."""
        self._run(_called(partial(self._partition.report, end)))

    def alive(self) -> None:
        """Says that the work goes on, where it commits less often than `max_idle_ms`."""
        self._partition.alive()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and `resume` not since."""
        return self._partition.is_paused

    def pause(self) -> None:
        """Makes `wait_resumed` wait; see `Partition.pause`."""
        self._run(_called(self._partition.pause))

    def resume(self) -> None:
        """Ends a pause; see `Partition.resume`."""
        self._run(_called(self._partition.resume))

    def wait_resumed(self) -> bool:
        """Waits while the partition is paused; returns False if the partition is ending instead."""
        self._run(self._resumed())
        return not self._stop.is_set()

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._stop.set()

    def turn_async(self) -> None:
        """Becomes the `Partition` itself: the work has turned out to be async.

        The function was called in a thread, with this object, and returned something that is to be awaited.
        What it returned has this object, and awaits its functions.
        """
        self.__class__ = Partition  # type: ignore[assignment]  # no subclass, but of the same layout
        self.__dict__ = self._partition.__dict__

    async def _ended_within(self, timeout_s: float | None) -> bool:
        ending = asyncio.ensure_future(self._partition.ending())
        try:
            await asyncio.wait((ending,), timeout=timeout_s)
            return ending.done()
        finally:
            ending.cancel()

    async def _resumed(self) -> None:
        waits = [
            asyncio.ensure_future(self._partition.resumed()),
            asyncio.ensure_future(self._partition.ending()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _read(self) -> int | None:
        # A task that waits for a coordinator is cancelled when its partition ends; a thread is not.
        reading = asyncio.ensure_future(self._partition.committed())
        ending = asyncio.ensure_future(self._partition.ending())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((reading,), timeout=LAST_READ_MS / 1_000)
            if reading.done():
                return reading.result()
            raise ClusterUnavailable(
                f"the position of {self.topic}-{self.number} could not be read before the partition ended"
            )
        finally:
            reading.cancel()
            ending.cancel()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        waiting = _awaited(coroutine)
        try:
            self._not_on_the_loop()
            future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except RuntimeError as error:
            waiting.close()
            coroutine.close()
            if not self._loop.is_closed():
                raise
            why = "the program has stopped, and did not wait for this thread"
            raise CommitFailed([TopicPartition(self.topic, self.number)], why) from error
        return future.result()

    def _not_on_the_loop(self) -> None:
        if asyncio._get_running_loop() is self._loop:  # it would wait for itself, for ever
            raise RuntimeError(
                f"{self!r} is for threads, and was called on the event loop; use an `async def` as work"
            )


async def _awaited(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Awaits what a thread asked for; the thread rests meanwhile."""
    time = current()
    time.thread_rests()
    try:
        return await coroutine
    finally:
        time.thread_runs()


async def _called(function: Callable[[], None]) -> None:
    function()
