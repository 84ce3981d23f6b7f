"""The connection to one node comes back, whatever ended it."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import until
from muster_metadata.nodes.connection import NodeConnection
from muster_metadata.nodes.reply import Status, plain
from muster_server.dev.redis_nodes import RedisNode

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def connected_node(
    folder: Path, on_connect: Callable[[], None] | None = None
) -> AsyncIterator[NodeConnection]:
    """A connection to a server of its own."""
    node = RedisNode(folder / "node")
    await node.start()
    connection = NodeConnection(node.url, 2_000, on_connect=on_connect)
    connection.start()
    try:
        await until(lambda: connection.connected, "it is connected")
        yield connection
    finally:
        await connection.stop()
        await node.stop()


@pytest.mark.parametrize("waiting", [False, True], ids=["idle", "with a command"])
async def test_a_time_out_of_the_kernel_is_a_loss_and_no_answer(tmp_path: Path, waiting: bool) -> None:
    async with connected_node(tmp_path) as connection:
        wire: Any = connection._connection
        reply = connection.send(plain, "PING") if waiting else None
        # What asyncio does when a read fails with ETIMEDOUT, as after the keepalive of a dead machine.
        wire._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "timed out"))
        if reply is not None:
            assert (await reply).status is Status.LOST
        await until(lambda: connection.losses == 1 and connection.connected, "it is connected again")
        assert (await connection.send(plain, "PING")).values == (b"PONG",)


async def test_an_error_that_nobody_foresaw_does_not_end_the_connecting(tmp_path: Path) -> None:
    connections = []

    def fail_once() -> None:
        connections.append(1)
        if len(connections) == 1:
            raise RuntimeError("unforeseen")

    async with connected_node(tmp_path, fail_once) as connection:
        await until(lambda: len(connections) == 2 and connection.connected, "it is connected again")
        assert (await connection.send(plain, "PING")).values == (b"PONG",)
