"""The examples, as a newcomer runs them: programs of their own against a cluster of real processes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from kit.clusters.server_cluster import running

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def _run(servers: str, name: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        *arguments,
        env={**os.environ, "MUSTER_SERVERS": servers},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_a_member_in_plain_calls(tmp_path: Path) -> None:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster:
        arguments = ("--servers", cluster.servers, "--beats", "2", "--interval", "0.1")
        process = await _run(cluster.servers, "raw_member.py", *arguments)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        text = output.decode()
        assert process.returncode == 0, text
        assert "generation 1" in text
        assert text.count("heartbeat: ERROR_CODE_NONE") == 2
        assert text.rstrip().endswith("left")


async def test_members_of_an_incremental_group_in_plain_calls(tmp_path: Path) -> None:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster:
        name = "raw_incremental_member.py"
        first = await _run(cluster.servers, name, cluster.servers, "--beats", "60", "--interval", "0.1")
        assert first.stdout is not None
        while b"12 partitions" not in (line := await asyncio.wait_for(first.stdout.readline(), 60)):
            assert line, "it ended"
        second = await _run(cluster.servers, name, cluster.servers, "--beats", "30", "--interval", "0.1")
        for process in (second, first):
            output, _ = await asyncio.wait_for(process.communicate(), 60)
            text = output.decode()
            assert process.returncode == 0, text
            assert ", 6 partitions" in text
            assert text.rstrip().endswith("left")


async def test_two_workers_share_and_one_stops(tmp_path: Path) -> None:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster:
        workers = [await _run(cluster.servers, "worker.py") for _ in range(2)]
        try:
            for worker in workers:
                assert worker.stdout is not None
                line = await asyncio.wait_for(worker.stdout.readline(), 60)
                assert b"with token" in line, (line + await worker.stdout.read(4000)).decode()
            for worker, number in zip(workers, (signal.SIGTERM, signal.SIGINT), strict=True):
                worker.send_signal(number)
                assert await asyncio.wait_for(worker.wait(), 60) == 0
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.communicate()
