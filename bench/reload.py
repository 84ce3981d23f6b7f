#!/usr/bin/env python3
"""How fast a shard is loaded: records a second, end to end, on real processes.

Three embedded servers hold a log of commits and rebalances; a `metadata` and a `coordinator` process read
it: the time is what the coordinator tells when it serves the shard, from its claim to its last record.
In the same run, as baselines: the same log read by a plain Python client (XRANGE), its records decoded and
nothing else, the pages of metadata read and nothing else, and a load in this process of pages that are there.

Wall time means little on a machine that does other things, so the processor time of a load is told, too: that
of the coordinator's side and of metadata, which work at once, each on a core of its own if there are two.

    ./x bench reload [--records 200000] [--rounds 3] [--offsets-only]
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import redis
import uvloop
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LogImage
from muster_core.config import GroupConfig
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_runtime.addresses import parse_addresses
from muster_runtime.garbage import COLLECTOR
from muster_runtime.rpc.channels import Channels
from muster_runtime.settings import load
from muster_server.dev.ports import free_ports
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess

GROUPS = 40
MEMBERS = 10
PARTITIONS = 4  # of each member
BATCH = 2_000
PAGE = 1_000
LOG = "muster:{0}:log"


def records(count: int, *, offsets_only: bool) -> Iterator[bytes]:
    """What owners write: each group rebalances now and then, its members commit all the time."""
    written = 0
    generations = [0] * GROUPS
    every = 0 if offsets_only else 1_000  # commits of a group between two rebalances
    while written < count:
        turn = written // GROUPS
        for group in range(GROUPS):
            if generations[group] == 0 or (every and turn % every == group):
                generations[group] += 1
                yield _generation(group, generations[group])
                yield _assignment(group, generations[group])
                written += 2
            yield _commit(group, generations[group], turn)
            written += 1


def _name(group: int) -> str:
    return f"orders-of-region-{group}"


def _member(group: int, number: int) -> str:
    return f"worker-{number}-8f7a6b5c-0d2e-4f3a-9b1c-2d3e4f5a{group:04d}"


def _generation(group: int, generation: int) -> bytes:
    record = records_pb2.Record(written_at_ms=1_700_000_000_000)
    started = record.generation_started
    started.group_id, started.generation, started.protocol_type = _name(group), generation, "consumer"
    started.protocol_name, started.leader = "range", _member(group, 0)
    metadata = common_pb2.Subscription(version=1, topics=["orders"]).SerializeToString()
    for number in range(MEMBERS):
        started.members.add(
            member_id=_member(group, number),
            client_id=f"worker-{number}",
            host="10.0.0.17",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=metadata)],
        )
    return record.SerializeToString()


def _assignment(group: int, generation: int) -> bytes:
    record = records_pb2.Record(written_at_ms=1_700_000_000_000)
    committed = record.assignment_committed
    committed.group_id, committed.generation, committed.leader = _name(group), generation, _member(group, 0)
    for number in range(MEMBERS):
        given = common_pb2.Assignment(version=1)
        given.partitions.add(topic="orders", partitions=range(number * PARTITIONS, (number + 1) * PARTITIONS))
        committed.members.add(member_id=_member(group, number), assignment=given.SerializeToString())
    return record.SerializeToString()


def _commit(group: int, generation: int, turn: int) -> bytes:
    record = records_pb2.Record(written_at_ms=1_700_000_000_000 + turn)
    commit = record.offset_committed
    number = turn % MEMBERS
    commit.group_id, commit.generation, commit.member_id = _name(group), generation, _member(group, number)
    commit.member_seq = turn + 1
    partition = number * PARTITIONS + turn // MEMBERS % PARTITIONS
    commit.offsets.add(topic="orders", partition=partition, offset=turn * 100, leader_epoch=-1, metadata="")
    return record.SerializeToString()


async def write(url: str, count: int, *, offsets_only: bool) -> None:
    """Puts the log on the nodes, through metadata, as an owner does."""
    server = MetadataServer(load(MetadataSettings, redis_url=url, listen="127.0.0.1:0"))
    await server.start()
    await server.metadata.ready.wait()
    nonce = secrets.token_bytes(16)
    verdict, held, end = await server.metadata.logs.claim(
        0, metadata_pb2.ClaimStep(node_id="bench", session="bench", nonce=nonce)
    )
    assert held is not None, verdict
    assert end is not None
    batch: list[bytes] = []
    for record in (*records(count, offsets_only=offsets_only), b""):
        if record:
            batch.append(record)
        if batch and (len(batch) == BATCH or not record):
            step = metadata_pb2.AppendStep(
                epoch=held.epoch,
                claim_nonce=nonce,
                end=end.to_proto(),
                records=[
                    metadata_pb2.NewRecord(record=data, nonce=secrets.token_bytes(16)) for data in batch
                ],
            )
            while True:
                verdict, behind = await server.metadata.logs.append(0, step)
                if behind is not None:
                    break
                assert verdict.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN, verdict
            end, batch = behind, []
    await server.metadata.upkeep.acknowledge(held, end)
    await server.stop(0)


def read_plainly(url: str) -> tuple[float, list[bytes]]:
    """Seconds that a Python client takes to read all entries of one node, and their records."""
    client: Any = redis.Redis.from_url(url, protocol=2)
    found: list[bytes] = []
    first = "-"
    began = time.perf_counter()
    while page := client.xrange(LOG, first, "+", count=PAGE):
        found += [fields[b"r"] for _, fields in page]
        first = f"({page[-1][0].decode()}"
    took = time.perf_counter() - began
    client.close()
    return took, found


def decode(datas: list[bytes]) -> float:
    """Seconds to decode the records and do nothing with them."""
    began = time.perf_counter()
    for data in datas:
        records_pb2.Record.FromString(data)
    return time.perf_counter() - began


async def read_pages(address: str) -> tuple[float, list[bytes]]:
    """Seconds to read all pages from metadata, and the runs in them."""
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.max_receive_message_length", 64 << 20)]
    ) as channel:
        stub = metadata_pb2_grpc.MetadataServiceStub(channel)
        began = time.perf_counter()
        runs: list[bytes] = []
        async for page in stub.ReadLog(metadata_pb2.ReadLogRequest(shard=0, page_size=PAGE, packed=True)):
            assert page.outcome == metadata_pb2.LOG_OUTCOME_OK, page
            runs += page.runs
        return time.perf_counter() - began, runs


def replay(runs: list[bytes]) -> tuple[float, int]:
    """Seconds to check and replay pages that are in memory, and the number of records."""
    image = LogImage(0, GroupConfig())
    began = time.perf_counter()
    with COLLECTOR.left_alone():
        for run in runs:
            image.take(run)
    return time.perf_counter() - began, image.records


def processor_s(pid: int) -> float:
    """Processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load_here(metadata: RoleProcess) -> tuple[int, float, float]:
    """Number of records of a load in this process; processor seconds of this process and of metadata."""
    channels = Channels(parse_addresses(metadata.address))
    loader = Loader(channels.channel, 1, GroupConfig())
    image = loader.image(0)
    here, there = time.process_time(), processor_s(metadata.process.pid)
    await loader.preload(image)
    here, there = time.process_time() - here, processor_s(metadata.process.pid) - there
    await channels.close()
    return image.records, here, there


async def load_once(number: int, folder: Path, metadata: RoleProcess) -> tuple[float, int]:
    """Seconds that a new coordinator process takes, and the number of records."""
    process = RoleProcess(
        f"coordinator-{number}",
        "coordinator",
        free_ports(1)[0],
        folder,
        {
            "MUSTER_COORDINATOR_METADATA": metadata.address,
            "MUSTER_COORDINATOR_NODE_ID": f"coordinator-{number}",
            "MUSTER_COORDINATOR_LISTEN": f"127.0.0.1:{free_ports(1)[0]}",
            "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "0",
            "MUSTER_SHARD_LOG_RETENTION_MS": "0",
            "MUSTER_LOG_FORMAT": "json",
        },
    )
    await process.start()
    path = folder / f"coordinator-{number}.log"
    while True:
        for line in path.read_text().splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("event") == "shard_loaded":
                await process.terminate()
                return told["load_ms"] / 1000, told["records"]
        await asyncio.sleep(0.02)


async def measure(count: int, rounds: int, folder: Path, *, offsets_only: bool) -> None:
    nodes = RedisNodes(folder / "redis", 3)
    await nodes.start()
    await initialise(nodes.url, 1)
    await write(nodes.url, count, offsets_only=offsets_only)
    port = free_ports(1)[0]
    metadata = RoleProcess(
        "metadata",
        "metadata",
        port,
        folder,
        {"MUSTER_METADATA_REDIS_URL": nodes.url, "MUSTER_METADATA_LISTEN": f"127.0.0.1:{port}"},
    )
    await metadata.start()
    kinds = ("plain client", "decode only", "metadata only", "replay only", "load")
    processor_us: dict[str, list[float]] = {"coordinator": [], "metadata": []}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        took, datas = read_plainly(nodes[number % 3].url)
        rates["plain client"].append(len(datas) / took)
        rates["decode only"].append(len(datas) / decode(datas))
        took, runs = await read_pages(metadata.address)
        rates["metadata only"].append(len(datas) / took)
        took, replayed = replay(runs)
        rates["replay only"].append(replayed / took)
        took, replayed = await load_once(number, folder, metadata)
        rates["load"].append(replayed / took)
        replayed, here, there = await load_here(metadata)
        processor_us["coordinator"].append(here / replayed * 1e6)
        processor_us["metadata"].append(there / replayed * 1e6)
        print(
            f"round {number + 1}: "
            + ", ".join(f"{kind} {rates[kind][-1]:,.0f}" for kind in kinds)
            + " records/s",
            flush=True,
        )
    median = {kind: statistics.median(found) for kind, found in rates.items()}
    mean_bytes = sum(map(len, datas)) / len(datas)
    print(f"\n{len(datas):,} records of {mean_bytes:.0f} bytes, medians of {rounds} rounds")
    for kind in kinds:
        ratio = median[kind] / median["plain client"]
        print(f"{kind:14}{median[kind]:12,.0f} records/s   {ratio:5.2f} × plain client")
    for name, found in processor_us.items():
        each = min(found)
        print(f"{name:14}{each:12.2f} µs of processor time per record: {1e6 / each:,.0f} records/s on a core")
    await metadata.terminate()
    await nodes.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000, help="length of the log (default 200,000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default 3)")
    parser.add_argument("--offsets-only", action="store_true", help="commits only, after one generation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(options.records, options.rounds, Path(folder), offsets_only=options.offsets_only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
