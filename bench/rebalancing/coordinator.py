"""What joins cost a coordinator: its CPU, its loop, the targets that it computes, and whom it tells."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import muster
from muster_core.sharding import shard_of
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.cluster import DevCluster
from redis.asyncio import Redis

from rebalancing.raw import RawGroup

STREAMS = 20
SHARDS = 50
QUIET_S = 2.0
WINDOW_S = 1.0
_CPU_CLOCK_OF_PROCESS = 2  # what clock_getcpuclockid makes of a pid
_PAGE = 1_000
HOLDS = Path(__file__).parent / "holds"


@dataclass
class RawJoins:
    """What a join to a group of raw members on streams took.

    Attributes:
        cpu_ms: of the coordinator and its assignor's process in a second with a join, each time, less that of
            the second before it.
        holds_ms: the longest hold of the loop after each join, CPU time.
        holders: what held it.
        told: members that were told something, of each join.
        told_in_vain: members that were told something and whose list had not changed.
    """

    cpu_ms: list[float] = field(default_factory=list)
    holds_ms: list[float] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    told_in_vain: int = 0


def cpu_ms(pids: Iterable[int]) -> float:
    """CPU time of processes so far, that of threads that have ended included (Linux)."""
    return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS) for pid in pids) * 1e3


def with_children(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


async def targets(cluster: DevCluster, group: str) -> int:
    """How many targets the log has of a group."""
    assert cluster.nodes is not None
    key = log_keys(shard_of(group, SHARDS), SHARDS).log
    counts = []
    for node in cluster.nodes:
        client: Any = Redis(port=node.port)
        first, count = "-", 0
        while page := await client.xrange(key, first, "+", count=_PAGE):
            for _, entry in page:
                record = records_pb2.Record.FromString(entry[b"r"])
                kind: str | None = record.WhichOneof("kind")
                count += kind == "target_assigned" and record.target_assigned.group_id == group
            first = f"({page[-1][0].decode()}"
        await client.aclose()
        counts.append(count)
    return max(counts)


@dataclass
class FromNothing:
    """A group of raw members that all joined at once.

    Attributes:
        took_ms: until all ran their share, each time.
        targets: how many were computed, each time.
        cpu_ms: of the coordinator and its assignor's process, each time.
    """

    took_ms: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


def _pid(cluster: DevCluster) -> int:
    (coordinator,) = cluster.coordinators
    pid = coordinator.process.pid
    assert pid is not None
    return pid


async def from_nothing(cluster: DevCluster, members: int, tries: int) -> FromNothing:
    """All members of a group join at once, by 20 streams."""
    found = FromNothing()
    for number in range(tries):
        group = f"nothing-{number}"
        async with muster.Cluster(cluster.servers) as client:
            await client.ensure_topic(group, 2 * members)
        async with RawGroup(cluster.coordinators[0].address, group, 2 * members, STREAMS) as raw:
            before_ms = cpu_ms(with_children(_pid(cluster)))
            began_ns = time.monotonic_ns()
            raw.add(members)
            found.took_ms.append((await raw.balanced() - began_ns) / 1e6)
            found.cpu_ms.append(cpu_ms(with_children(_pid(cluster))) - before_ms)
            found.targets.append(await targets(cluster, group))
        await asyncio.sleep(QUIET_S)
    return found


async def raw_joins(cluster: DevCluster, members: int, tries: int, holds: Path | None = None) -> RawJoins:
    """One member after the other joins a stable group by a stream, and leaves.

    Args:
        cluster: the cluster.
        members: of the group, before.
        tries: how often.
        holds: where the coordinator writes what holds its loop; None: it does not.
    """
    found = RawJoins()
    group = "raw" if holds is None else "held"
    async with muster.Cluster(cluster.servers) as client:
        await client.ensure_topic(group, 2 * members)
    pid = _pid(cluster)
    async with RawGroup(cluster.coordinators[0].address, group, 2 * members, STREAMS) as raw:
        raw.add(members)
        await raw.balanced()
        for _ in range(tries):
            await asyncio.sleep(QUIET_S)
            idle_ms = await _cpu_of_window(pid)
            raw.news.clear()
            lists = {name: set(member.owned) for name, member in raw.members.items()}
            began_ns = time.monotonic_ns()
            raw.add(1)
            found.cpu_ms.append(await _cpu_of_window(pid) - idle_ms)
            await raw.balanced()
            changed = {name for name, own in lists.items() if own != set(raw.members[name].owned)}
            newest = next(reversed(raw.members))
            found.told.append(len(raw.news))
            found.told_in_vain += len(raw.news.keys() - changed - {newest})
            if holds is not None:
                took_ns, what = _longest(holds, pid, began_ns)
                found.holds_ms.append(took_ns / 1e6)
                found.holders.append(what)
            raw.remove_newest()
            await raw.balanced()
    return found


def _longest(holds: Path, pid: int, since_ns: int) -> tuple[int, str]:
    """The longest hold of a process's loop from some time on, ns, and what held it."""
    lines = Path(f"{holds}.{pid}").read_text().splitlines()
    rows = [line.split(" ", 2) for line in lines]
    return max(((int(took), what) for at, took, what in rows if int(at) >= since_ns), default=(0, ""))


async def _cpu_of_window(pid: int) -> float:
    """CPU that the coordinator and its assignor's process use in a second, ms."""
    before = {one: cpu_ms([one]) for one in with_children(pid)}
    await asyncio.sleep(WINDOW_S)
    return sum(cpu_ms([one]) - before.get(one, 0.0) for one in with_children(pid))


def most_frequent(texts: Iterable[str]) -> str:
    """The text that occurs most often."""
    return next(itertools.chain((text for text, _ in Counter(texts).most_common(1)), [""]))
