#!/usr/bin/env python3
"""What members, partitions and commits take: memory of a coordinator, memory and disk of a node of the log.

A cluster of real processes with one embedded node; groups of ten members, each with nine of other groups on
one session stream. Read from /proc (Linux) and from the node itself; each figure is a difference, so what
processes take by themselves is not in it. Nothing is timed: the figures hold on a busy machine too.

    ./x bench size [--groups 100] [--partitions 40] [--commits 100]
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import muster
import redis
from kit.waiting import until
from muster_metadata.nodes.keys import log_keys
from muster_server.dev.cluster import DevCluster

MEMBERS, SHARDS = 10, 10
SETTINGS = {
    "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "500",
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "0",
    "MUSTER_SHARD_LOG_RETENTION_MS": "0",
}
PATIENCE_S = 300.0


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("size: /proc does not tell the memory of a process")


class Log:
    """What the logs of the shards take on their node."""

    def __init__(self, port: int, folder: Path) -> None:
        self._redis = redis.Redis(port=port)
        self._files = folder / "appendonlydir"

    def read(self) -> tuple[int, int, int]:
        """Entries, their memory in bytes, size of the append-only file in bytes."""
        keys = [log_keys(shard, SHARDS).log for shard in range(SHARDS)]
        entries = sum(int(self._redis.xlen(key)) for key in keys)
        memory_bytes = sum(int(self._redis.memory_usage(key, samples=0) or 0) for key in keys)
        disk_bytes = sum(path.stat().st_size for path in self._files.iterdir())
        return entries, memory_bytes, disk_bytes


def show(what: str, count: int, *sizes: tuple[str, float]) -> None:
    """One line: a size for each of a number of things."""
    print(f"{what:<44}" + "  ".join(f"{name} {size / count:>9,.0f} B" for name, size in sizes), flush=True)


def patient(cluster: muster.Cluster, group: str) -> muster.Member:
    """A member that a slow machine does not put out of its group."""
    return muster.Member(
        cluster,
        group_id=group,
        topics="size",
        protocol="classic",
        session_timeout_ms=600_000,
        disconnect_grace_ms=300_000,
    )


async def join(
    servers: str, groups: Sequence[str], partitions: int
) -> list[tuple[muster.Cluster, muster.Member]]:
    """Ten members for each group, each on a stream that it shares with nine of other groups."""
    clusters = [muster.Cluster(servers) for _ in range(len(groups))]
    members = [
        (cluster, patient(cluster, group))
        for number, group in enumerate(groups)
        for cluster in (clusters[(number + shift) % len(clusters)] for shift in range(MEMBERS))
    ]
    await asyncio.gather(*(member.start() for _, member in members))
    each = {partitions // MEMBERS}
    await until(lambda: {len(member.partitions) for _, member in members} == each, "all share", PATIENCE_S)
    return members


async def measure(folder: Path, groups: int, partitions: int, commits: int) -> None:
    """Fills a cluster step by step and prints what each step took."""
    async with DevCluster(folder, coordinators=1, shard_count=SHARDS, settings=SETTINGS) as cluster:
        assert cluster.nodes is not None
        pid, log = cluster.coordinators[0].process.pid, Log(cluster.nodes[0].port, cluster.nodes[0].folder)
        async with muster.Cluster(cluster.servers) as client:
            await client.create_topic("size", partitions)
        warm = await join(cluster.servers, ["warm"], partitions)
        before_bytes, logged = resident_bytes(pid), log.read()
        members = await join(cluster.servers, [f"size-{number}" for number in range(groups)], partitions)
        joined_bytes, joined = resident_bytes(pid), log.read()
        count = len(members)
        show("coordinator: a member, with its stream", count, ("memory", joined_bytes - before_bytes))
        show(
            "log: a member in a rebalance of its group",
            count,
            ("memory", joined[1] - logged[1]),
            ("disk", joined[2] - logged[2]),
        )
        for offset in range(commits):
            await asyncio.gather(
                *(member.commit(dict.fromkeys(member.partitions, offset)) for _, member in members)
            )
        committed_bytes, committed = resident_bytes(pid), log.read()
        show(
            "coordinator: an offset, and its commits",
            groups * partitions,
            ("memory", committed_bytes - joined_bytes),
        )
        records = committed[0] - joined[0]
        show(
            f"log: a commit of {partitions // MEMBERS} partitions",
            records,
            ("memory", committed[1] - joined[1]),
            ("disk", committed[2] - joined[2]),
        )
        print(f"{count} members in {groups} groups, {groups * partitions} offsets, {records} commits")
        for owner, member in (*members, *warm):
            await member.close("measured")
            await owner.close()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="What members, partitions and commits take.")
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=40, help="of each group; a multiple of 10")
    parser.add_argument("--commits", type=int, default=100, help="of each member")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), asked.groups, asked.partitions, asked.commits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
