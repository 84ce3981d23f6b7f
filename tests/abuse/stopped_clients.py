"""Three workers are stopped for longer than their sessions, and go on as if nothing had been.

Must hold: what they had is taken from them and given back when they are heard of again, each of them commits
again, and W does not notice.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from abuse.lab import Target, begins, stage
from kit.programs import Broken
from kit.waiting import until

WORKERS = 3
STOPPED_S = 14.0
"""Longer than the sessions of the library."""

AFTER = 10
PATIENCE_S = 60.0


def commits(journal: Path) -> int:
    """How many commits a worker has written down."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum(json.loads(line)["event"] == "committed" for line in lines if line.endswith("}"))


async def until_commits(journal: Path, number: int) -> None:
    """Waits for so many commits of a worker."""
    await until(lambda: commits(journal) >= number, f"{number} commits", PATIENCE_S)


async def attack(target: Target) -> str:
    with tempfile.TemporaryDirectory(prefix="muster-stopped-") as made:
        journals = {group: Path(made) / group for group in await target.groups(WORKERS, "stopped")}
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "abuse.innocent", target.servers, str(journal), group, "auto"
            )
            for group, journal in journals.items()
        ]
        try:
            for journal in journals.values():
                await until_commits(journal, AFTER)
            begins()
            for worker in workers:
                os.kill(worker.pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            before = [commits(journal) for journal in journals.values()]
            for worker in workers:
                os.kill(worker.pid, signal.SIGCONT)
            for number, journal in zip(before, journals.values(), strict=True):
                try:
                    await until_commits(journal, number + AFTER)
                except AssertionError as error:
                    raise Broken(f"a worker that was stopped does not go on: {error}") from error
        finally:
            for worker in workers:
                worker.kill()
                await worker.wait()
    return f"{WORKERS} workers went on after {STOPPED_S:g} s"


if __name__ == "__main__":
    stage(attack)
