"""Answers that their callers have not read yet.

What was written waits in gRPC until the caller takes it, and gRPC lets go of it only with the connection: a
caller who does not read loses that.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import grpc
import structlog

from muster_runtime.clock import boot_ms
from muster_runtime.rpc.refusals import ResourceExhausted

log = structlog.get_logger()

_OPEN_FILES = "/dev/fd"
_MAPPED = "::ffff:"
_SMALL_BYTES = 4_096
_PATIENCE_MS = 1_000
_RETRY_MS = 500
_LOOK_MS = 100
_CHECK_S = 0.5


def cut(peers: Iterable[str]) -> set[str]:
    """Ends the connections of peers, at once and for all their calls; returns those that had one.

    All open files are looked at once, however many peers there are: that takes milliseconds.

    Args:
        peers: as grpc names them, for example `ipv4:10.0.0.7:5123`.
    """
    wanted = {address: peer for peer in peers if (address := _address(peer)) is not None}
    found: set[str] = set()
    for name in os.listdir(_OPEN_FILES) if wanted else ():
        connection = _connection(int(name))
        if connection is None:
            continue
        with connection, suppress(OSError):  # it is not connected
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            host, port = connection.getpeername()[:2]
            peer = wanted.get((str(host).removeprefix(_MAPPED), port))
            if peer is not None:
                connection.shutdown(socket.SHUT_RDWR)
                found.add(peer)
    return found


def _address(peer: str) -> tuple[str, int] | None:
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


class SpareFile:
    """A file kept open in reserve: when a process can open no more, finding out whom to cut off needs one."""

    def __init__(self) -> None:
        self._number: int | None = None

    def keep(self) -> None:
        """Opens it where it is not open, and one can be opened."""
        if self._number is None:
            with suppress(OSError):
                self._number = os.open(os.devnull, os.O_RDONLY)

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Closes it during a block, which can then open one file."""
        number, self._number = self._number, None
        if number is not None:
            os.close(number)
        try:
            yield
        finally:
            self.keep()


SPARE_FILE = SpareFile()
"""The one of this process."""


class Cuts:
    """Ends the connections of callers who do not read, or only give up calls, without holding up the loop.

    Who is named while it looks for others is cut off with the next look: there is one at a time.

    Args:
        cut_off: ends the connections of peers, in a thread, and returns whose.
    """

    def __init__(self, cut_off: Callable[[Iterable[str]], set[str]] = cut) -> None:
        SPARE_FILE.keep()
        self._cut_off = cut_off
        self._whys: dict[str, dict[str, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    def soon(self, peer: str, **why: int) -> None:
        """Ends the connection of a peer soon.

        Args:
            peer: as grpc names it.
            why: for the log: how many bytes it has left unread, or calls it gave up.
        """
        self._whys[peer] = why
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._whys:
                whys, self._whys = self._whys, {}
                with SPARE_FILE.given_up():
                    found = await asyncio.to_thread(self._cut_off, whys)
                for peer in found:
                    log.warning("caller_cut_off", peer=peer, **whys[peer])
        except OSError as error:  # they are named again
            log.warning("callers_not_cut_off", problem=str(error))
        finally:
            self._looking = None


class TimedWrites:
    """Writes to streams whose readers lose their connection where they do not read in time.

    Args:
        timeout_ms: how long a reader may take for one message.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._cuts = Cuts()

    async def write(self, message: Any, context: Any) -> None:
        """Writes a message; returns when its reader has taken it, or gRPC keeps it.

        Raises:
            CancelledError: the reader left, or has lost its connection.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await context.write(message)
        except TimeoutError:
            while True:  # until gRPC cancels the call, when its connection has ended
                self.cut_off(context.peer())
                await asyncio.sleep(self._timeout_s)  # it is not found where no file can be opened
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError from error  # the reader left with this unread

    def cut_off(self, peer: str) -> None:
        """Ends the connection of a reader soon.

        Args:
            peer: as grpc names it.
        """
        self._cuts.soon(peer, unread_watches=1)


def _connection(number: int) -> socket.socket | None:
    """A duplicate of an open socket, which stays that socket where the number becomes another's."""
    try:
        duplicate = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


class _Answer:
    """An answer that its caller may not have read yet."""

    __slots__ = ("began_ms", "peer", "size_bytes")

    def __init__(self, peer: str, size_bytes: int, began_ms: int) -> None:
        self.peer = peer
        self.size_bytes = size_bytes
        self.began_ms = began_ms


class Unread:
    """The unary answers of a process that their callers have not read.

    Args:
        max_bytes: how much they may be together.
        timeout_ms: how long a caller may take to read one before it loses its connection.
    """

    def __init__(self, max_bytes: int, timeout_ms: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        self._cuts = Cuts()
        self._looked_ms = 0
        self._answers: dict[object, _Answer] = {}  # by the task of the call, the oldest first
        self._checker: asyncio.TimerHandle | None = None

    def add(self, context: Any, size_bytes: int) -> None:
        """Takes in the answer that the task of a call is about to give to gRPC.

        gRPC lets the task end when the caller has the answer, or is gone.

        Args:
            context: of the call.
            size_bytes: how large the answer is.

        Raises:
            ResourceExhausted: too much is unread by others.
        """
        if size_bytes > _SMALL_BYTES and self.bytes + size_bytes > self._max_bytes:
            self._cut_off_older(_PATIENCE_MS)
            raise ResourceExhausted(
                f"callers have left {self.bytes:,} bytes of answers unread; try again", _RETRY_MS
            )
        task = asyncio.current_task()
        assert task is not None
        self._answers[task] = _Answer(context.peer(), size_bytes, boot_ms())
        self.bytes += size_bytes
        if self._checker is None:
            self._checker = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        task.add_done_callback(self._read)

    def _read(self, task: object) -> None:
        self.bytes -= self._answers.pop(task).size_bytes

    def close(self) -> None:
        """Stops watching."""
        if self._checker is not None:
            self._checker.cancel()

    def _check(self) -> None:
        self._checker = None
        self._cut_off_older(self._timeout_ms)
        if self._answers:
            self._checker = asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    def _cut_off_older(self, age_ms: int) -> None:
        now_ms = boot_ms()
        if now_ms - self._looked_ms < _LOOK_MS:
            return  # there may be many callers who find that there is no room
        self._looked_ms = now_ms
        peers: dict[str, int] = {}
        for answer in self._answers.values():
            if now_ms - answer.began_ms < age_ms:
                break
            peers[answer.peer] = peers.get(answer.peer, 0) + answer.size_bytes
        for peer, unread_bytes in peers.items():
            self._cuts.soon(peer, unread_bytes=unread_bytes)
