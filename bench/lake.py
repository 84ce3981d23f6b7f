#!/usr/bin/env python3
"""What a lake costs: entries per second from an export to its tables, in steps, and a day more.

Draws the log of one shard, nine days of it, in which groups commit a hundred times for each rebalance, and
exports it, without a server, as several shards. Builds a lake of them through Spark with one core and with
two, then adds the tenth day and builds that. Each time it says how many entries a second were decoded, and
the highest memory of one Python worker: the first is to stay as it is while the log grows, and so is the
second; the tenth day is to cost a ninth of the nine before, besides what Spark takes to run a job at all.

With `--history` the lake is built day by day instead, a run for each day of that many: the last day is to
cost what the second one cost (the first starts Spark's workers).

    ./x bench lake [--entries 1000000] [--entries 3000000 …] [--cores 1] [--cores 2] [--history 30]
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kit.logs.drawn_logs import DrawnLog, Pace
from kit.usage import Usage
from muster_audit.lake.build import build
from muster_audit.reading.exported import ShardExport, mark
from muster_audit.spark.session import spark_session
from muster_core.log.page import Page
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2

SHARDS = 8
DAYS = 10
PAGE = 400
GENESIS = records_pb2.Genesis(cluster_id="bench", shard_count=SHARDS)


def pages(entries: int, days: int) -> Iterator[Page]:
    """The log of a shard, so long that it takes some days, with nonces and hashes that nothing looks at."""
    pace = Pace(step_ms=2 * days * 86_400_000 // entries, commits=100, groups=40, partitions=16)
    log = DrawnLog(1, pace).records()
    yield Page(Position(0, 1), [records_pb2.Record(genesis=GENESIS).SerializeToString()], [b"n"], [b"h"])
    while rows := list(islice(log, PAGE)):
        places = [place for place, _ in rows]
        filler = [place.stream_id.encode().rjust(16) for place in places]
        yield Page(places[0], [record.SerializeToString() for _, record in rows], filler, filler, places)


def export(folder: Path, drawn: Iterator[Page], entries: int) -> None:
    """Adds entries to the export of the first shard, and gives the others the same files."""
    mark(folder, GENESIS)
    first = ShardExport.open(folder, 0)
    first.write(islice(drawn, entries // PAGE))
    for shard in range(1, SHARDS):
        place = ShardExport(folder, shard).place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first.place, place, copy_function=os.link)


def measure(name: str, cores: int, folder: Path, source: Path, lake: Path) -> float:
    """Builds, and says what it cost; gives the seconds."""
    log = folder / "spark.log"
    with spark_session("bench", master=f"local[{cores}]", folder=folder / "spark", log=log) as spark:
        spark.sparkContext.parallelize(range(cores), cores).map(str).collect()  # starts the workers
        began = time.perf_counter()
        with Usage() as usage:
            built = build(spark, str(source), lake)
            took = time.perf_counter() - began
    entries = sum(one.entries for one in built)
    rows = sum(count for one in built for count in one.rows.values())
    split = ", ".join(f"{who} {seconds:.1f}" for who, seconds in sorted(usage.seconds.items()))
    print(
        f"  {name:10} {cores} cores {entries:11,} entries {rows:11,} rows {took:7.2f} s "
        f"{entries / took:9,.0f} entries/s; largest worker {usage.memory_mb['workers']:,.0f} MiB; "
        f"processors, s: {split}",
        flush=True,
    )
    return took


def in_steps(entries: int, cores: list[int]) -> None:
    """Nine days at once, and then the tenth."""
    print(f"{entries:,} entries of {SHARDS} shards and {DAYS - 1} days, and a day more", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        each = entries // SHARDS
        drawn, source = pages(each * DAYS // (DAYS - 1), DAYS), folder / "export"
        export(source, drawn, each)
        for count in cores:
            measure("nine days", count, folder, source, folder / f"lake-{count}")
        export(source, drawn, each // (DAYS - 1))
        for count in cores:
            measure("the tenth", count, folder, source, folder / f"lake-{count}")


def day_by_day(entries: int, cores: list[int], days: int) -> None:
    """A run for each day of a history; all days have the same number of entries."""
    print(f"{entries:,} entries of {SHARDS} shards and {days} days, a run for each day", flush=True)
    for count in cores:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            each = entries // SHARDS
            drawn, source = pages(each, days), folder / "export"
            for day in range(1, days + 1):
                export(source, drawn, each // days)
                measure(f"day {day}", count, folder, source, folder / "lake")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, action="append", help="of all days; again: another step")
    parser.add_argument("--cores", type=int, action="append")
    parser.add_argument(
        "--history", type=int, default=0, metavar="DAYS", help="build so many days one by one"
    )
    arguments = parser.parse_args()
    for entries in arguments.entries or [1_000_000, 3_000_000]:
        cores = arguments.cores or [1, 2]
        if arguments.history:
            day_by_day(entries, cores, arguments.history)
        else:
            in_steps(entries, cores)


if __name__ == "__main__":
    main()
