#!/usr/bin/env python3
"""How long a failure keeps members from committing, beside a real Kafka in the same run.

    ./x bench failover [--runs 20] [--only kill stop ...] [--no-kafka]

Ten members of one group in one process commit 20 times a second each, with default settings. Then the group's
coordinator, or a Redis node, is hit. The figure is the longest time between two acknowledged commits of a
member, of the ten the worst; shown is its median over the runs. 50 ms of it are the members' own pace.

* kill, stop, term: SIGKILL, SIGSTOP for 5 s, SIGTERM of the coordinator that owns the group;
* redis-kill, redis-stop, redis-cut: one Redis node of three is killed, stopped for 1.5 s, or cut off so long.

The cluster is three embedded Redis nodes (`everysec`), two metadata, two discovery and three coordinators, as
processes of this machine; metadata reaches Redis, and coordinators reach metadata, through forwarded ports.
Kafka (three brokers) is measured when Java 17 and Maven are found.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
from kit.clusters.linked_cluster import LinkedCluster, link_name
from kit.waiting import until, until_equal
from muster_coordinator.ownership.placement import place
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_metadata.nodes.keys import log_keys
from muster_server.dev.redis_nodes import RedisNode
from redis.asyncio import Redis

HERE = Path(__file__).parent
GROUP, TOPIC, MEMBERS = "failover", "failover", 10
WITHIN_SECONDS = 60.0
NODES = 3


class Fleet:
    """The members' process, and what it said."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.generations: dict[int, int] = {}
        self.rebalances = 0
        self.lost = 0

    async def __aenter__(self) -> "Fleet":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "failover_members.py"),
            self._servers,
            GROUP,
            TOPIC,
            "0",
            str(MEMBERS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        await until(
            lambda: all(len(self.commits[number]) > 20 for number in range(MEMBERS)),
            "all commit",
            WITHIN_SECONDS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            member = event["member"]
            if event["event"] == "committed":
                self.commits[member].append(event["at_ns"])
            elif event["event"] == "lost":
                self.lost += 1
            elif self.generations.get(member) != event["generation"]:
                self.rebalances += member in self.generations
                self.generations[member] = event["generation"]

    def gaps_ms(self, since_ns: int) -> list[float]:
        """The longest time between two commits of each member, from its last one before a moment on."""
        gaps = []
        for times in self.commits.values():
            first = max((index for index, at in enumerate(times) if at <= since_ns), default=0)
            window = times[first:]
            gaps.append(max((b - a for a, b in itertools.pairwise(window)), default=0) / 1e6)
        return gaps

    async def committed_since(self, at_ns: int, count: int) -> None:
        """Waits until every member has committed so often after a moment."""

        def have() -> bool:
            return all(sum(at > at_ns for at in times[-count:]) == count for times in self.commits.values())

        await until(have, "all commit again", WITHIN_SECONDS)

    def forget(self) -> None:
        """Drops what was measured."""
        for times in self.commits.values():
            del times[:-40]


@dataclass
class Bench:
    """One cluster with its members; hits it again and again."""

    cluster: LinkedCluster
    client: muster.Cluster
    fleet: Fleet
    turn: int = 0

    async def settled(self) -> str:
        """Waits until every shard is served where it shall be; gives the name of the group's owner."""
        wanted = place([process.name for process in self.cluster.coordinators], self.cluster.shard_count)

        async def owners() -> dict[int, str]:
            view = await self.client.describe()
            return {row.shard: row.node_id for row in view.shards if row.serving}

        await until_equal(owners, wanted, "the owners of the shards", WITHIN_SECONDS)
        await asyncio.sleep(1)
        return wanted[shard_of(GROUP, self.cluster.shard_count)]

    async def measure(self, hit: Callable[[], Awaitable[None]], seconds: float) -> float:
        """The worst gap after a hit, ms."""
        self.fleet.forget()
        at_ns = time.monotonic_ns()
        await hit()
        await asyncio.sleep(seconds)
        await self.fleet.committed_since(time.monotonic_ns(), 3)
        return max(self.fleet.gaps_ms(at_ns))

    async def kill(self) -> float:
        owner = self.cluster.role(await self.settled())
        gap_ms = await self.measure(owner.kill, 1)
        await owner.start()
        return gap_ms

    async def stop(self) -> float:
        owner = self.cluster.role(await self.settled())

        async def hit() -> None:
            owner.pause()

        gap_ms = await self.measure(hit, 5)
        owner.resume()
        await asyncio.sleep(1)
        return gap_ms

    async def term(self) -> float:
        owner = self.cluster.role(await self.settled())

        async def hit() -> None:
            await owner.terminate()

        gap_ms = await self.measure(hit, 0.5)
        await owner.start()
        return gap_ms

    async def whole(self) -> None:
        """Waits until every node has what any has now: to lose a second one before that is another figure."""
        key = log_keys(shard_of(GROUP, self.cluster.shard_count), self.cluster.shard_count).log
        clients: list[Any] = [Redis(port=self.cluster.node(number).port) for number in range(1, NODES + 1)]

        async def ends() -> list[Position]:
            found = await asyncio.gather(*(client.xrevrange(key, count=1) for client in clients))
            return [Position.parse(rows[0][0].decode()) for rows in found]

        async def reached() -> bool:
            return min(await ends()) >= newest

        await asyncio.sleep(1.5)
        try:
            newest = max(await ends())
            await until(reached, "every node has it", WITHIN_SECONDS)
        finally:
            await asyncio.gather(*(client.aclose() for client in clients))

    async def redis_kill(self) -> float:
        node = self._next_node()
        gap_ms = await self.measure(node.kill, 1)
        await node.start()
        await self.whole()
        return gap_ms

    async def redis_stop(self) -> float:
        node = self._next_node()

        async def hit() -> None:
            node.pause()

        gap_ms = await self.measure(hit, 1.5)
        node.resume()
        await self.whole()
        return gap_ms

    async def redis_cut(self) -> float:
        index = self.turn % NODES + 1
        self.turn += 1
        names = [link_name(process.name, f"redis-{index}") for process in self.cluster.metadata]

        async def hit() -> None:
            for name in names:
                await self.cluster.links.hold(name)

        gap_ms = await self.measure(hit, 1.5)
        for name in names:
            await self.cluster.links.release(name)
        await self.whole()
        return gap_ms

    def _next_node(self) -> RedisNode:
        self.turn += 1
        return self.cluster.node(self.turn % NODES + 1)


@dataclass(frozen=True)
class Figure:
    """What is measured, and what it may be."""

    what: str
    bar_ms: int
    measure: Callable[[Bench], Awaitable[float]]
    kafka: str = ""


FIGURES = {
    "kill": Figure("SIGKILL of the owner", 500, Bench.kill, "-9"),
    "stop": Figure("SIGSTOP of the owner", 2_600, Bench.stop, "-19"),
    "term": Figure("SIGTERM of the owner", 200, Bench.term, "-15"),
    "redis-kill": Figure("a Redis node killed", 100, Bench.redis_kill),
    "redis-stop": Figure("a Redis node stopped", 100, Bench.redis_stop),
    "redis-cut": Figure("a Redis node cut off", 100, Bench.redis_cut),
}


def kafka(number: str) -> float:
    """The worst member's gap after a signal to the coordinator of the Kafka beside us, ms.

    One whose members do not commit again while it is watched (25 s, 45 s when the broker is stopped) counts
    with that time.
    """
    subprocess.run([HERE / "peers/kafka/up"], check=True, stdout=subprocess.DEVNULL)
    output = subprocess.run(
        [HERE / "peers/kafka/measure", "failover", "classic", number],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    run = Path(os.environ.get("KAFKA_PEER_RUN", f"{tempfile.gettempdir()}/muster-kafka-peer"))
    for pid in run.glob("*/pid"):  # a stopped broker goes on; `up` starts those that are gone
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGCONT)
    return float(max(json.loads(output.splitlines()[-1])["gap_ms"]))


def show(figure: Figure, gaps_ms: list[float], rebalances: int, peer_ms: float | None) -> bool:
    """Prints a figure; gives whether it is within its bar."""
    median = statistics.median(gaps_ms)
    good = median <= figure.bar_ms and rebalances == 0
    line = (
        f"{figure.what:<22} {median:7.0f} ms  (best {min(gaps_ms):.0f}, worst {max(gaps_ms):.0f}, "
        f"{len(gaps_ms)} runs)  rebalances {rebalances}  "
        f"bar {figure.bar_ms} ms: {'met' if good else 'MISSED'}"
    )
    if peer_ms is not None:
        line += f"  Kafka {peer_ms:.0f} ms, {median / peer_ms:.3f} of Kafka's"
    print(line, flush=True)
    return good


async def measure(names: list[str], runs: int, peers: dict[str, float], folder: Path) -> bool:
    """Muster's figures beside those of Kafka; gives whether all are within their bars."""
    good = True
    async with LinkedCluster(folder) as cluster, muster.Cluster(cluster.servers) as client:
        await client.ensure_topic(TOPIC, 2 * MEMBERS)
        async with Fleet(cluster.servers) as fleet:
            bench = Bench(cluster, client, fleet)
            await until(
                lambda: all(len(times) > 20 for times in fleet.commits.values()), "all commit", WITHIN_SECONDS
            )
            for name in names:
                await bench.settled()
                fleet.rebalances = 0
                gaps_ms = []
                for number in range(runs):
                    gaps_ms.append(await FIGURES[name].measure(bench))
                    print(f"  {name} {number + 1}/{runs}: {gaps_ms[-1]:.0f} ms", file=sys.stderr, flush=True)
                good &= show(FIGURES[name], gaps_ms, fleet.rebalances, peers.get(name))
    return good


def main() -> int:
    """Measures Kafka first, then Muster, so that neither disturbs the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="of each figure; Kafka has a tenth of them")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="FIGURE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the logs of the processes there")
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    beside = not arguments.no_kafka and shutil.which("java") is not None and shutil.which("mvn") is not None
    if not beside:
        print("Kafka is left out:", "as asked" if arguments.no_kafka else "java and mvn are needed for it")
    peers: dict[str, float] = {}
    if beside:
        try:
            for name in arguments.only:
                if number := FIGURES[name].kafka:
                    gaps_ms = [kafka(number) for _ in range(max(1, arguments.runs // 10))]
                    peers[name] = statistics.median(gaps_ms)
        finally:
            subprocess.run([HERE / "peers/kafka/down"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        good = asyncio.run(measure(arguments.only, arguments.runs, peers, arguments.keep or Path(folder)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
