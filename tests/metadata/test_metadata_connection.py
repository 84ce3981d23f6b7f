"""The connection to one node comes back, whatever ended it."""

import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import until
from muster_metadata.nodes import connection as connection_module
from muster_metadata.nodes.connection import NodeConnection, Packed
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


@pytest.mark.parametrize("size_bytes", [1, connection_module._SLICE_BYTES, 5 << 20])
async def test_what_is_packed_once_arrives_as_if_it_had_been_packed_for_the_node(
    tmp_path: Path, size_bytes: int
) -> None:
    async with connected_node(tmp_path) as connection:
        value = random.Random(1).randbytes(size_bytes)
        packed = Packed.of(["some", value])
        replies = [
            connection.send(plain, "ECHO", "before"),
            connection.send(plain, "HSET", "key", "other", b"", packed, "count", 2),
            connection.send(plain, "HMGET", "key", "other", "some", "count"),
        ]
        assert [(await reply).values for reply in replies] == [(b"before",), (3,), ([b"", value, b"2"],)]


async def test_the_rest_of_a_large_command_goes_to_no_other_connection() -> None:
    """What records have in them would be read as commands there."""
    connection = NodeConnection("redis://127.0.0.1:1", 2_000)
    wire = _Breaks()
    connection._connection = wire  # type: ignore[assignment]  # a stand-in that only sends
    connection.send(plain, "SET", "key", Packed.of([bytes(3 * connection_module._SLICE_BYTES)]))
    with pytest.raises(OSError, match="broke"):
        await connection._write(wire)  # type: ignore[arg-type]  # as before
    assert wire.sent == 2


class _Breaks:
    """A connection that is gone after two pieces were sent."""

    sent = 0

    @property
    def is_connected(self) -> bool:
        return self.sent < 2

    async def send_packed_command(self, _: list[bytes], check_health: bool) -> None:
        assert not check_health
        self.sent += 1
        if self.sent > 4:
            raise AssertionError("all of it was sent")
