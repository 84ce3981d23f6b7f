"""Links of the kit keep the order of bytes, as TCP does, whatever is done to them meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from kit.links import Links
from kit.waiting import until_equal
from muster_server.dev.ports import LOOPBACK, free_ports

pytestmark = pytest.mark.cluster

NAME = "one"
LONG_MS = 300


class Line:
    """A connection through a link, and what came out of it."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.arrived = bytearray()
        self.ended = asyncio.Event()
        self.writer: asyncio.StreamWriter | None = None

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready")
        while data := await reader.read(1_000):
            self.arrived += data
        self.ended.set()
        writer.close()

    async def send(self, text: str) -> None:
        assert self.writer is not None
        self.writer.write(text.encode())
        await self.writer.drain()

    async def came(self, text: str) -> None:
        await until_equal(self.arrived.decode, text)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    async with Links() as links:
        made = Line(links)
        (port,) = free_ports(1)
        server = await asyncio.start_server(made.take, LOOPBACK, port)
        reader, made.writer = await asyncio.open_connection(LOOPBACK, await links.add(NAME, port))
        assert await reader.readexactly(5) == b"ready"
        yield made
        made.writer.close()
        server.close()


async def crossed(line: Line) -> None:
    """A round through the process of the links: it has read what was sent before."""
    await line.links.add(f"{NAME} again", 1)


async def test_lowering_the_delay_lets_nothing_overtake(line: Line) -> None:
    await line.links.delay(NAME, LONG_MS)
    await line.send("first ")
    await crossed(line)
    await line.links.delay(NAME, 0)
    await line.send("second ")
    await crossed(line)
    await line.links.delay(NAME, LONG_MS // 2)
    await line.send("third")
    await line.came("first second third")


async def test_what_is_held_comes_before_what_was_slow(line: Line) -> None:
    await line.links.delay(NAME, LONG_MS)
    await line.send("first ")
    await crossed(line)
    await line.links.hold(NAME)
    await line.links.delay(NAME, 0)
    await line.send("second ")
    await crossed(line)
    await line.links.release(NAME)
    await line.send("third")
    await line.came("first second third")


async def test_what_is_on_the_way_comes_before_the_end(line: Line) -> None:
    await line.links.delay(NAME, LONG_MS)
    await line.send("all of it")
    assert line.writer is not None
    line.writer.close()
    async with asyncio.timeout(30):
        await line.ended.wait()
    assert line.arrived == b"all of it"
