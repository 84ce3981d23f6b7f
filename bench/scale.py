#!/usr/bin/env python3
"""How the audit and the lake grow: processors and memory for logs that become longer, step by step.

Writes an export of eight logs, without a server: right ones, with hashes, nonces and groups that commit, a
million entries a day. For each step it audits all of it (`check`), builds a lake of it, looks into the last
days of that lake (`insights`), and then adds a day and builds and looks again. Says for each the processor
seconds, for all entries and for each one, the wall time, and the highest memory of one process of each kind
(a Python worker, the JVM, this one). The figure for an entry, and the memory, are to stay as they are from
step to step; a day more is to cost the day.

    ./x bench scale [--entries 1000000] [--entries 3000000 …] [--cores 2] [--no-insights] [--folder FOLDER]

A hundred million entries take about 15 GB of disk.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from kit.usage import Usage
from muster_audit.check import CheckOptions, check
from muster_audit.lake.build import build
from muster_audit.lake.insights import look_into
from muster_audit.reading.exported import ShardExport, mark
from muster_audit.spark.session import spark_session
from muster_core.log.chain import BEFORE_GENESIS, HEAD
from muster_core.log.page import Page
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARDS, GROUPS, PARTITIONS = 8, 20, 16
COMMITS = 100
"""Of one group, for each of its rebalances."""
DAY_ENTRIES = 1_000_000
DAYS, STALL_MS, SLO = 7, 300_000, 0.999
CLUSTER, TOPIC = "bench", "orders"
BEGAN_MS = 1_700_006_400_000
PAGE = 4_000
_TIME, _NUMBER = BEGAN_MS, 1 << 28  # sentinels as wide as what takes their places


_LOW = [bytes((low & 127 | 128, low >> 7 | 128)) for low in range(1 << 14)]


def varint(number: int) -> bytes:
    """A number from 2^28 to 2^42 as protobuf writes it."""
    return _LOW[number & 0x3FFF] + _high(number >> 14)


@lru_cache(maxsize=64)
def _high(number: int) -> bytes:
    low, high = number & 0x3FFF, number >> 14
    parts = low & 127 | 128, low >> 7 | 128
    return bytes((*parts, high) if high < 128 else (*parts, high & 127 | 128, high >> 7))


class DrawnShard:
    """The log of a shard, which grows as it is asked for.

    Args:
        shard: its number.
    """

    def __init__(self, shard: int) -> None:
        self.shard = shard
        names = (name for name in map("group-{}".format, count()) if shard_of(name, SHARDS) == shard)
        self._groups = list(islice(names, GROUPS))
        self._hash = BEFORE_GENESIS
        self._written = 0
        self._records = self._drawn()

    def pages(self, entries: int) -> Iterator[Page]:
        """So many entries more."""
        left = entries
        while left:
            size = 1 if self._written == 0 else min(PAGE, left)  # Genesis is of an epoch of its own
            records = list(islice(self._records, size))
            first = Position(0 if self._written == 0 else 1, self._written + 1)
            nonces = [
                self.shard.to_bytes(4, "big") + number.to_bytes(12, "big")
                for number in range(first.offset, first.offset + size)
            ]
            hashes = list[bytes]()
            for offset, nonce, record in zip(count(first.offset), nonces, records, strict=False):
                place = HEAD.pack(first.epoch, offset)
                self._hash = sha256(self._hash + place + nonce + record).digest()  # as chain_hash does
                hashes.append(self._hash)
            self._written += size
            left -= size
            yield Page(first, records, nonces, hashes)

    def _at_ms(self, number: int) -> int:
        return BEGAN_MS + number * SHARDS * 86_400_000 // DAY_ENTRIES

    def _drawn(self) -> Iterator[bytes]:
        genesis = records_pb2.Genesis(cluster_id=CLUSTER, shard_count=SHARDS, shard=self.shard)
        yield self._record(1, records_pb2.Record(genesis=genesis, critical=True))
        claim = records_pb2.Claim(
            node_id="bench", session="bench", previous=common_pb2.Position(epoch=0, offset=1)
        )
        yield self._record(2, records_pb2.Record(claim=claim))
        number, generation = 3, 0
        while True:
            generation += 1
            for group_id in self._groups:
                for record in self._rebalance(number, group_id, generation):
                    yield self._record(number, record)
                    number += 1
                commits = [self._commit(group_id, generation, one) for one in range(PARTITIONS)]
                for turn in range(COMMITS):
                    before, between, later, end = commits[turn % PARTITIONS]
                    word = varint(_NUMBER + number)
                    yield b"".join((before, varint(self._at_ms(number)), between, word, later, word, end))
                    number += 1

    def _record(self, number: int, record: records_pb2.Record) -> bytes:
        record.written_at_ms = self._at_ms(number)
        return record.SerializeToString()

    def _rebalance(self, number: int, group_id: str, generation: int) -> Iterator[records_pb2.Record]:
        member_id = f"{group_id}-member-0123456789abcdef"
        record = records_pb2.Record()
        started = record.generation_started
        started.group_id, started.generation = group_id, generation
        started.protocol_type, started.protocol_name, started.leader = "consumer", "range", member_id
        started.cause.kind = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
        started.cause.member_id, started.cause.at_ms = member_id, self._at_ms(number)
        subscription = common_pb2.Subscription(version=1, topics=[TOPIC]).SerializeToString()
        member = started.members.add(member_id=member_id, client_id="bench", session_timeout_ms=45_000)
        member.protocols.add(name="range", metadata=subscription)
        yield record
        record = records_pb2.Record()
        committed = record.assignment_committed
        committed.group_id, committed.generation, committed.leader = group_id, generation, member_id
        assignment = common_pb2.Assignment(version=1)
        assignment.partitions.add(topic=TOPIC, partitions=range(PARTITIONS))
        committed.members.add(member_id=member_id, assignment=assignment.SerializeToString())
        yield record

    def _commit(self, group_id: str, generation: int, partition: int) -> tuple[bytes, bytes, bytes, bytes]:
        """A commit, cut where its time, its number and its offset are."""
        record = records_pb2.Record(written_at_ms=_TIME)
        commit = record.offset_committed
        commit.group_id, commit.generation, commit.member_seq = group_id, generation, _NUMBER
        commit.member_id = f"{group_id}-member-0123456789abcdef"
        commit.offsets.add(
            topic=TOPIC, partition=partition, offset=_NUMBER, leader_epoch=-1, metadata="x" * 40
        )
        before, between = record.SerializeToString().split(varint(_TIME))
        between, later, end = between.split(varint(_NUMBER))
        return before, between, later, end


def grow(folder: Path, logs: list[DrawnShard], entries: int) -> None:
    """Adds so many entries to an export."""
    mark(folder, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=SHARDS))
    for log in logs:
        ShardExport.open(folder, log.shard).write(log.pages(entries // SHARDS))


def measure(name: str, entries: int, run: Callable[[], object]) -> None:
    """Runs something, and says what it cost."""
    began = time.perf_counter()
    with Usage() as usage:
        run()
        took = time.perf_counter() - began
    used = sum(usage.seconds.values())
    split = ", ".join(f"{who} {seconds:.1f}" for who, seconds in sorted(usage.seconds.items()))
    largest = ", ".join(f"{who} {mib:,.0f}" for who, mib in sorted(usage.memory_mb.items()))
    print(
        f"  {name:22} {entries:12,} entries {used:8.1f} s of processors, {used / entries * 1e6:6.2f} µs each "
        f"({split}); {took:.1f} s of wall time; largest, MiB: {largest}",
        flush=True,
    )


def audit(spark: "SparkSession", source: Path, tables: Path) -> None:
    """Checks all of it, which must be clean."""
    result = check(spark, str(source), CheckOptions(), tables)
    if not result.clean:
        raise SystemExit(f"the logs are broken: {result.violations[:3]}")


def step(
    spark: "SparkSession", folder: Path, logs: list[DrawnShard], entries: int, written: int, insights: bool
) -> int:
    """Measures all with so many entries, and a day more; gives how many there are then."""
    source, lake = folder / "export", folder / "lake"

    def look(of: int) -> None:
        if insights:
            measure(
                "insights, 7 days", of, lambda: look_into(spark, lake, DAYS, STALL_MS, SLO, lambda _: None)
            )

    measure("write the export", entries - written, lambda: grow(source, logs, entries - written))
    measure("check", entries, lambda: audit(spark, source, folder / "tables"))
    measure("build", entries, lambda: build(spark, str(source), lake))
    look(entries)
    grow(source, logs, DAY_ENTRIES)
    measure("build, a day more", DAY_ENTRIES, lambda: build(spark, str(source), lake))
    look(DAY_ENTRIES)
    shutil.rmtree(lake)
    return entries + DAY_ENTRIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, action="append", help="again: another step, a larger one")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--insights", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", type=Path, help="for the export and the lake; absent: a temporary one")
    arguments = parser.parse_args()
    place = nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory()
    with place as name:
        folder = Path(name)
        logs, written = [DrawnShard(shard) for shard in range(SHARDS)], 0
        master, log = f"local[{arguments.cores}]", folder / "spark.log"
        for entries in sorted(arguments.entries or [1_000_000, 3_000_000, 10_000_000]):
            print(f"{entries:,} entries of {SHARDS} logs, {arguments.cores} cores", flush=True)
            with spark_session("bench", master=master, folder=folder / "spark", log=log) as spark:
                spark.sparkContext.parallelize(range(8), 8).map(str).collect()  # starts the workers
                written = step(spark, folder, logs, entries, written, arguments.insights)


if __name__ == "__main__":
    main()
