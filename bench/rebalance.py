#!/usr/bin/env python3
"""What a worker that joins or dies costs the others of an incremental group, beside a real Kafka.

    ./x bench rebalance [--long] [--sizes 10 100 1000] [--only join kill nothing coordinator uniform]
                        [--no-kafka] [--json FILE] [--check]

* join: one member joins a stable group of n (200 partitions, twice as many as members from 200 members on),
  until it runs its whole share; the pause of the partitions that move; how many do, beside the fewest that
  must; and whether anybody else noticed: callbacks about partitions that stay, and the times of their
  commits beside control runs without a join, interleaved (rank test);
* kill: SIGKILL of a process with 10 of 100 members, until all its partitions run elsewhere;
* nothing: 1,000 raw members on 20 streams join at once, until all run their share, and how many targets
  that took;
* coordinator: its CPU, with that of its assignor's process, for one join to 1,000 raw members on 20
  streams; the longest hold of its loop (CPU time of one callback, on the standard library's loop, which can
  be timed); and whether anybody was told something whose list did not change;
* uniform: the assignor alone, 1,000 members and 50,000 partitions, one joins: CPU of the process that
  computes it.

Members are library members on sessions, at most 100 to a process, unless said. The cluster is three
embedded Redis nodes, one metadata, one discovery and one coordinator, processes of this machine. Kafka
(three brokers, each of its three ways to rebalance) is measured first when Java 17 and Maven are found, so
that neither disturbs the other. With `--check` the exit code is 1 when a bar is missed.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from muster._config import DISCONNECT_GRACE_MS
from muster_server.dev.cluster import DevCluster
from rebalancing.bars import Row, show
from rebalancing.coordinator import HOLDS, from_nothing, most_frequent, raw_joins
from rebalancing.joins import joins, lost_process, slower
from rebalancing.peer import Figures, can_run, kafka
from rebalancing.uniform import uniform

KINDS = ("join", "kill", "nothing", "coordinator", "uniform")
SMALL, LARGE = (3, 3), (30, 5)
"""Joins to groups of less than 1,000 and tries of all else, in the short and the long form."""
JOIN_BARS_MS = {10: 20.0, 100: 50.0, 1_000: 200.0}
MEMBERS = 1_000
COMMITTING = 20
WINDOWS = 3
"""So many times as many joins tell their CPU: what heartbeats take in a second varies by as much."""


def partitions_of(members: int) -> int:
    """Of a group of so many members."""
    return max(200, 2 * members)


async def join_rows(cluster: DevCluster, sizes: Sequence[int], tries: int, peers: Figures) -> list[Row]:
    """What joins to groups of these sizes cost."""
    rows = []
    for size in sizes:
        found = await joins(cluster, size, partitions_of(size), tries, COMMITTING)
        name, median = f"join to {size:,}", statistics.median
        rows.append(
            Row(
                f"{name}: until its share runs",
                median(found.until_share_ms),
                JOIN_BARS_MS.get(size),
                peers=peers.get(f"join {size}", {}),
                note=f"least {min(found.until_share_ms):.0f}, most {max(found.until_share_ms):.0f}",
            )
        )
        rows.append(
            Row(
                f"{name}: pause of a partition that moves",
                median(found.pauses_ms),
                10.0,
                peers=peers.get(f"pause {size}", {}),
                note=f"least {min(found.pauses_ms):.1f}, most {max(found.pauses_ms):.1f}",
            )
        )
        more = sum(found.moved) - sum(found.fewest)
        note = f"{statistics.mean(found.moved):.3g} move in each join"
        rows.append(
            Row(f"{name}: moves above the minimum", more, 0.0, "in all", peers.get(f"moved {size}", {}), note)
        )
        stopped = peers.get(f"stopped {size}", {})
        rows.append(Row(f"{name}: callbacks about what stays", found.stopped, 0.0, "in all", stopped))
        for place, what in enumerate(("median", "p99")):
            with_join = [times[place] for times in found.commits_ms]
            without = [times[place] for times in found.control_ms]
            share, chance = slower(with_join, without)
            note = f"{median(with_join):.2f} ms, {median(without):.2f} without a join, {len(without)} of each"
            rows.append(
                Row(f"{name}: {what} of commits, slower than control", share, chance, "of pairs", note=note)
            )
    return rows


async def coordinator_rows(cluster: DevCluster, folder: Path, tries: int) -> list[Row]:
    """What a join costs a coordinator."""
    found = await raw_joins(cluster, MEMBERS, WINDOWS * tries)
    holds = folder / "holds"
    settings = {"PYTHONPATH": str(HOLDS), "BENCH_HOLDS": str(holds)}
    async with DevCluster(folder / "timed", redis_nodes=1, coordinators=1, settings=settings) as timed:
        held = await raw_joins(timed, MEMBERS, tries, holds)
    name = f"join to {MEMBERS:,} on 20 streams"
    return [
        Row(
            f"{name}: CPU of the coordinator",
            statistics.median(found.cpu_ms),
            10.0,
            note=f"least {min(found.cpu_ms):.1f}",
        ),
        Row(
            f"{name}: longest hold of its loop",
            statistics.median(held.holds_ms),
            5.0,
            note=f"least {min(held.holds_ms):.1f}, mostly `{most_frequent(held.holders)[:60]}`",
        ),
        Row(
            f"{name}: members told whose list stays",
            found.told_in_vain + held.told_in_vain,
            0.0,
            "in all",
            note=f"{statistics.mean(found.told):.3g} members told in each join",
        ),
    ]


async def nothing_rows(cluster: DevCluster, tries: int, peers: Figures) -> list[Row]:
    """What a group of 1,000 that begins takes."""
    found = await from_nothing(cluster, MEMBERS, tries)
    name = f"{MEMBERS:,} from nothing on 20 streams"
    note = (
        f"least {min(found.took_ms):.0f}; {statistics.median(found.cpu_ms):.0f} ms of the coordinator's CPU"
    )
    return [
        Row(
            f"{name}: until all run their share",
            statistics.median(found.took_ms),
            1_500.0,
            peers=peers.get("nothing", {}),
            note=note,
        ),
        Row(f"{name}: targets", max(found.targets), 8.0, "targets"),
    ]


def uniform_rows(tries: int) -> list[Row]:
    """What the assignor takes."""
    found = [uniform(MEMBERS, 50_000) for _ in range(tries)]
    least = min(found, key=lambda one: one.aside_ms)
    name = f"uniform, {MEMBERS:,} members, 50,000 partitions, one joins"
    note = f"least CPU of {tries}; {least.assignor_ms:.0f} of it the assignor"
    loop = f"in turns of {least.turn_ms:.1f} ms at most"
    return [
        Row(f"{name}: off the loop", least.aside_ms, 150.0, note=note),
        Row(f"{name}: on the loop, to ask and to hear", least.loop_ms, None, note=loop),
        Row(f"{name}: moves above the minimum", least.moved - least.fewest, 0.0, "in all"),
    ]


async def measure(arguments: argparse.Namespace, peers: Figures) -> list[Row]:
    """All figures that are asked for."""
    rows: list[Row] = []
    few, tries = LARGE if arguments.long else SMALL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with DevCluster(folder / "cluster", redis_nodes=3, coordinators=1) as cluster:
            if "join" in arguments.only:
                rows += await join_rows(
                    cluster, [size for size in arguments.sizes if size < MEMBERS], few, peers
                )
                large = [size for size in arguments.sizes if size >= MEMBERS]
                rows += await join_rows(cluster, large, few if arguments.long else tries, peers)
            if "kill" in arguments.only:
                times = await lost_process(cluster, tries)
                row = Row(
                    "process with 10 of 100 killed: until its partitions run",
                    statistics.median(times),
                    DISCONNECT_GRACE_MS + 50.0,
                    peers=peers.get("lose", {}),
                    note=f"the grace is {DISCONNECT_GRACE_MS:,}; least {min(times):.0f}",
                )
                rows.append(row)
            if "nothing" in arguments.only:
                rows += await nothing_rows(cluster, tries, peers)
            if "coordinator" in arguments.only:
                rows += await coordinator_rows(cluster, folder, max(5, tries))
    if "uniform" in arguments.only:
        rows += uniform_rows(max(5, tries))
    return rows


def main() -> int:
    """Measures Kafka first, then Muster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="30 joins and 30 control runs of each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(JOIN_BARS_MS), metavar="MEMBERS")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, too")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    peers: Figures = {}
    kafka_sizes = [size for size in arguments.sizes if size < MEMBERS] if "join" in arguments.only else []
    with_kill, with_nothing = "kill" in arguments.only, "nothing" in arguments.only
    if not (kafka_sizes or with_kill or with_nothing):
        print("Kafka is left out: it has none of these figures")
    elif arguments.no_kafka or not can_run():
        print("Kafka is left out:", "as asked" if arguments.no_kafka else "java and mvn are needed for it")
    else:
        peers = kafka(
            kafka_sizes,
            5 if arguments.long else 3,
            with_kill=with_kill,
            from_nothing=MEMBERS if with_nothing else 0,
        )
    rows = asyncio.run(measure(arguments, peers))
    show(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    return 1 if arguments.check and any(row.is_met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
