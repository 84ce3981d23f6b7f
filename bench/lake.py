#!/usr/bin/env python3
"""What a lake costs: entries per second from an export to its tables, in steps, and a day more.

Draws the log of one shard, nine days of it, in which groups commit a hundred times for each rebalance, and
exports it, without a server, as several shards. Builds a lake of them through Spark with one core and with
two, then adds the tenth day and builds that. Each time it says how many entries a second were decoded, and
the highest memory of one Python worker: the first is to stay as it is while the log grows, and so is the
second; the tenth day is to cost a ninth of the nine before, besides what Spark takes to run a job at all.

    ./x bench lake [--entries 1000000] [--entries 3000000 …] [--cores 1] [--cores 2]
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


def pages(entries: int) -> Iterator[Page]:
    """The log of a shard, so long that it takes ten days, with nonces and hashes that nothing looks at."""
    pace = Pace(step_ms=2 * DAYS * 86_400_000 // entries, commits=100, groups=40, partitions=16)
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
        f"  {name:22} {cores} cores {entries:11,} entries {rows:11,} rows {took:7.2f} s "
        f"{entries / took:9,.0f} entries/s; largest worker {usage.worker_mb:,.0f} MiB; "
        f"processors, s: {split}",
        flush=True,
    )
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, action="append", help="of nine days; again: another step")
    parser.add_argument("--cores", type=int, action="append")
    arguments = parser.parse_args()
    for entries in arguments.entries or [1_000_000, 3_000_000]:
        print(f"{entries:,} entries of {SHARDS} shards and {DAYS - 1} days, and a day more", flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            each = entries // SHARDS
            drawn, source = pages(each * DAYS // (DAYS - 1)), folder / "export"
            export(source, drawn, each)
            cores = arguments.cores or [1, 2]
            for count in cores:
                measure("nine days", count, folder, source, folder / f"lake-{count}")
            export(source, drawn, each // (DAYS - 1))
            for count in cores:
                measure("the tenth", count, folder, source, folder / f"lake-{count}")


if __name__ == "__main__":
    main()
