"""What one member that joins, and a process that is killed, cost the other members of a group."""

import asyncio
import statistics
from dataclasses import dataclass, field

from muster_server.dev.cluster import DevCluster

from rebalancing.balance import fewest_moves
from rebalancing.fleet import Fleet, Said

QUIET_S = 1.5
"""Between two joins: the group is stable, and no pause between assignments is left."""
WINDOW_S = 1.0
"""In which commits are compared, from a join on and without one."""


@dataclass
class Joins:
    """What joins to a stable group took.

    Attributes:
        until_share_ms: until the member that joined ran all of its share.
        pauses_ms: how long each partition that moved did not run.
        moved: partitions that changed owner, of each join.
        fewest: how many had to, of each join.
        stopped: callbacks about partitions that did not move.
        commits_ms: median and 99th percentile of the commits of partitions that did not move, of each join.
        control_ms: those of control runs without a join, interleaved.
    """

    until_share_ms: list[float] = field(default_factory=list)
    pauses_ms: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    fewest: list[int] = field(default_factory=list)
    stopped: int = 0
    commits_ms: list[tuple[float, float]] = field(default_factory=list)
    control_ms: list[tuple[float, float]] = field(default_factory=list)


async def joins(cluster: DevCluster, members: int, partitions: int, tries: int, committing: int) -> Joins:
    """Joins to a stable group, and after each one a control run.

    Args:
        cluster: the cluster.
        members: of the group, before.
        partitions: of its topic.
        tries: how often.
        committing: members that commit meanwhile, 20 times a second each.
    """
    fleet = Fleet(cluster.servers, f"join-{members}", partitions)
    found = Joins()
    try:
        await fleet.start(members)
        processes = fleet.processes[:-1]
        for process in processes:
            process.tell(f"commit {max(1, committing // len(processes))}")
        for _ in range(tries):
            await asyncio.sleep(QUIET_S)
            await _join(fleet, members, found)
            await asyncio.sleep(QUIET_S)
            await fleet.commits()
            await asyncio.sleep(WINDOW_S)
            found.control_ms.append(_times(await fleet.commits(), frozenset()))
    finally:
        await fleet.stop()
    return found


async def _join(fleet: Fleet, members: int, found: Joins) -> None:
    before = {partition: member for member, own in fleet.owned.items() for partition in own}
    shares = {member: len(own) for member, own in fleet.owned.items() if own}
    share = fleet.partitions // (members + 1)
    await fleet.commits()
    fleet.said.clear()
    began_ns = await fleet.command(fleet.joiner, "add 1", "adding")
    await fleet.balanced(members + 1)
    said, after = sorted(fleet.said), dict(fleet.owned)
    await asyncio.sleep(WINDOW_S)
    said = sorted(fleet.said)
    joined = f"{len(fleet.processes) - 1}-"
    mine = [one for one in said if one.member.startswith(joined) and one.partitions]
    assert sum(len(one.partitions) for one in mine) >= share
    moved = {
        partition for member, own in after.items() for partition in own if before.get(partition) != member
    }
    found.until_share_ms.append((mine[-1].at_ns - began_ns) / 1e6)
    found.moved.append(len(moved))
    found.fewest.append(fewest_moves(shares, members + 1))
    found.pauses_ms += pauses_ms(said, moved)
    found.stopped += sum(partition not in moved for one in said for partition in one.partitions)
    found.commits_ms.append(_times(await fleet.commits(), moved))
    await fleet.command(fleet.joiner, "remove", "removed")
    await fleet.balanced(members)


def pauses_ms(said: list[Said], moved: set[int]) -> list[float]:
    """From the end of a partition's work at one member to its beginning at the next one, ms."""
    stopped: dict[int, int] = {}
    pauses = []
    for at_ns, event, _, partitions in said:
        for partition in moved.intersection(partitions):
            if event == "assigned" and partition in stopped:
                pauses.append((at_ns - stopped.pop(partition)) / 1e6)
            elif event != "assigned":
                stopped[partition] = at_ns
    return pauses


def _times(commits: list[tuple[int, int, int]], moved: frozenset[int] | set[int]) -> tuple[float, float]:
    """Median and 99th percentile of the times of commits, ms."""
    took_ms = sorted(took_ns / 1e6 for partition, _, took_ns in commits if partition not in moved)
    if not took_ms:
        return 0.0, 0.0
    return statistics.median(took_ms), took_ms[min(len(took_ms) - 1, len(took_ms) * 99 // 100)]


def slower(found: list[float], control: list[float]) -> tuple[float, float]:
    """How often a run with a join was slower than one without, of all pairs; and what chance alone reaches.

    The share of pairs is that of Mann and Whitney's rank test: 0.5 where a join makes no difference. Chance
    stays below the second number in 99 of 100 cases.
    """
    pairs = [(one > other) + (one == other) / 2 for one in found for other in control]
    sigma = ((len(found) + len(control) + 1) / (12 * len(found) * len(control))) ** 0.5
    return statistics.mean(pairs), 0.5 + 2.33 * sigma


async def lost_process(cluster: DevCluster, tries: int) -> list[float]:
    """Times from SIGKILL of a process with 10 of 100 members until all its partitions run elsewhere, ms."""
    times = []
    for number in range(tries):
        fleet = Fleet(cluster.servers, f"kill-{number}", 200)
        try:
            await fleet.start(100, to_a_process=10)
            await asyncio.sleep(QUIET_S)
            fleet.said.clear()
            killed_ns = await fleet.kill(fleet.processes[0])
            await fleet.balanced(90)
            times.append((max(one.at_ns for one in fleet.said) - killed_ns) / 1e6)
        finally:
            await fleet.stop()
    return times
