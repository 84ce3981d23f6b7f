#!/usr/bin/env python3
"""What the audit costs: records per second with Spark, in plain Python, and of a read that looks at nothing.

Fills an embedded server with healthy logs (80 % commits, 20 % generations, about 300 bytes, 50 shards) and
reads them in one run: a bare read; the rules of the log with the chain of hashes; all rules with the replay
of groups. Each in one plain process and through Spark, which is measured after its start. Prints rates,
ratios and the memory of Spark's Python workers.

    ./x bench audit [--records 1000000] [--records 2000000 …] [--cores 2] [--memory-mb 256]
"""

import argparse
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import redis
import uvloop
from muster_audit.check import CheckOptions, check
from muster_audit.scan import Rules, ScanOptions, audit_log
from muster_audit.session import spark_session
from muster_audit.sources import NodesSource
from muster_core.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import NOWHERE, Position
from muster_metadata.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2 as log
from muster_protos.muster.v1 import common_pb2
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.initialise import initialise_log

SHARDS = 50
GROUPS = 40
CLUSTER = "bench"
PIPELINE = 1_000


def records(shard: int, count: int) -> Iterator[bytes]:
    """A healthy log of so many records."""
    yield log.Record(
        written_at_ms=1, critical=True,
        genesis=log.Genesis(cluster_id=CLUSTER, shard_count=SHARDS, shard=shard),
    ).SerializeToString()  # fmt: skip
    claim = log.Claim(node_id="bench", session="bench", previous=common_pb2.Position(epoch=0, offset=1))
    yield log.Record(written_at_ms=2, claim=claim).SerializeToString()
    subscription = common_pb2.Subscription(version=1, topics=["orders"]).SerializeToString()
    generation = [0] * GROUPS
    for number in range(count - 2):
        now_ms = 1_700_000_000_000 + number
        group = number // 5 % GROUPS
        group_id, member_id = f"group-{shard}-{group}", f"member-{shard}-{group}-0123456789abcdef"
        record = log.Record(written_at_ms=now_ms)
        if number % 5 == 0:
            generation[group] += 1
            started = record.generation_started
            started.group_id, started.generation = group_id, generation[group]
            started.protocol_type, started.protocol_name, started.leader = "consumer", "range", member_id
            member = started.members.add(member_id=member_id, client_id="bench", session_timeout_ms=45_000)
            member.protocols.add(name="range", metadata=subscription)
        else:
            commit = record.offset_committed
            commit.group_id, commit.generation, commit.member_id = group_id, generation[group], member_id
            commit.member_seq = number
            commit.offsets.add(topic="orders", partition=number % 16, offset=number, metadata="x" * 150)
        yield record.SerializeToString()


def fill(port: int, shard: int, count: int) -> int:
    """Writes one log; gives its bytes."""
    keys = log_keys(shard, SHARDS)
    place, before, size = NOWHERE, BEFORE_GENESIS, 0
    with redis.Redis(port=port) as connection, connection.pipeline(transaction=False) as pipeline:
        pipeline.delete(keys.log)
        for number, record in enumerate(records(shard, count), 1):
            place = Position(0 if number == 1 else 1, number)
            nonce = secrets.token_bytes(16)
            before = chain_hash(before, place, nonce, record)
            pipeline.xadd(keys.log, {"r": record, "n": nonce, "h": before}, id=place.stream_id)
            size += len(record)
            if number % PIPELINE == 0:
                pipeline.execute()
        pipeline.set(keys.acknowledged, place.stream_id)
        pipeline.execute()
    return size


def bare(url: str) -> int:
    with NodesSource(url) as source:
        pages = (
            page
            for shard in source.logs()
            for page in source.pages(shard, 1, source.acknowledged(shard), 1_000)
        )
        return sum(map(len, pages))


def plain(url: str, rules: Rules) -> None:
    with NodesSource(url) as source:
        for shard in source.logs():
            for _ in audit_log(source, shard, ScanOptions(rules=rules)):
                pass


class Memory:
    """The highest memory of one Python worker of Spark while a block runs, MiB."""

    def __enter__(self) -> "Memory":
        self.highest_mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.2):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark" in (path / "cmdline").read_bytes():
                        text = (path / "status").read_text()
                        kib = int(text.partition("VmRSS:")[2].split()[0])
                        if "java" not in text.partition("\n")[0]:
                            self.highest_mb = max(self.highest_mb, kib / 1024)
                except (OSError, ValueError, IndexError):
                    continue


def timed(name: str, count: int, baseline: float, run: object) -> float:
    began = time.perf_counter()
    run()  # type: ignore[operator]
    took = time.perf_counter() - began
    ratio = f"{took / baseline:6.2f}× the bare read" if baseline else ""
    print(f"  {name:34} {count / took:12,.0f} records/s  {took:8.2f} s  {ratio}", flush=True)
    return took


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, action="append", help="how many; may be given again")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory-mb", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = RedisNodes(folder / "nodes", 1, fsync="no")
        await nodes.start()
        await initialise_log(nodes.url, SHARDS, CLUSTER)
        port, url = nodes[0].port, nodes.url
        log_file = folder / "spark.log"
        master = f"local[{arguments.cores}]"
        try:
            with spark_session("bench", master=master, folder=folder / "spark", log=log_file) as spark:
                check(spark, url, CheckOptions(), folder / "warm")
                for number, count in enumerate(arguments.records or [1_000_000]):
                    with ProcessPoolExecutor(arguments.cores) as pool:
                        each = [count // SHARDS] * SHARDS
                        size = sum(pool.map(fill, [port] * SHARDS, range(SHARDS), each))
                    print(
                        f"{count:,} records of {size / count:.0f} bytes, {arguments.cores} cores", flush=True
                    )
                    base = timed("bare read, one process", count, 0, lambda: bare(url))
                    for rules, told in ((Rules.LOG, "log rules, chain"), (Rules.ALL, "all rules, replay")):
                        timed(f"{told}: plain Python", count, base, lambda rules=rules: plain(url, rules))
                        options = CheckOptions(rules=rules, memory_mb=arguments.memory_mb)
                        tables = folder / f"{rules}-{number}"
                        with Memory() as memory:
                            timed(
                                f"{told}: Spark", count, base,
                                lambda options=options, tables=tables: check(spark, url, options, tables),
                            )  # fmt: skip
                        print(f"  {'':34} largest Python worker: {memory.highest_mb:,.0f} MiB", flush=True)
        finally:
            await nodes.stop()


if __name__ == "__main__":
    uvloop.run(main())
