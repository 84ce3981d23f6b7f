"""Replaces a node of a log and kills itself with SIGKILL after a number of writes that a node confirmed.

    python -m kit.started.replace_until URLS OLD NEW WRITES STEP_TIMEOUT_MS REBUILD_DELAY_MS

Writes 0: it is never killed. Prints how many there were.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Collection
from typing import Any

from muster_metadata.nodes.connection import NodeConnection
from muster_metadata.nodes.reply import NodeReply
from muster_metadata.nodes.scripts import SCRIPTS
from muster_metadata.operator.replacement import Replacement

WRITING = frozenset(SCRIPTS) - {"inspect", "check", "hashes"}


def kill_after(writes: int, names: Collection[str] = WRITING) -> list[int]:
    """Counts what nodes say that they wrote by these scripts, and ends this process at the given one."""
    counted = [0]
    send = NodeConnection.send
    writing = {SCRIPTS[name].sha for name in names}

    def counting(self: NodeConnection, decode: Any, *command: Any) -> "asyncio.Future[NodeReply]":
        future = send(self, decode, *command)
        if command[0] == "EVALSHA" and command[1] in writing:
            future.add_done_callback(count)
        return future

    def count(future: "asyncio.Future[NodeReply]") -> None:
        if future.cancelled() or not future.result().done:
            return
        counted[0] += 1
        if counted[0] == writes:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(NodeConnection, send.__name__, counting)
    return counted


async def main(urls: str, old: str, new: str, step_timeout_ms: int, rebuild_delay_ms: int) -> None:
    async with Replacement(
        urls, old, new, tell=print, timeout_s=30,
        step_timeout_ms=step_timeout_ms, rebuild_delay_ms=rebuild_delay_ms,
    ) as work:  # fmt: skip
        await work.run(await work.plan())


if __name__ == "__main__":
    counted = kill_after(int(sys.argv[4]))
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[5]), int(sys.argv[6])))
    print(f"writes {counted[0]}")
