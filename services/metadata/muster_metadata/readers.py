"""Those who read what this process sends in streams: logs, the audit trail, results of steps."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from muster_runtime.rpc.quotas.quotas import host_of
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.rpc.unread import TimedWrites

from muster_metadata.log.reading import PAGE_BYTES, ReadPage, Room

_WAIT_S = 10.0
_RETRY_MS = 500
_COPIES = 4
"""What is read is there as it came, encoded, and as gRPC has it, and for a moment as a message."""
_PAGE_ROOM_BYTES = _COPIES * PAGE_BYTES
_ENTRY_BYTES = 128
"""What an entry takes besides its record."""


class Readers:
    """Bounds what is in memory for those who read (docs/safety.md, LIM-67).

    What is to be read next has its room before it is fetched; who finds none waits in line. A host has half
    of the room at most.

    Args:
        writes: cut off who does not take a message in time.
        max_bytes: the room, as much as all have together.

    Attributes:
        max_bytes: the same.
        used_bytes: how much of it is in use.
    """

    def __init__(self, writes: TimedWrites, max_bytes: int) -> None:
        self.used_bytes = 0
        self._writes = writes
        self.max_bytes = max_bytes
        self._used_by: dict[str, int] = {}
        self._lines: dict[str, OrderedDict[asyncio.Future[None], int]] = {}  # whose turn is next is first

    @contextmanager
    def reading(self, context: Any) -> Iterator["Reader"]:
        """A reader for the time of a call."""
        reader = Reader(self, self._writes, context)
        try:
            yield reader
        finally:
            reader.end()

    def has_room(self, host: str, size_bytes: int) -> bool:
        """Whether there is so much room for a host."""
        of_host = self._used_by.get(host, 0)
        return (
            not self.used_bytes  # anything can be read alone
            or (
                self.used_bytes + size_bytes <= self.max_bytes and of_host + size_bytes <= self.max_bytes // 2
            )
        )

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._lines)

    def use(self, host: str, size_bytes: int) -> None:
        """Counts room that a host has from now on; below zero: no longer."""
        self.used_bytes += size_bytes
        used_bytes = self._used_by.pop(host, 0) + size_bytes
        if used_bytes:
            self._used_by[host] = used_bytes
        if size_bytes < 0:
            self._let_in()

    async def wait(self, host: str, size_bytes: int) -> None:
        """Waits for room in line, and counts it.

        Raises:
            ResourceExhausted: there is none for ten seconds.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(host, OrderedDict())
        line[place] = size_bytes
        try:
            async with asyncio.timeout(_WAIT_S):
                await asyncio.wait((place,))
        except TimeoutError:
            if not place.done():
                raise ResourceExhausted(
                    f"what others have not read takes {self.used_bytes:,} bytes; try again", _RETRY_MS
                ) from None
        except asyncio.CancelledError:
            if place.done():
                self.use(host, -size_bytes)
            raise
        finally:
            if line.pop(place, None) is not None:  # it was not let in
                if not line:
                    del self._lines[host]
                self._let_in()  # there may be room for who came after it

    def _let_in(self) -> None:
        """Gives room to those that wait, hosts in turn; who has none keeps those of its host waiting."""
        hosts = deque(self._lines)
        while hosts:
            host = hosts.popleft()
            line = self._lines[host]
            place, size_bytes = next(iter(line.items()))
            if not self.has_room(host, size_bytes):
                continue
            del line[place], self._lines[host]
            if line:
                self._lines[host] = line
                hosts.append(host)
            self.use(host, size_bytes)
            place.set_result(None)


class Reader(Room):
    """One call that reads.

    Args:
        readers: of the process.
        writes: cut off who does not take a message in time.
        context: of the call.
    """

    def __init__(self, readers: Readers, writes: TimedWrites, context: Any) -> None:
        self._readers = readers
        self._writes = writes
        self._context = context
        self._peer = context.peer()
        self.host = host_of(self._peer)
        self._bytes = 0
        self._ahead_bytes = 0

    async def begin(self) -> None:
        """See `Room`.

        Raises:
            ResourceExhausted: see `Readers.wait`.
        """
        if self._ahead_bytes:
            ahead_bytes, self._ahead_bytes = self._ahead_bytes, 0
            self._readers.use(self.host, -self._bytes)
            self._bytes = ahead_bytes
        else:
            await self.room(_PAGE_ROOM_BYTES)

    def may_read_ahead(self) -> bool:
        """See `Room`: where nobody waits, and half of what the host may have is free."""
        readers = self._readers
        ample = not readers.awaited and readers.has_room(self.host, readers.max_bytes // 4)
        if ample and not self._ahead_bytes:
            self._ahead_bytes = _PAGE_ROOM_BYTES
            readers.use(self.host, self._ahead_bytes)
        return ample

    async def room(self, size_bytes: int) -> None:
        """Waits for room for what is to be read next, in place of what it had.

        Raises:
            ResourceExhausted: see `Readers.wait`.
        """
        self.has(0)
        if self._readers.has_room(self.host, size_bytes):
            self._readers.use(self.host, size_bytes)
        else:
            await self._readers.wait(self.host, size_bytes)
        self._bytes = size_bytes

    def has(self, size_bytes: int) -> None:
        """Counts how much was read."""
        more_bytes, self._bytes = size_bytes - self._bytes, size_bytes
        self._readers.use(self.host, more_bytes)

    def has_page(self, page: ReadPage) -> None:
        """Counts a page of a log."""
        entries = sum([_ENTRY_BYTES * len(run.records) + run.size_bytes for run in page.runs])
        self.has(_COPIES * (entries + len(page.part)))

    def end(self) -> None:
        """The call is over."""
        ahead_bytes, self._ahead_bytes = self._ahead_bytes, 0
        self._readers.use(self.host, -ahead_bytes)
        self.has(0)

    @contextmanager
    def keeping(self, size_bytes: int) -> Iterator[None]:
        """Counts what waits until it has taken what is written; where there is no room it is cut off."""
        if not self._readers.has_room(self.host, size_bytes):
            self._writes.cut_off(self._peer)
        self._readers.use(self.host, size_bytes)
        try:
            yield
        finally:
            self._readers.use(self.host, -size_bytes)

    async def write(self, message: Any) -> None:
        """Writes a message; returns when it was taken, or gRPC keeps it.

        Raises:
            CancelledError: the reader left, or has lost its connection.
        """
        await self._writes.write(message, self._context)
