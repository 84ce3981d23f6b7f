"""A worker process is killed: its stream breaks, and its partitions run elsewhere when its grace is over."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.forked import Program, started
from kit.waiting import killed, until_equal
from muster._config import DISCONNECT_GRACE_MS
from muster_protos.muster.v1 import common_pb2

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
GROUP, TOPIC, PARTITIONS = "g", "t", 6
WORKER = """
import asyncio, sys, muster

async def main():
    async with muster.Cluster(sys.argv[1]) as cluster:
        async with muster.Member(
            cluster,
            group_id=sys.argv[2],
            topics=sys.argv[3],
            client_id="worker",
            group_instance_id=sys.argv[4],
            protocol=sys.argv[5],
            on_partitions_assigned=lambda owned: print(len(owned), flush=True),
        ) as member:
            await member.wait()

asyncio.run(main())
"""


@asynccontextmanager
async def worker(servers: str, protocol: str, instance: str = "") -> AsyncIterator[Program]:
    process = await started([sys.executable, "-c", WORKER, servers, GROUP, TOPIC, instance, protocol])
    try:
        yield process
    finally:
        await killed(process)


@pytest.mark.parametrize("protocol", ["classic", "incremental"])
async def test_partitions_of_a_killed_process_run_elsewhere_long_before_its_session_ends(
    tmp_path: Path, protocol: Any
) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        muster.Cluster(servers.servers) as cluster,
    ):
        await cluster.ensure_topic(TOPIC, PARTITIONS)
        lost: list[object] = []
        async with (
            worker(servers.servers, protocol) as process,
            muster.Member(
                cluster, group_id=GROUP, topics=TOPIC, on_partitions_lost=lost.append, protocol=protocol
            ) as member,
        ):
            await until_equal(lambda: len(member.partitions), 3)
            survivor, generation = member.member_id, await last_generation(cluster)
            process.kill()
            await until_equal(lambda: len(member.partitions), PARTITIONS)
            assert member.member_id == survivor
            assert lost == []
            assert member.last_cause is not None
            assert member.last_cause.kind == common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
            history = await cluster.group_history(GROUP)
            assert [g.generation for g in history][-2:] == [generation, generation + 1]
            assert history[-1].cause.kind == common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
            assert history[-1].cause.member_id.startswith("worker")


async def last_generation(cluster: muster.Cluster) -> int:
    return (await cluster.group_history(GROUP))[-1].generation


READER = """
import muster

def work(p):
    p.commit(1)
    print("on from 1 with token", p.token, flush=True)
    while not p.is_ending:
        p.committed()

muster.run(work, group="readers", topic="sites", partitions=12)
"""


async def test_workers_end_though_their_cluster_is_gone_for_good(tmp_path: Path) -> None:
    programs = ([str(EXAMPLES / "worker.py")], [str(EXAMPLES / "blocking_worker.py")], ["-c", READER])
    async with running(tmp_path, redis_nodes=1, coordinators=1) as servers:
        environment = {**os.environ, "MUSTER_SERVERS": servers.servers}
        workers = [await started([sys.executable, *program], environment) for program in programs]
        try:
            for process in workers:
                assert b"with token" in await asyncio.wait_for(process.stdout.readline(), 30)
            servers.kill_roles()
            assert servers.nodes is not None
            await servers.nodes[0].kill()
            for process in workers:
                while b"partitions are lost" not in (
                    line := await asyncio.wait_for(process.stderr.readline(), 30)
                ):
                    assert line, "the worker ended by itself"
                process.terminate()
            await asyncio.gather(*(asyncio.wait_for(process.communicate(), 30) for process in workers))
        finally:
            for process in workers:
                await killed(process)
    assert [process.returncode for process in workers] == [0, 0, 0]


@pytest.mark.parametrize("protocol", ["classic", "incremental"])
async def test_a_static_member_may_be_away_for_longer_than_the_grace_of_others(
    tmp_path: Path, protocol: Any
) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        muster.Cluster(servers.servers) as cluster,
        muster.Member(cluster, group_id=GROUP, topics=TOPIC, protocol=protocol) as member,
    ):
        await cluster.ensure_topic(TOPIC, PARTITIONS)
        async with worker(servers.servers, protocol, "blue") as process:
            await until_equal(lambda: len(member.partitions), 3)
            generation = await last_generation(cluster)
            await killed(process)
        # That nothing happens can only be seen by waiting.
        await asyncio.sleep(DISCONNECT_GRACE_MS / 1_000 + 0.5)
        async with worker(servers.servers, protocol, "blue") as again:
            assert again.stdout is not None
            assert await asyncio.wait_for(again.stdout.readline(), 30) == b"3\n"
            assert len(member.partitions) == 3
            assert await last_generation(cluster) == generation
