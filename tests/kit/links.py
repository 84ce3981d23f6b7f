"""TCP links that can be cut, in either direction, or slowed down: forwarding ports in a process of their own.

Nothing here needs rights or touches the system's network. A held link loses no bytes: what stands in it is
delivered when it is released, as TCP does after a cut that was shorter than its patience. A new connection to
a held link is accepted and stays silent.
"""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import uvloop
from kit.waiting import ended
from muster_server.dev.ports import LOOPBACK, free_ports

TO_TARGET, TO_SOURCE = "to_target", "to_source"
BOTH = (TO_TARGET, TO_SOURCE)
_TESTS = Path(__file__).resolve().parent.parent
_LOOK_MS = 20
_MOST_HELD_BYTES = 1 << 20


class Links:
    """Links by name; an async context manager that runs their process."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._told = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kit.links",
            cwd=_TESTS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await ended(self._process)

    async def add(self, name: str, target_port: int) -> int:
        """Opens a link to a port of this machine; gives the port to use instead."""
        port = free_ports(1)[0]
        await self._tell(name, listen=port, target=target_port)
        return port

    async def hold(self, name: str, directions: Sequence[str] = BOTH) -> None:
        """From now on nothing passes in these directions."""
        await self._tell(name, hold=list(directions))

    async def release(self, name: str) -> None:
        """Everything passes again, what was held first."""
        await self._tell(name, release=True)

    async def delay(self, name: str, delay_ms: int) -> None:
        """What passes takes so long, each way; 0: as fast as it can. Nothing is overtaken."""
        await self._tell(name, delay_ms=delay_ms)

    async def _tell(self, name: str, **command: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        async with self._told:
            process.stdin.write((json.dumps({"name": name, **command}) + "\n").encode())
            answer = (await process.stdout.readline()).decode().strip()
        if answer != "done":
            raise RuntimeError(f"link {name}: {answer or 'the process with the links has ended'}")


# --- In the process of the links


@dataclass(slots=True)
class _Link:
    port: int
    target: int
    held: set[str] = field(default_factory=set)
    delay_ms: int = 0
    pairs: set["_Pair"] = field(default_factory=set)
    server: asyncio.Server | None = None
    looking: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: _Pair(self).source, LOOPBACK, self.port)

    def refused(self) -> None:
        """Nobody listens behind it: then nobody listens here either, until somebody does."""
        if self.server is not None:
            self.server.close()
            self.server = None
        if self.looking is None:
            self.looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, self.target)
            except OSError:
                await asyncio.sleep(_LOOK_MS / 1000)
                continue
            writer.close()
            await self.listen()
            self.looking = None
            return


class _Pair:
    """The two connections of one forwarded connection."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.source = _End(self, TO_TARGET)
        self.target = _End(self, TO_SOURCE)
        self.connecting: asyncio.Task[None] | None = None

    def opened(self) -> None:
        self.link.pairs.add(self)
        self.connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        while TO_TARGET in self.link.held:  # noqa: ASYNC110 - as seldom as it is short
            await asyncio.sleep(_LOOK_MS / 1000)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.target, LOOPBACK, self.link.target
            )
        except OSError:
            if self.source.transport is not None:
                self.source.transport.abort()
            self.link.refused()
            return
        self.flush()

    def other(self, end: "_End") -> "_End":
        return self.target if end is self.source else self.source

    def flush(self) -> None:
        """Passes on what may pass."""
        for end in (self.source, self.target):
            out = self.other(end).transport
            if end.direction in self.link.held or out is None or self.other(end).over:
                continue
            waiting, end.waiting = bytes(end.waiting), bytearray()
            # uvloop refuses what it has closed by itself, which `is_closing` does not say; the end follows.
            with suppress(RuntimeError):
                if waiting and not out.is_closing():
                    out.write(waiting)
            with suppress(RuntimeError):
                if end.transport is not None and not end.over and not end.transport.is_closing():
                    end.transport.resume_reading()
            if end.over and not end.on_the_way:
                out.close()


class _End(asyncio.Protocol):
    """One of the two connections; what it reads goes in its direction."""

    def __init__(self, pair: _Pair, direction: str) -> None:
        self.pair = pair
        self.direction = direction
        self.transport: asyncio.Transport | None = None
        self.waiting = bytearray()
        self.over = False
        self.on_the_way: deque[tuple[float, bytes]] = deque()
        self._arrival: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if self is self.pair.source:
            self.pair.opened()

    def data_received(self, data: bytes) -> None:
        """Passes bytes on in their order: after what waits and what is on the way."""
        delay_s = self.pair.link.delay_ms / 1000
        if not delay_s and not self.on_the_way:
            self._pass(data)
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        if self.on_the_way:
            due_s = max(due_s, self.on_the_way[-1][0])
        self.on_the_way.append((due_s, data))
        if self._arrival is None:
            self._arrival = loop.call_at(due_s, self._arrive)

    def _arrive(self) -> None:
        """Passes on what has been on its way for long enough."""
        loop = asyncio.get_running_loop()
        self._arrival = None
        now_s = loop.time()
        while self.on_the_way and self.on_the_way[0][0] <= now_s:
            self._pass(self.on_the_way.popleft()[1])
        if self.on_the_way:
            self._arrival = loop.call_at(self.on_the_way[0][0], self._arrive)
        elif self.over:
            self._end()

    def _pass(self, data: bytes) -> None:
        out = self.pair.other(self).transport
        if self.direction in self.pair.link.held or out is None or self.waiting:
            self.waiting += data
            if len(self.waiting) > _MOST_HELD_BYTES and self.transport is not None and not self.over:
                self.transport.pause_reading()
        elif not out.is_closing():
            out.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        pair = self.pair
        out = pair.other(self).transport
        if out is None and self is pair.source and pair.connecting is not None:
            pair.connecting.cancel()
        elif not self.on_the_way:
            self._end()
        if pair.source.over and pair.target.over:
            pair.link.pairs.discard(pair)

    def _end(self) -> None:
        """The other connection ends after all that was sent before; a held one when it is released."""
        out = self.pair.other(self).transport
        if out is not None and self.direction not in self.pair.link.held:
            out.close()


async def _obey(links: dict[str, _Link], command: dict[str, object]) -> None:
    name = str(command["name"])
    if "listen" in command:
        links[name] = _Link(int(str(command["listen"])), int(str(command["target"])))
        await links[name].listen()
        return
    link = links[name]
    hold = command.get("hold", [])
    assert isinstance(hold, list)
    link.held |= set(hold)
    link.delay_ms = int(str(command.get("delay_ms", link.delay_ms)))
    if "release" in command:
        link.held.clear()
        for pair in tuple(link.pairs):
            pair.flush()


async def _serve() -> None:
    links: dict[str, _Link] = {}
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            await _obey(links, json.loads(line))
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    uvloop.run(_serve())
