"""Reads with a limit of time."""

import asyncio

import pytest
from muster_runtime.rpc.reads import read_within


class Stream:
    """Gives one message when it is told to, and nothing after it."""

    def __init__(self) -> None:
        self.first: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.reads = 0

    async def read(self) -> str:
        self.reads += 1
        return await (self.first if self.reads == 1 else asyncio.get_running_loop().create_future())


async def test_a_cancellation_that_comes_together_with_a_message_is_not_lost() -> None:
    stream = Stream()

    async def read_for_ever() -> None:
        while True:
            await read_within(stream, 600)

    reader = asyncio.ensure_future(read_for_ever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stream.first.set_result("news")
    await asyncio.sleep(0)
    reader.cancel()
    done, _ = await asyncio.wait([reader], timeout=10)
    assert done, "it reads on"


async def test_nothing_in_time_is_a_time_out() -> None:
    stream = Stream()
    with pytest.raises(TimeoutError):
        await read_within(stream, 0.01)
    assert stream.first.cancelled()
