"""Workers as processes, written where a test needs them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kit.forked import Program, started
from kit.waiting import killed

BEGINNING = """
import asyncio, functools, logging, os, sys, time, muster
logging.basicConfig(level=logging.INFO, format="%(message)s")
group, *arguments = sys.argv[1:]

def say(p):
    os.write(1, b"at %d\\n" % p.number)  # one write, for threads print at the same time
"""
ENDING = """
print("ended in order", flush=True)
"""


@asynccontextmanager
async def worker(servers: str, program: str, group: str, *arguments: str) -> AsyncIterator[Program]:
    process = await started(
        [sys.executable, "-c", BEGINNING + program + ENDING, group, *arguments],
        {**os.environ, "MUSTER_SERVERS": servers},
    )
    try:
        yield process
    finally:
        await killed(process)


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """Reads up to a line that contains a text, and returns all of it."""
    assert stream is not None
    read = b""
    async with asyncio.timeout(60):
        while text.encode() not in read:
            line = await stream.readline()
            assert line, f"it ended without {text!r}: {read.decode()}"
            read += line
    return read.decode()


async def at_work(process: Program, count: int) -> None:
    """Waits until a worker is at work on so many partitions."""
    for _ in range(count):
        await line_with(process.stdout, "at ")
