"""A worker that was stopped past its session and wakes up cannot write with its old assignment."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.clusters.server_cluster import running
from muster_server.child_process import ChildProcess
from muster_server.demo.progress import Progress
from muster_server.demo.workload import FULL, Store, collect, spread_lines
from muster_server.dev.redis_nodes import RedisNode

pytestmark = pytest.mark.cluster

GROUP, TOPIC, PARTITIONS = "g", "t", 4
WITHIN_SECONDS = 60.0
STOPPING_WORKER = str(Path(__file__).parents[1] / "kit" / "started" / "stopping_worker.py")
LINES = [f"word{number % 7} again" for number in range(200_000)]


def worker(name: str, folder: Path, *program: str | int, stops: Path | None = None) -> ChildProcess:
    """A worker of the demo; one that stops itself before a write once a file is there."""
    run = ["-m", "muster_server.demo.worker"] if stops is None else [STOPPING_WORKER]
    arguments = [name, *map(str, program), *([] if stops is None else [str(stops)])]
    return ChildProcess(
        name, [sys.executable, *run, *arguments], folder / f"{name}.log", removed=("MUSTER_",)
    )


@asynccontextmanager
async def workload_in(folder: Path) -> AsyncIterator[tuple[str, Store, Progress]]:
    """A server with lines, and what workers report there."""
    node = RedisNode(folder)
    await node.start()
    store = Store(node.url)
    progress = Progress(store, spread_lines(node.url, LINES, PARTITIONS))
    following = asyncio.create_task(progress.follow())
    try:
        yield node.url, store, progress
    finally:
        progress.ended = True
        await following
        await store.close()
        await node.stop()


async def test_the_guard_refuses_a_zombie(tmp_path: Path) -> None:
    told = tmp_path / "stop"
    async with (
        workload_in(tmp_path / "workload") as (url, store, progress),
        running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster,
    ):
        program = (cluster.servers, url, GROUP, TOPIC, PARTITIONS)
        zombie, heir = worker("zombie", tmp_path, *program, stops=told), worker("heir", tmp_path, *program)
        try:
            zombie.start()
            await store.allow(FULL)
            assert await progress.until(
                lambda: len(progress.partitions_of("zombie")) == PARTITIONS and len(progress.commits) > 5,
                WITHIN_SECONDS,
            )
            tokens = [(await store.guard(number))[0] for number in range(PARTITIONS)]
            told.touch()
            heir.start()
            assert await progress.until(
                lambda: len(progress.partitions_of("heir")) == PARTITIONS, WITHIN_SECONDS
            )
            for number in range(PARTITIONS):
                assert (await store.guard(number))[0] > tokens[number]
            assert zombie.running, zombie.tail()
            zombie.resume()
            deadline = time.monotonic() + WITHIN_SECONDS
            while not any([(await store.guard(number))[2] for number in range(PARTITIONS)]):
                assert zombie.running, zombie.tail()
                assert time.monotonic() < deadline, "the zombie never tried to write"
                await asyncio.sleep(0.05)
            before = progress.done
            assert await progress.until(lambda: progress.done > before, WITHIN_SECONDS)
        finally:
            await zombie.terminate()
            await heir.terminate()
        # Whoever counted it: each line up to the positions was counted once.
        counted = sum([(await store.guard(number))[1] for number in range(PARTITIONS)])
        assert collect(url, PARTITIONS)["again"] == counted
