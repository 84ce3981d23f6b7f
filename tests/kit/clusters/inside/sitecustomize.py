"""What tests change inside the processes that they start; Python loads this file by itself.

`kit.clusters.linked_cluster.inside` gives the environment of a process that loads it. What variables change:

* `LINKED_ROUTES` (`host:port=port,…`): connections to these addresses take another port of the same host, a
  link of this process's own, though all processes name a server by the same address.
* `SKEWED_CLOCK_MS`: the wall clock goes ahead by so much.
* `SKEWED_VERSION`: what Muster takes its version for.
* `DIES_IN_CONVERSION` (`asked=FILE`, `stored=FILE` or `heard=FILE`): a coordinator kills itself when it makes
  a group incremental or classic: as it is about to send the record to the log, when that is stored and nobody
  was told, or when the first member has gone on. One does, which makes the file; others do not after that.

On SIGUSR1 the process computes for a second: a signal's handler runs in the main thread, which is the one of
the event loop; other threads go on.
"""

import asyncio
import importlib.metadata
import os
import signal
import time
from contextlib import suppress
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


def _skew_clock(ahead_ms: int) -> None:
    shown_ns, ahead_ns = time.time_ns, ahead_ms * 1_000_000
    time.time_ns = lambda: shown_ns() + ahead_ns


def _take_version(shown: str) -> None:
    importlib.metadata.version = lambda distribution_name: shown


_CONVERTS = {"group_converted": "ConsumerGroupHeartbeatRequest", "group_reverted": "JoinGroupRequest"}
"""Records that change the kind of a group, and with which calls its members go on."""


def _die_in_conversion(step: str, mark: str) -> None:
    from muster_core.events import AppendDone, Request
    from muster_core.shard import Shard

    handle: Any = Shard.handle
    sent: dict[Any, str] = {}
    heard: dict[Any, str] = {}

    def die() -> None:
        with suppress(FileExistsError):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(self: Any, event: Any, now: Any) -> Any:
        if isinstance(event, AppendDone) and (kind := sent.pop((self, event.append_id), "")):
            if step == "stored":
                die()
            heard[self] = _CONVERTS[kind]
        if isinstance(event, Request) and type(event.message).__name__ == heard.get(self) and step == "heard":
            die()
        effects = handle(self, event, now)
        for append in effects.appends:
            for record in append.records:
                if (kind := record.WhichOneof("kind")) in _CONVERTS:
                    sent[self, append.append_id] = kind
                    if step == "asked":
                        die()
        return effects

    setattr(Shard, handle.__name__, watched)


signal.signal(signal.SIGUSR1, _compute)
if routes := os.environ.get("LINKED_ROUTES"):
    _take_routes(routes)
if ahead := os.environ.get("SKEWED_CLOCK_MS"):
    _skew_clock(int(ahead))
if version := os.environ.get("SKEWED_VERSION"):
    _take_version(version)
if death := os.environ.get("DIES_IN_CONVERSION"):
    _die_in_conversion(*death.split("=", 1))
