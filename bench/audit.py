#!/usr/bin/env python3
"""What the audit costs: records per second with Spark, in plain Python, and of a read that looks at nothing.

Fills an embedded server with healthy logs (80 % commits, 20 % generations, about 300 bytes, 50 shards) and
reads them in one run: a bare read; the rules of the log with the chain of hashes; all rules with the replay
of groups. Each in one plain process and through Spark, which is measured after its start. Prints rates,
ratios and the memory of Spark's Python workers.

The bars were set on a machine that read 1,690,000 plain entries a second. The same read is timed right
before and after each run here, so that rates can be told as they would be there, whatever this machine is
and does besides.

    ./x bench audit [--records 1000000] [--records 2000000 …] [--cores 2] [--memory-mb 256] [--tries 1]
"""

import argparse
import itertools
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

import hiredis
import redis
import uvloop
from kit.usage import Usage
from muster_audit.check import CheckOptions, check
from muster_audit.promises import Rules
from muster_audit.reading.scan import ScanOptions, audit_log
from muster_audit.reading.sources import NodesSource
from muster_audit.spark.session import spark_session
from muster_coordinator.log.log_client import Nonces
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.initialise import initialise_log
from muster_server.verify.reader import PAGE_ENTRIES

SHARDS = 50
GROUPS = 40
CLUSTER = "bench"
PIPELINE = 1_000
BAR_CORES = 2
RULES = ((Rules.LOG, "log rules, chain", 400_000), (Rules.ALL, "all rules, replay", 150_000))
"""What is measured, and how many records/s it should reach on two cores, where the bars were set."""

YARDSTICK_KEY = "yardstick"
YARDSTICK_ENTRIES = 200_000
YARDSTICK_PAGE = 1_000
YARDSTICK_RATE = 1_690_000
"""Entries/s of `Yardstick.rate` where the bars were set: Redis 7.0, two cores."""


def names(shard: int) -> Iterator[str]:
    """Group ids that are hashed into a shard."""
    return (name for name in map("group-{}".format, itertools.count()) if shard_of(name, SHARDS) == shard)


def records(shard: int) -> Iterator[bytes]:
    """A healthy log without an end."""
    yield records_pb2.Record(
        written_at_ms=1, critical=True,
        genesis=records_pb2.Genesis(cluster_id=CLUSTER, shard_count=SHARDS, shard=shard),
    ).SerializeToString()  # fmt: skip
    claim = records_pb2.Claim(
        node_id="bench", session="bench", previous=common_pb2.Position(epoch=0, offset=1)
    )
    yield records_pb2.Record(written_at_ms=2, claim=claim).SerializeToString()
    subscription = common_pb2.Subscription(version=1, topics=["orders"]).SerializeToString()
    generation, group_ids = [0] * GROUPS, list(islice(names(shard), GROUPS))
    for number in itertools.count():
        now_ms = 1_700_000_000_000 + number
        group = number // 5 % GROUPS
        group_id, member_id = group_ids[group], f"member-{shard}-{group}-0123456789abcdef"
        record = records_pb2.Record(written_at_ms=now_ms)
        if number % 5 == 0:
            generation[group] += 1
            started = record.generation_started
            started.group_id, started.generation = group_id, generation[group]
            started.protocol_type, started.protocol_name, started.leader = "consumer", "range", member_id
            started.cause.kind = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
            member = started.members.add(member_id=member_id, client_id="bench", session_timeout_ms=45_000)
            member.protocols.add(name="range", metadata=subscription)
        else:
            commit = record.offset_committed
            commit.group_id, commit.generation, commit.member_id = group_id, generation[group], member_id
            commit.member_seq = number
            commit.offsets.add(
                topic="orders", partition=number % 16, offset=number, leader_epoch=-1, metadata="x" * 150
            )
        yield record.SerializeToString()


class Filler:
    """Writes the logs, and makes them longer: what stands there stays.

    Args:
        port: of the server.
        shard: number of the log.
    """

    def __init__(self, port: int, shard: int) -> None:
        self._port, self._keys = port, log_keys(shard, SHARDS)
        self._records = enumerate(records(shard), 1)
        self._nonces = Nonces()
        self._before = BEFORE_GENESIS
        self._size_bytes = 0
        self._claim = b""

    def grow(self, count: int) -> int:
        """Writes so many records more; gives the bytes of all."""
        client: Any = redis.Redis(port=self._port)
        connection = client.connection_pool.get_connection()
        connection.send_command("DEL" if self._before == BEFORE_GENESIS else "EXISTS", self._keys.log)
        connection.read_response()
        key, left = self._keys.log.encode(), count
        while left:
            rows = list(islice(self._records, min(PIPELINE, left)))
            connection.send_packed_command([self._commands(key, rows)])
            for _ in rows:
                connection.read_response()
            left -= len(rows)
        connection.send_command("SET", self._keys.acknowledged, Position(1, rows[-1][0]).stream_id)
        connection.read_response()
        connection.send_command("HSET", self._keys.promise, "epoch", 1, "nonce", self._claim)
        connection.read_response()
        connection.disconnect()
        return self._size_bytes

    def _commands(self, key: bytes, rows: list[tuple[int, bytes]]) -> bytes:
        """XADD of each record, packed by hand: the client's way takes longer than all the rest."""
        commands = []
        for number, record in rows:
            place = Position(0 if number == 1 else 1, number)
            nonce = self._nonces.next()
            if number == 2:
                self._claim = nonce
            self._before = chain_hash(self._before, place, nonce, record)
            self._size_bytes += len(record)
            words = (b"XADD", key, place.stream_id.encode(), b"r", record, b"n", nonce, b"h", self._before)
            commands.append(b"*9\r\n" + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))
        return b"".join(commands)


def at_rest(port: int) -> None:
    """Waits until the server has rewritten its file and the disk has it: both take a core for a while."""
    with redis.Redis(port=port) as client:
        while True:
            told: Any = client.info("persistence")
            if not (told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"]):
                os.sync()
                return
            time.sleep(0.2)


class Fillers:
    """Processes that write the logs.

    Args:
        port: of the server.
        processes: how many.
    """

    def __init__(self, port: int, processes: int) -> None:
        self._each = 0
        self._sizes: Queue[int] = Queue()
        self._amounts: list[Queue[int]] = [Queue() for _ in range(processes)]
        for number, amounts in enumerate(self._amounts):
            shards = range(number, SHARDS, processes)
            Process(target=_fill, args=(port, shards, amounts, self._sizes), daemon=True).start()

    def grow_to(self, count: int) -> int:
        """Makes all logs together so long; gives their bytes."""
        more, self._each = count // SHARDS - self._each, count // SHARDS
        for amounts in self._amounts:
            amounts.put(more)
        return sum(self._sizes.get() for _ in self._amounts)

    def end(self) -> None:
        """Ends the processes."""
        for amounts in self._amounts:
            amounts.put(0)


def _fill(port: int, shards: Sequence[int], amounts: "Queue[int]", sizes: "Queue[int]") -> None:
    """A process that makes some of the logs longer each time it is told by how much; 0 ends it."""
    fillers = [Filler(port, shard) for shard in shards]
    while count := amounts.get():
        sizes.put(sum(filler.grow(count) for filler in fillers))


class Yardstick:
    """How fast this machine is just now: entries/s of a read that needs nothing of Muster.

    One field of 289 bytes in each entry, 1,000 entries a page, one page after the other through a socket and
    hiredis, in this process.

    Args:
        port: of a server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        value = bytes(289)
        with redis.Redis(port=port) as client:
            for _ in range(YARDSTICK_ENTRIES // YARDSTICK_PAGE):
                pipeline = client.pipeline(transaction=False)
                for _ in range(YARDSTICK_PAGE):
                    pipeline.xadd(YARDSTICK_KEY, {"v": value})
                pipeline.execute()

    def rate(self) -> float:
        """Entries/s, the best of three reads of all."""
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            return YARDSTICK_ENTRIES / min(self._read(connection) for _ in range(3))

    def _read(self, connection: socket.socket) -> float:
        began, reader = time.perf_counter(), hiredis.Reader()
        start, read = "-", 0
        while read < YARDSTICK_ENTRIES:
            connection.sendall(f"XRANGE {YARDSTICK_KEY} {start} + COUNT {YARDSTICK_PAGE}\r\n".encode())
            while (rows := reader.gets()) is False:
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionError("the server closed the connection")
                reader.feed(data)
            read += len(rows)
            start = "(" + rows[-1][0].decode()
        return time.perf_counter() - began


def bare(url: str) -> int:
    with NodesSource(url) as source:
        pages = (
            page
            for shard in source.logs()
            for page in source.pages(shard, 1, source.acknowledged(shard), PAGE_ENTRIES)
        )
        return sum(map(len, pages))


def plain(url: str, rules: Rules) -> None:
    with NodesSource(url) as source:
        for shard in source.logs():
            for _ in audit_log(source, shard, ScanOptions(rules=rules)):
                pass


@dataclass(slots=True)
class Stopwatch:
    """Runs things and prints what they cost.

    Attributes:
        count: records of a run.
        yardstick: tells how fast the machine is.
        bare_seconds: what a read that looks at nothing took.
    """

    count: int
    yardstick: Yardstick
    bare_seconds: float = 0.0

    def time(self, name: str, run: Callable[[], object], bar: int = 0) -> tuple[float, float]:
        """Runs something; gives its wall time, and what share of the yardstick's rate it reached."""
        yardstick = self.yardstick.rate()
        began = time.perf_counter()
        with Usage() as usage:
            run()
            took = time.perf_counter() - began
        rate, used = self.count / took, sum(usage.seconds.values())
        ratio = f"{took / self.bare_seconds:5.2f}× the bare read" if self.bare_seconds else ""
        print(f"  {name:32} {rate:11,.0f} records/s {took:7.2f} s  {ratio}", flush=True)
        split = ", ".join(f"{who} {seconds:.2f}" for who, seconds in sorted(usage.seconds.items()))
        print(f"  {'':32} {used / self.count * 1e6:.2f} µs of processors a record; s: {split}", flush=True)
        yardstick = max(yardstick, self.yardstick.rate())  # so that nothing is told too well
        share = rate / yardstick
        if bar:
            print(
                f"  {'':32} {share * YARDSTICK_RATE:,.0f} where the bars were set, wanted {bar:,} "
                f"(the yardstick reads {yardstick:,.0f}/s here); "
                f"largest Python worker {usage.memory_mb['workers']:,.0f} MiB",
                flush=True,
            )
        return took, share


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--records", type=int, action="append", help="how many; again: that many after a growth; ascending"
    )
    parser.add_argument("--cores", type=int, default=BAR_CORES)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument(
        "--tries",
        type=int,
        default=1,
        help="how often Spark runs each time; the medians are told",
    )
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    if arguments.tries < 1:
        parser.error(f"--tries {arguments.tries}: at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = RedisNodes(folder / "nodes", 1, fsync="no")
        await nodes.start()
        await initialise_log(nodes.url, SHARDS, CLUSTER)
        url, log_file, master = nodes.url, folder / "spark.log", f"local[{arguments.cores}]"
        fillers, yardstick = Fillers(nodes[0].port, arguments.cores), Yardstick(nodes[0].port)
        try:
            with spark_session("bench", master=master, folder=folder / "spark", log=log_file) as spark:
                check(spark, url, CheckOptions(), folder / "warm")
                for count in arguments.records or [1_000_000]:
                    size_bytes = fillers.grow_to(count)
                    at_rest(nodes[0].port)
                    print(
                        f"{count:,} records of {size_bytes / count:.0f} bytes, {arguments.cores} cores",
                        flush=True,
                    )
                    watch = Stopwatch(count, yardstick)
                    watch.bare_seconds, _ = watch.time("bare read, one process", partial(bare, url))
                    for rules, told, bar in RULES:
                        if arguments.plain:
                            watch.time(f"{told}: plain Python", partial(plain, url, rules))
                        options = CheckOptions(rules=rules, memory_mb=arguments.memory_mb)
                        runs = []
                        for number in range(arguments.tries):
                            tables = folder / f"{rules}-{count}-{number}"
                            run = partial(check, spark, url, options, tables)
                            runs.append(watch.time(f"{told}: Spark", run, bar))
                        seconds, share = map(statistics.median, zip(*runs, strict=True))
                        met = "met" if share * YARDSTICK_RATE >= bar else "missed"
                        print(
                            f"  {'':32} median {count / seconds:,.0f} records/s, "
                            f"{share * YARDSTICK_RATE:,.0f} where the bars were set"
                            + (f": {met}" if arguments.cores == BAR_CORES else ""),
                            flush=True,
                        )
        finally:
            fillers.end()
            await nodes.stop()


if __name__ == "__main__":
    uvloop.run(main())
