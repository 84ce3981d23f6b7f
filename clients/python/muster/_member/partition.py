"""An owned partition, as the work sees it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from muster._errors import ClusterUnavailable
from muster._member.member import Member
from muster._values import Committed, TopicPartition

LAST_READ_MS = 5_000
"""How long a thread may go on reading the position of a partition that is ending."""

_T = TypeVar("_T")


class Partition:
    """One ownership of one partition, from its assignment until it is revoked or lost.

    Attributes:
        topic: name of the topic.
        number: number of the partition, from 0.
        group: the group.
        generation: generation in which it was assigned.
        token: fencing token of this ownership, a string that grows with each owner. A sink that keeps the
            highest one and refuses lower ones is safe from a worker that was paused and writes after its
            successor.
    """

    def __init__(self, member: Member, partition: TopicPartition) -> None:
        self.topic, self.number = partition
        self.group = member.group_id
        self.generation = member.generation
        self.token = member.token(partition)
        self._partition = partition
        self._member = member
        self._ending = asyncio.Event()

    def __repr__(self) -> str:
        return f"Partition({self._partition}, generation={self.generation}, token={self.token!r})"

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
        return (await self._member.committed([self._partition])).get(self._partition)

    async def commit(self, offset: int, metadata: str = "") -> None:
        """Stores the position to go on from; returns when a majority of the log has it.

        Raises:
            CommitFailed: the partition is no longer owned.
            CommitRejected: the offset or the metadata is not acceptable.
        """
        await self._member.commit_owned(
            {self._partition: Committed(offset, metadata)}, {self._partition: self.token}
        )

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._ending.set()


class BlockingPartition:
    """An owned partition, for work that runs in a thread. Every function may be called from any thread.

    Attributes:
        topic: name of the topic.
        number: number of the partition, from 0.
        group: the group.
        generation: generation in which it was assigned.
        token: fencing token of this ownership, see `Partition`.
    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self.topic = partition.topic
        self.number = partition.number
        self.group = partition.group
        self.generation = partition.generation
        self.token = partition.token
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

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._stop.set()

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
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
