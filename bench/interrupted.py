#!/usr/bin/env python3
"""What a worker that joins costs the others: partitions that move, and work that stops.

    ./x bench interrupted [--sizes 12:6 120:30 1000:100]

One worker joins a fleet, so that it has as many as its size says. For each assignor: how many partitions
moved, how many stopped, on how many of the workers that were there, and for how long work stood still in all.
The fewest that must move is the newcomer's share. Given the same members and partitions Kafka's classes move
as many (`./x bench assignors`); its eager ones stop everything, its cooperative one what moves.

The members are in this process, on real servers of this machine (one Redis node).
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import muster
from muster import TopicPartition
from muster_server.dev.cluster import DevCluster

SETTINGS = {"MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "500"}
PATIENCE_S = 120


@dataclass
class Fleet:
    """Members of one group, and what they were told.

    Attributes:
        owners: partition → number of the member that works on it.
        stopped: how often work stopped, by partition.
        hit: members that stopped something.
        idle_ns: for how long partitions had no worker, added up.
        changed: set when members were given something.
    """

    connection: muster.Cluster
    group: str
    partitions: int
    assignor: str
    members: list[muster.Member] = field(default_factory=list)
    owners: dict[TopicPartition, int] = field(default_factory=dict)
    stopped: Counter[TopicPartition] = field(default_factory=Counter)
    hit: set[int] = field(default_factory=set)
    idle_ns: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _since: dict[TopicPartition, int] = field(default_factory=dict)

    async def add(self, count: int) -> None:
        """Starts members, and waits until all share the work and nothing moves any more."""
        for number in range(len(self.members), len(self.members) + count):
            self.members.append(self._member(number))
        await asyncio.gather(*(member.start() for member in self.members[-count:]))
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_shared():
                self.changed.clear()
                await self.changed.wait()

    def _member(self, number: int) -> muster.Member:
        def assigned(partitions: tuple[TopicPartition, ...]) -> None:
            now_ns = time.monotonic_ns()
            for partition in partitions:
                self.idle_ns += now_ns - self._since.pop(partition, now_ns)
                self.owners[partition] = number
            self.changed.set()

        def stopped(partitions: tuple[TopicPartition, ...]) -> None:
            now_ns = time.monotonic_ns()
            for partition in partitions:
                del self.owners[partition]
                self.stopped[partition] += 1
                self._since[partition] = now_ns
            if partitions:
                self.hit.add(number)

        return muster.Member(
            self.connection,
            group_id=self.group,
            topics=self.group,
            client_id=f"worker-{number:03}",
            on_partitions_assigned=assigned,
            on_partitions_revoked=stopped,
            on_partitions_lost=stopped,
            assignors=[self.assignor],
        )

    def _is_shared(self) -> bool:
        shares = Counter(self.owners.values())
        even = {self.partitions // len(self.members), -(-self.partitions // len(self.members))}
        return (
            len(self.owners) == self.partitions
            and len({member.generation for member in self.members}) == 1
            and {shares[number] for number in range(len(self.members))} <= even
        )

    async def close(self) -> None:
        await asyncio.gather(*(member.close("bench") for member in self.members))


async def measure(servers: str, assignor: str, partitions: int, workers: int) -> str:
    """A row of the table."""
    group = f"{assignor}-{partitions}-{workers}"
    async with muster.Cluster(servers) as connection:
        await connection.ensure_topic(group, partitions)
        fleet = Fleet(connection, group, partitions, assignor)
        try:
            await fleet.add(workers - 1)
            before = dict(fleet.owners)
            fleet.stopped.clear()
            fleet.hit.clear()
            fleet.idle_ns = 0
            began_ns = time.monotonic_ns()
            await fleet.add(1)
            took_ms = (time.monotonic_ns() - began_ns) / 1e6
            moved = sum(fleet.owners[partition] != owner for partition, owner in before.items())
            stopped, hit, idle_s = len(fleet.stopped), len(fleet.hit), fleet.idle_ns / 1e9
        finally:
            await fleet.close()
    size = f"{partitions:,} | {workers} | {partitions // workers}"
    return f"| {size} | `{assignor}` | {moved} | {stopped:,} | {hit} | {idle_s:,.2f} s | {took_ms:,.0f} ms |"


async def run(sizes: list[tuple[int, int]]) -> None:
    """Prints the table."""
    print(
        "| partitions | workers after the join | fewest that must move | assignor | moved | stopped |", end=""
    )
    print(" workers that stopped something | work stood still, in all | until all was shared |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        async with DevCluster(Path(folder), redis_nodes=1, coordinators=1, settings=SETTINGS) as cluster:
            for partitions, workers in sizes:
                for assignor in ("range", "cooperative-sticky"):
                    print(await measure(cluster.servers, assignor, partitions, workers), flush=True)


def main() -> None:
    """Reads the sizes and measures them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", nargs="+", default=["12:6", "120:30", "1000:100"], metavar="PARTITIONS:WORKERS"
    )
    sizes = [tuple(map(int, size.split(":"))) for size in parser.parse_args().sizes]
    asyncio.run(run([(partitions, workers) for partitions, workers in sizes]))


if __name__ == "__main__":
    main()
