"""Parked partitions are state of the group: they survive workers and servers, until they are released."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import muster
import pytest
from kit import forked
from kit.clusters.server_cluster import find, running
from kit.waiting import killed, until, until_equal
from muster import TopicPartition

pytestmark = pytest.mark.cluster

BAD = TopicPartition("t", 2)
WORKER = """
import logging, os, sys, muster
logging.basicConfig(level=logging.INFO, format="%(message)s")
version, fails, protocol = sys.argv[1:]

async def work(p):
    os.write(1, b"at %d\\n" % p.number)
    if p.number == 2 and fails == "fails":
        raise ValueError("no such tenant")
    await p.commit((await p.committed() or 0) + 1)
    await p.ending()

muster.run(
    work,
    group="g",
    topic="t",
    partitions=4,
    version=version,
    retry_attempts=2,
    retry_backoff_ms=10,
    protocol=protocol,
)
"""


class Worker:
    """A worker process, and what it says."""

    def __init__(self, process: forked.Program) -> None:
        self.process = process
        self.at: list[int] = []
        self.log = ""
        self._readers = [asyncio.create_task(self._read_out()), asyncio.create_task(self._read_log())]

    async def _read_out(self) -> None:
        while line := await self.process.stdout.readline():
            self.at.append(int(line.split()[1]))

    async def _read_log(self) -> None:
        while line := await self.process.stderr.readline():
            self.log += line.decode()

    async def kill(self) -> None:
        await killed(self.process)
        await asyncio.wait(self._readers)


@asynccontextmanager
async def worker(servers: str, version: str, protocol: str, fails: bool = True) -> AsyncIterator[Worker]:
    fate = "fails" if fails else "well"
    one = Worker(
        await forked.started(
            [sys.executable, "-c", WORKER, version, fate, protocol], {**os.environ, "MUSTER_SERVERS": servers}
        )
    )
    try:
        yield one
    finally:
        await one.kill()


async def cli(servers: str, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "MUSTER_SERVERS": servers}
    environment.pop("COLUMNS", None)  # rows are not wrapped
    done = await forked.run_beside(["muster", *arguments], environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("protocol", ["classic", "incremental"])
async def test_a_parked_partition_survives_moves_and_fail_overs_until_it_is_released(
    tmp_path: Path, protocol: str
) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=2) as servers,
        muster.Cluster(servers.servers) as cluster,
    ):

        async def parked() -> list[tuple[TopicPartition, str, str]]:
            return [(p.partition, p.reason, p.version) for p in await cluster.parked("g")]

        said = [(BAD, "attempt 2: ValueError: no such tenant", "1")]
        async with worker(servers.servers, "1", protocol) as first:
            await until_equal(parked, said)
            await until(lambda: "t-2 is parked since" in first.log, "that it is parked")
            await until(lambda: {0, 1, 3} <= set(first.at), "the others run")
            assert first.at.count(2) == 2
            assert first.process.returncode is None
        assert set(await cluster.committed("g")) == {TopicPartition("t", n) for n in (0, 1, 3)}

        async with worker(servers.servers, "1", protocol) as second:  # it moves
            await until(lambda: "t-2 is parked since" in second.log, "that it is still parked")
            code, out = await cli(servers.servers, "groups", "describe", "g")
            assert code == 0
            assert "ValueError: no such tenant" in " ".join(out.split())
            address = await find(servers.servers, "g")
            view = await cluster.describe()
            await servers.coordinator(
                next(c.node_id for c in view.coordinators if f"{c.host}:{c.port}" == address)
            ).kill()
            await until_equal(parked, said)  # another one serves the group; a command waits for 5 s only
            code, out = await cli(servers.servers, "partitions", "list", "g", "--output", "json")
            assert (code, '"reason": "attempt 2: ValueError: no such tenant"' in out) == (0, True), out
            code, out = await cli(servers.servers, "partitions", "release", "g", "t", "2", "3")
            assert (code, out.splitlines()) == (1, ["t-2 is released", "t-3 is not parked"])
            await until(lambda: second.at.count(2) == 2, "it was tried again")
            await until_equal(parked, said)
            await until(lambda: "t-2 was released; its work is called again" in second.log)

        async with worker(
            servers.servers, "2", protocol, fails=False
        ) as repaired:  # the deploy that frees it
            await until(lambda: 2 in repaired.at, "another version takes it")
            await until_equal(parked, [])
            await until(lambda: "t-2 was parked by another version" in repaired.log)
            code, out = await cli(servers.servers, "partitions", "list", "g")
            assert (code, out.strip()) == (0, "no partition is parked")
