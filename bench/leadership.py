#!/usr/bin/env python3
"""How long nobody leads when the leader goes: stopped in order (SIGTERM), and killed (SIGKILL).

    ./x bench leadership [--rounds 20] [--grace-ms 3000]

Three processes ask for one leadership with `muster.lead(work, name=...)`; the leader gets the signal, and
another process takes its place. The time runs from the signal to the first line of the work of the next
leader. SIGKILL's is shown without the disconnect grace, for which the cluster waits when a stream broke.
Candidates and servers are processes of this machine (one Redis node).
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import muster
from muster_server.dev.cluster import DevCluster

NAME = "bench"
CANDIDATES = 3
PATIENCE_S = 60
SETTINGS = {"MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


class Candidates:
    """Processes that want to lead; one of them does."""

    def __init__(self, servers: str, grace_ms: int) -> None:
        self._command = [sys.executable, __file__, "--candidate", servers, "--grace-ms", str(grace_ms)]
        self._lines: dict[Process, asyncio.Task[bytes]] = {}
        self._servers = servers

    async def fill(self) -> None:
        """Starts processes until there are as many as there should be, and waits until all take part."""
        while len(self._lines) < CANDIDATES:
            process = await asyncio.create_subprocess_exec(*self._command, stdout=PIPE)
            assert process.stdout is not None
            self._lines[process] = asyncio.create_task(process.stdout.readline())
        async with asyncio.timeout(PATIENCE_S), muster.Cluster(self._servers) as cluster:
            while True:
                group = await cluster.describe_group(f"lead/{NAME}")
                if group.protocol_name and len(group.members) == CANDIDATES:
                    return
                await asyncio.sleep(0.05)

    async def hand_over(self, number: signal.Signals) -> float:
        """Ends the leader with a signal; returns after how many ms another process leads."""
        async with asyncio.timeout(PATIENCE_S):
            await self._led()
        leader = next(process for process, line in self._lines.items() if line.done())
        del self._lines[leader]
        signalled_ns = time.monotonic_ns()
        leader.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            leads_ns = int(await self._led())
        await leader.communicate()
        return (leads_ns - signalled_ns) / 1e6

    async def _led(self) -> bytes:
        done, _ = await asyncio.wait(self._lines.values(), return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def close(self) -> None:
        for process, line in self._lines.items():
            process.kill()
            await asyncio.wait((line,))
            await process.wait()


async def lead(servers: str, grace_ms: int) -> None:
    """A candidate, as a process of its own."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def work(term: muster.Term) -> None:
        os.write(1, b"%d\n" % time.monotonic_ns())
        await term.ending()

    await muster.alead(work, name=NAME, servers=servers, stop=stop, disconnect_grace_ms=grace_ms)


async def run(rounds: int, grace_ms: int) -> None:
    """Prints the table."""
    print("| the leader | of the time | median | worst |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        async with DevCluster(Path(folder), redis_nodes=1, coordinators=1, settings=SETTINGS) as cluster:
            candidates = Candidates(cluster.servers, grace_ms)
            try:
                for number, expected_ms in ((signal.SIGTERM, 0), (signal.SIGKILL, grace_ms)):
                    took_ms: list[float] = []
                    for _ in range(rounds):
                        await candidates.fill()
                        took_ms.append(await candidates.hand_over(number) - expected_ms)
                    beyond = f"beyond {expected_ms:,} ms of grace" if expected_ms else "all of it"
                    median, worst = statistics.median(took_ms), max(took_ms)
                    print(f"| {number.name} | {beyond} | {median:.0f} ms | {worst:.0f} ms |", flush=True)
            finally:
                await candidates.close()


def main() -> None:
    """Reads what is to be measured, and measures it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--grace-ms", type=int, default=3_000)
    parser.add_argument("--candidate", metavar="SERVERS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    asyncio.run(
        lead(given.candidate, given.grace_ms) if given.candidate else run(given.rounds, given.grace_ms)
    )


if __name__ == "__main__":
    main()
