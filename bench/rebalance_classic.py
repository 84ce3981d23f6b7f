#!/usr/bin/env python3
"""How long a rebalance of a classic group takes, beside a real Kafka in the same run.

    ./x bench rebalance_classic [--members 10 100] [--tries 5] [--all-rejoin 1000] [--no-kafka]

* join: a member joins a stable group of n, spread over four client processes with a stream each, until all
  hold the new assignment (200 partitions);
* crash: SIGKILL of a client process, until its partitions run elsewhere, with default settings;
* all rejoin: every member of a large group rejoins at once, until all hold the new assignment.

The cluster is three embedded Redis nodes, one metadata, one discovery and three coordinators, processes of
this machine. Kafka (three brokers, the same counts) is measured when Java 17 and Maven are found.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import muster
from muster_server.dev.cluster import DevCluster

HERE = Path(__file__).parent
PROCESSES = 4
PARTITIONS = 200
SETTINGS = {"MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


class Fleet:
    """Client processes with members of one group, and what they have said."""

    def __init__(self, servers: str, group: str, topic: str, partitions: int) -> None:
        self._servers, self._group, self._topic, self.partitions = servers, group, topic, partitions
        self.processes: list[asyncio.subprocess.Process] = []
        self._heard = asyncio.Condition()
        self._readers: list[asyncio.Task[None]] = []
        self.ready = 0
        self.events: dict[str, list[int]] = defaultdict(list)
        self.holding: dict[int, dict[str, tuple[int, int, int]]] = defaultdict(dict)

    async def start(self) -> None:
        for number in range(PROCESSES):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "rebalance_classic_members.py"),
                self._servers,
                self._group,
                self._topic,
                str(number),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self.processes.append(process)
            self._readers.append(asyncio.ensure_future(self._read(number, process)))
        await self._until(lambda: self.ready == PROCESSES)

    async def _read(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event = json.loads(line)
            async with self._heard:
                if event["event"] == "assigned":
                    self.holding[number][event["member"]] = (
                        event["generation"],
                        event["partitions"],
                        event["at_ns"],
                    )
                elif event["event"] == "ready":
                    self.ready += 1
                self.events[event["event"]].append(event["at_ns"])
                self._heard.notify_all()

    def tell(self, number: int, command: str) -> None:
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write(f"{command}\n".encode())

    async def _until(self, condition: "object", seconds: float = 120) -> None:
        assert callable(condition)
        async with asyncio.timeout(seconds), self._heard:
            await self._heard.wait_for(condition)

    async def settled(self, members: int, above: int) -> tuple[int, int]:
        """Waits until so many members hold all partitions in one generation above another.

        Returns:
            The generation, and when the last of them had its assignment, ns.
        """

        def all_hold() -> bool:
            rows = [row for rows in self.holding.values() for row in rows.values()]
            newest = max((row[0] for row in rows), default=0)
            mine = [row for row in rows if row[0] == newest]
            return newest > above and len(mine) == members and sum(row[1] for row in mine) == self.partitions

        await self._until(all_hold)
        rows = [row for rows in self.holding.values() for row in rows.values()]
        newest = max(row[0] for row in rows)
        return newest, max(row[2] for row in rows if row[0] == newest)

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._readers)


async def fleet(
    cluster: DevCluster, name: str, members: int, partitions: int = PARTITIONS
) -> tuple[Fleet, int]:
    """A stable group of so many members."""
    async with muster.Cluster(cluster.servers) as client:
        await client.ensure_topic(name, partitions)
    made = Fleet(cluster.servers, name, name, partitions)
    await made.start()
    for number in range(PROCESSES):
        made.tell(number, f"add {members // PROCESSES + (number < members % PROCESSES)}")
    generation, _ = await made.settled(members, 0)
    return made, generation


async def join(cluster: DevCluster, members: int, tries: int) -> list[float]:
    """Times of a join to a stable group, ms."""
    made, generation = await fleet(cluster, f"join-{members}", members)
    times = []
    for _ in range(tries):
        made.tell(0, "add 1")
        generation, at_ns = await made.settled(members + 1, generation)
        times.append((at_ns - made.events["adding"][-1]) / 1e6)
        made.tell(0, "remove")
        for rows in made.holding.values():
            rows.clear()
        generation, _ = await made.settled(members, generation)
    await made.stop()
    return times


async def crash(cluster: DevCluster, members: int, tries: int) -> list[float]:
    """Times from SIGKILL of one of four client processes until its partitions run elsewhere, ms."""
    times = []
    for number in range(tries):
        made, generation = await fleet(cluster, f"crash-{number}", members)
        left = members - len(made.holding.pop(0))
        killed_ns = time.monotonic_ns()
        made.processes[0].kill()
        _, at_ns = await made.settled(left, generation)
        times.append((at_ns - killed_ns) / 1e6)
        await made.stop()
    return times


async def all_rejoin(cluster: DevCluster, members: int, tries: int) -> list[float]:
    """Times in which all members of a group rejoin at once, ms."""
    made, generation = await fleet(cluster, f"all-{members}", members, partitions=2 * members)
    times = []
    for _ in range(tries):
        made.events["rejoining"].clear()
        for number in range(PROCESSES):
            made.tell(number, "rejoin")
        generation, at_ns = await made.settled(members, generation)
        times.append((at_ns - min(made.events["rejoining"])) / 1e6)
        await asyncio.sleep(0.5)
    await made.stop()
    return times


def kafka(*figure: str) -> dict[str, object]:
    """A figure of the Kafka beside us, as bench/peers/kafka prints it."""
    output = subprocess.run(
        [HERE / "peers/kafka/measure", *figure], check=True, capture_output=True, text=True, timeout=600
    ).stdout
    result: dict[str, object] = json.loads(output.splitlines()[-1])
    return result


def show(name: str, times_ms: list[float], peer_ms: float | None) -> None:
    median = statistics.median(times_ms)
    line = (
        f"{name:<28} {median:9.0f} ms   (all: {', '.join(f'{time_ms:.0f}' for time_ms in sorted(times_ms))})"
    )
    if peer_ms is not None:
        line += f"   Kafka {peer_ms:.0f} ms   {median / peer_ms:.3f} of Kafka's"
    print(line, flush=True)


def main() -> None:
    """Measures Kafka first, then Muster, so that neither disturbs the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--all-rejoin", type=int, default=1_000, metavar="N", help="0: leave out")
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    beside = not arguments.no_kafka and shutil.which("java") is not None and shutil.which("mvn") is not None
    if not beside:
        print("Kafka is left out:", "as asked" if arguments.no_kafka else "java and mvn are needed for it")
    peers: dict[str, float] = {}
    if beside:
        subprocess.run([HERE / "peers/kafka/up"], check=True, stdout=subprocess.DEVNULL)
        try:
            for members in arguments.members:
                figure = kafka("join", str(members), "classic", str(arguments.tries))
                peers[f"join {members}"] = float(str(figure["median_ms"]))
            peers["crash"] = float(str(kafka("crash", "classic")["seconds"])) * 1_000
            if arguments.all_rejoin:
                rounds = kafka("rebalance", str(arguments.all_rejoin))["all_rejoin_ms"]
                assert isinstance(rounds, list)
                peers["all"] = statistics.median(float(value) for value in rounds)
        finally:
            subprocess.run([HERE / "peers/kafka/down"], check=True)
    asyncio.run(measure(arguments, peers))


async def measure(arguments: argparse.Namespace, peers: dict[str, float]) -> None:
    """Muster's figures beside those of Kafka."""
    with tempfile.TemporaryDirectory() as folder:
        async with DevCluster(Path(folder), redis_nodes=3, settings=SETTINGS) as cluster:
            for members in arguments.members:
                times = await join(cluster, members, arguments.tries)
                show(f"join a group of {members}", times, peers.get(f"join {members}"))
            show("crash of a process (12)", await crash(cluster, 12, 3), peers.get("crash"))
            if arguments.all_rejoin:
                times = await all_rejoin(cluster, arguments.all_rejoin, arguments.tries)
                show(f"all {arguments.all_rejoin} rejoin", times, peers.get("all"))


if __name__ == "__main__":
    main()
