"""The frames of a session stream that the client has not taken yet."""

import asyncio
from collections import deque

from muster_protos.muster.v1 import session_pb2

MESSAGE_MAX_BYTES = 1 << 20
"""A message gets no further frame that would make it larger; a larger frame goes alone."""

_FRAME_OVERHEAD_BYTES = 128


class Queued:
    """What waits on all streams of a process.

    Attributes:
        bytes: how much.
    """

    def __init__(self) -> None:
        self.bytes = 0


class Outbox:
    """Gathers frames into messages: what is put in before the writer comes round goes out together.

    Args:
        max_bytes: how much may wait, with the message that is on its way.
        queued: counts it together with that of other streams.
    """

    def __init__(self, max_bytes: int, queued: Queued) -> None:
        self._max_bytes = max_bytes
        self._queued = queued
        self._messages: deque[session_pb2.SessionResponse] = deque()
        self._sizes: deque[int] = deque()
        self._taken_bytes = 0
        self.bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._messages)

    @property
    def full(self) -> bool:
        """Whether more waits than may. Asked before a frame is added, so that one of any size is taken."""
        return self.bytes > self._max_bytes

    def frame(self, size_bytes: int) -> session_pb2.ServerFrame:
        """A new frame at the end, to be filled in before the loop's turn ends.

        Args:
            size_bytes: about how large it will be.
        """
        size_bytes += _FRAME_OVERHEAD_BYTES
        if not self._messages or self._sizes[-1] + size_bytes > MESSAGE_MAX_BYTES:
            self._messages.append(session_pb2.SessionResponse())
            self._sizes.append(0)
            self.wake()
        self._sizes[-1] += size_bytes
        self._count(size_bytes)
        return self._messages[-1].frames.add()

    def take(self) -> session_pb2.SessionResponse:
        """The oldest message; nothing is added to it any more. It waits until `written`."""
        self._taken_bytes = self._sizes.popleft()
        return self._messages.popleft()

    def written(self) -> None:
        """The message that was taken has been sent, or dropped."""
        self._count(-self._taken_bytes)
        self._taken_bytes = 0

    def clear(self) -> None:
        """Drops everything that was not taken yet."""
        self._count(-sum(self._sizes))
        self._messages.clear()
        self._sizes.clear()

    def _count(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self._queued.bytes += size_bytes

    def wake(self) -> None:
        """Wakes the writer."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for `wake`. One writer at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
