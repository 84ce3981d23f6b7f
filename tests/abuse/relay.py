"""Takes W's connections to the cluster from an address of W's own, so that the attacker's quotas are not W's.

gRPC binds a connection to no address. It does ask a proxy for one, and this is a proxy (HTTP CONNECT).
"""

import asyncio
import sys
from contextlib import suppress
from typing import Self

HOST = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Where W calls from; but for Linux, loopback has no second address, and W shares the attacker's quotas."""

_PIECE_BYTES = 1 << 16


class Relay:
    """The proxy; an async context manager."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What makes a process call through it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return {"http_proxy": f"http://127.0.0.1:{port}", "no_proxy": "", "no_grpc_proxy": ""}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            asked = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            host, _, port = asked.rpartition(":")
            try:
                there = await asyncio.open_connection(host, int(port), local_addr=(HOST, 0))
            except OSError:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
