"""Replaces a node of a log and kills itself with SIGKILL after a number of answers to scripts.

    python -m kit.replace_until URLS OLD NEW ANSWERS STEP_TIMEOUT_MS REBUILD_DELAY_MS

Answers 0: it is never killed. Prints how many answers there were.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from muster_metadata.lane import Lane
from muster_metadata.replacement import Replacement
from muster_metadata.reply import Reply


def kill_after(answers: int) -> list[int]:
    """Counts the answers to scripts that write; at the given one this process ends."""
    counted = [0]
    send = Lane.send

    def counting(self: Lane, decode: Any, *command: Any) -> "asyncio.Future[Reply]":
        future = send(self, decode, *command)
        if command[0] == "EVALSHA":
            future.add_done_callback(count)
        return future

    def count(_: object) -> None:
        counted[0] += 1
        if counted[0] == answers:
            os.kill(os.getpid(), signal.SIGKILL)

    Lane.send = counting  # type: ignore[method-assign]
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
    print(f"answers {counted[0]}")
