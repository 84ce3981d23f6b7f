"""What tests change inside the processes of a `LinkedCluster`; Python loads this file by itself.

Two things. Connections to the addresses in `LINKED_ROUTES` (`host:port=port,…`) take another port of the same
host: a link of this process's own, though all processes name a server by the same address. And on SIGUSR1 the
process computes for a second: a signal's handler runs in the main thread, which is the one of the event loop;
other threads go on.
"""

import asyncio
import os
import signal
import time
from typing import Any

BUSY_SECONDS = 1.0


def _compute(_number: int, _frame: object) -> None:
    end = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < end:
        sum(range(1_000))


def _take_routes(text: str) -> None:
    routes = {}
    for route in text.split(","):
        address, _, port = route.partition("=")
        routes[address] = int(port)
    connect = asyncio.open_connection

    async def open_connection(host: Any = None, port: Any = None, **others: Any) -> Any:
        return await connect(host, routes.get(f"{host}:{port}", port), **others)

    asyncio.open_connection = open_connection


signal.signal(signal.SIGUSR1, _compute)
if os.environ.get("LINKED_ROUTES"):
    _take_routes(os.environ["LINKED_ROUTES"])
