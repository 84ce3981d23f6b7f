"""Workers as processes, whose work fails, hangs, returns, or does not end: the others go on."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.waiting import until, until_equal
from kit.workers import at_work, line_with, worker
from muster import TopicPartition

pytestmark = pytest.mark.cluster

ONE_BAD = """
async def work(p):
    say(p)
    if p.number == 2:
        raise ValueError("no such tenant")
    while True:
        await p.commit((await p.committed() or 0) + 1)
        await asyncio.sleep(0.05)
muster.run(work, group=group, topic="t", partitions=6, retry_attempts=3, retry_backoff_ms=50)
"""
DECORATED = """
def logged(work):
    def call(p):
        say(p)
        return work(p)
    return call

@logged
async def work(p):
    await p.commit(1)
    await p.ending()

partial = functools.partial(lambda _, p: work(p), 1)
shape = {"decorated": work, "lambda": lambda p: work(p), "partial": partial}
muster.run(shape[arguments[0]], group=group, topic="t", partitions=6)
"""
EXITS = """
def leave(p):
    say(p)
    if p.number == 5:
        sys.exit(7)

def blocking(p):
    leave(p)
    p.wait_ending()

async def later(p):
    leave(p)
    await p.ending()

try:
    muster.run(globals()[arguments[0]], group=group, topic="t", partitions=6)
finally:
    print("left", flush=True)
"""
STUCK = """
def work(p):
    say(p)
    if p.number == 0 and arguments:
        while True:
            time.sleep(1)
    while not p.wait_ending(0.05):
        p.alive()
muster.run(work, group=group, topic="t", partitions=6, max_idle_ms=1_000)
"""
STUBBORN = """
def blocking(p):
    say(p)
    while True:
        time.sleep(1)

async def later(p):
    say(p)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

muster.run(globals()[arguments[0]], group=group, topic="t", partitions=6, drain_timeout_ms=500)
"""


async def test_one_bad_partition_stops_no_worker(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        muster.Cluster(servers.servers) as cluster,
        worker(servers.servers, ONE_BAD, "g") as first,
        worker(servers.servers, ONE_BAD, "g") as second,
    ):

        async def positions() -> dict[TopicPartition, int]:
            return {p: c.offset for p, c in (await cluster.committed("g")).items()}

        async def has_moved() -> bool:
            before = await positions()
            return len(before) == 5 and all(
                at > before[p] for p, at in (await positions()).items() if p in before
            )

        owner = asyncio.create_task(line_with(first.stderr, "t-2 is parked"))
        other = asyncio.create_task(line_with(second.stderr, "t-2 is parked"))
        done, waiting = await asyncio.wait((owner, other), return_when=asyncio.FIRST_COMPLETED)
        said = done.pop().result()
        assert "attempt 3: ValueError: no such tenant" in said
        assert said.count("Traceback") == 1
        await until(has_moved, "the other partitions go on")
        assert TopicPartition("t", 2) not in await positions()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for process in (first, second):
            await at_work(process, 1)  # until then it may not heed signals
        assert (first.returncode, second.returncode) == (None, None)
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_work_of_any_shape_ends_in_order_and_with_its_own_code(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        muster.Cluster(servers.servers) as cluster,
    ):
        for shape in ("decorated", "lambda", "partial"):
            async with worker(servers.servers, DECORATED, shape, shape) as process:
                await at_work(process, 6)
                await until_equal(partial(committed, cluster, shape), [1] * 6)
                process.send_signal(signal.SIGTERM)
                out, err = await asyncio.wait_for(process.communicate(), 60)
                assert (process.returncode, out.decode().strip()) == (0, "ended in order")
                assert "never awaited" not in err.decode()
        for kind in ("blocking", "later"):
            async with worker(servers.servers, EXITS, kind, kind) as process:
                out, err = await asyncio.wait_for(process.communicate(), 60)
                assert process.returncode == 7, err.decode()
                assert out.decode().splitlines()[-1] == "left"
                assert "has left: the work failed" in err.decode()
        for kind in ("blocking", "later"):
            async with worker(servers.servers, STUBBORN, f"stubborn-{kind}", kind) as process:
                await at_work(process, 6)
                process.send_signal(signal.SIGTERM)
                out, err = await asyncio.wait_for(process.communicate(), 60)
                assert (process.returncode, out.decode().strip()) == (0, "ended in order"), err.decode()
                assert err.decode().count("did not end within drain_timeout_ms (500) and is cut off") == 6
                assert "has left: the program stopped" in err.decode()


async def committed(cluster: muster.Cluster, group: str) -> list[int]:
    return [entry.offset for entry in (await cluster.committed(group)).values()]


async def test_a_thread_that_cannot_be_stopped_makes_its_process_leave(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        worker(servers.servers, STUCK, "g", "hang") as process,
    ):
        await at_work(process, 6)
        async with worker(servers.servers, STUCK, "g") as heir:
            _, err = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 1
            assert "work on t-0 is stuck" in err.decode()
            assert 'File "<string>"' in err.decode(), "where it stands"
            assert "has left: the work failed" in err.decode()
            said = await line_with(heir.stderr, "has t 0-5 in epoch")
            assert "stuck" not in said
