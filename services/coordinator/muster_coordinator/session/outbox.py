"""The frames of a session stream that the client has not taken yet."""

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from muster_protos.muster.v1 import session_pb2

MESSAGE_MAX_BYTES = 1 << 20
"""A message gets no further frame that would make it larger; a larger frame goes alone."""

_FRAME_OVERHEAD_BYTES = 128


@dataclass(slots=True)
class _Message:
    """A message that waits.

    Attributes:
        content: the message, or it encoded.
        bytes: about how large it is.
        replaceable: frames of it that newer ones take the place of, and how large they are, by key.
    """

    content: session_pb2.SessionResponse | bytes
    bytes: int = 0
    replaceable: dict[Hashable, tuple[session_pb2.ServerFrame, int]] = field(default_factory=dict)


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
        self._messages: deque[_Message] = deque()
        self._open: session_pb2.SessionResponse | None = None
        self._newest: dict[Hashable, _Message] = {}
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

    def frame(self, size_bytes: int, replaces: Hashable = None) -> session_pb2.ServerFrame:
        """A new frame at the end, to be filled in before the loop's turn ends.

        Args:
            size_bytes: about how large it will be.
            replaces: as long as a frame waits that was asked for under the same key, it is that one, to be
                written over; None: none is.
        """
        size_bytes += _FRAME_OVERHEAD_BYTES
        if replaces in self._newest:
            return self._replaced(replaces, size_bytes)
        response = self._open
        if response is None or self._messages[-1].bytes + size_bytes > MESSAGE_MAX_BYTES:
            response = self._open = session_pb2.SessionResponse()
            self._put(response)
        message = self._messages[-1]
        message.bytes += size_bytes
        self._count(size_bytes)
        frame = response.frames.add()
        if replaces is not None:
            self._newest[replaces] = message
            message.replaceable[replaces] = frame, size_bytes
        return frame

    def _replaced(self, key: Hashable, size_bytes: int) -> session_pb2.ServerFrame:
        message = self._newest[key]
        frame, before_bytes = message.replaceable[key]
        message.replaceable[key] = frame, max(size_bytes, before_bytes)
        grown_bytes = max(size_bytes - before_bytes, 0)
        message.bytes += grown_bytes
        self._count(grown_bytes)
        return frame

    def add(self, message: bytes) -> None:
        """Puts an encoded message at the end, which gets no further frame."""
        self._open = None
        self._put(message)
        self._messages[-1].bytes += len(message)
        self._count(len(message))

    def take(self) -> session_pb2.SessionResponse | bytes:
        """The oldest message; nothing is added to it any more. It waits until `written`."""
        message = self._messages.popleft()
        for key in message.replaceable:
            del self._newest[key]
        self._taken_bytes = message.bytes
        if message.content is self._open:
            self._open = None
        return message.content

    def written(self) -> None:
        """The message that was taken has been sent, or dropped."""
        self._count(-self._taken_bytes)
        self._taken_bytes = 0

    def clear(self) -> None:
        """Drops everything that was not taken yet."""
        self._count(-sum(message.bytes for message in self._messages))
        self._messages.clear()
        self._newest.clear()
        self._open = None

    def _put(self, message: session_pb2.SessionResponse | bytes) -> None:
        self._messages.append(_Message(message))
        self.wake()

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
