"""A worker that was stopped past its session and wakes up cannot write with its old assignment."""

import asyncio
import sys
import time
from pathlib import Path

from kit.server_cluster import running
from muster_server.child_process import ChildProcess
from muster_server.demo.progress import Progress
from muster_server.demo.workload import FULL, Store, collect, load
from muster_server.dev.redis_nodes import RedisNode

GROUP, TOPIC, PARTITIONS = "g", "t", 4
WITHIN_SECONDS = 60.0
LINES = [f"word{number % 7} again" for number in range(200_000)]


def worker(name: str, folder: Path, servers: str, workload: str) -> ChildProcess:
    return ChildProcess(
        name,
        [
            sys.executable,
            "-m",
            "muster_server.demo.worker",
            name,
            servers,
            workload,
            GROUP,
            TOPIC,
            str(PARTITIONS),
        ],
        folder / f"{name}.log",
        removed=("MUSTER_",),
    )


async def test_the_guard_refuses_a_zombie(tmp_path: Path) -> None:
    workload = RedisNode(tmp_path / "workload")
    await workload.start()
    store = Store(workload.url)
    progress = Progress(store, load(workload.url, LINES, PARTITIONS))
    following = asyncio.create_task(progress.follow())
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster:
        zombie, heir = (worker(name, tmp_path, cluster.servers, workload.url) for name in ("zombie", "heir"))
        try:
            zombie.start()
            await store.allow(FULL)
            assert await progress.until(
                lambda: len(progress.partitions_of("zombie")) == PARTITIONS and len(progress.commits) > 5,
                WITHIN_SECONDS,
            )
            zombie.pause()
            tokens = [(await store.guard(number))[0] for number in range(PARTITIONS)]
            heir.start()
            assert await progress.until(
                lambda: len(progress.partitions_of("heir")) == PARTITIONS, WITHIN_SECONDS
            )
            for number in range(PARTITIONS):
                assert (await store.guard(number))[0] > tokens[number]
            zombie.resume()
            deadline = time.monotonic() + WITHIN_SECONDS
            # Its tasks were in the middle of their work: the first write of each meets the guard.
            while not any([(await store.guard(number))[2] for number in range(PARTITIONS)]):
                assert zombie.running, zombie.tail()
                assert time.monotonic() < deadline, "the zombie never tried to write"
                await asyncio.sleep(0.05)
            before = progress.done
            assert await progress.until(lambda: progress.done > before, WITHIN_SECONDS)
        finally:
            await zombie.terminate()
            await heir.terminate()
            progress.ended = True
            await following
    # Whoever counted it: each line up to the positions was counted once.
    counted = sum([(await store.guard(number))[1] for number in range(PARTITIONS)])
    assert collect(workload.url, PARTITIONS)["again"] == counted
    await store.close()
    await workload.stop()
