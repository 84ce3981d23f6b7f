"""Workers as processes whose event loop is blocked: the membership goes on, up to a limit."""

import asyncio
import re
from pathlib import Path

import pytest
from kit.clusters.server_cluster import running
from kit.started.fenced_worker import Sink
from kit.waiting import until_equal
from kit.workers import at_work, line_with, worker

pytestmark = pytest.mark.cluster

KEPT = """
def blocks_here(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not arguments:  # else it computes
            time.sleep(0.1)

first = []

async def work(p):
    say(p)
    first.append(p.number)
    if p.number == first[0] and arguments != ["heir"]:
        await asyncio.sleep(1)
        for seconds in (2, 5):
            blocks_here(seconds)
            await p.commit(seconds)
            print("kept", p.generation, p.token, flush=True)
            await asyncio.sleep(0.5)
    while True:
        await asyncio.sleep(0.05)

muster.run(work, group=group, topic="t", partitions=4, assignors=["cooperative-sticky"])
"""
HANGS = """
from kit.started.fenced_worker import Sink
sink = Sink(arguments[0], arguments[1])
wake = arguments[0] + ".wake"

async def work(p):
    say(p)
    sink.begin(p.number, p.token)
    if arguments[1] == "sleeper":
        while not os.path.exists(wake):
            time.sleep(0.05)
        sink.write(p.number, p.token)
        try:
            await p.commit(1)
        except muster.CommitFailed as error:
            print("refused:", error, flush=True)
    await p.ending()
    sink.end(p.number, p.token)

muster.run(
    work, group=group, topic="t", partitions=1,
    session_timeout_ms=4_000, heartbeat_interval_ms=1_000, loop_block_limit_ms=1_500,
)
"""
JOINED = """
async def work(p):
    say(p)
    print("began", time.monotonic(), flush=True)
    if p.number == 0 and arguments:
        time.sleep(0.2)
        print("blocks", flush=True)
        time.sleep(6)
        arguments.clear()
        print("back", time.monotonic(), flush=True)
    await p.ending()

muster.run(work, group=group, topic="t", partitions=4)
"""


@pytest.mark.parametrize("busy", [(), ("busy",)], ids=["asleep", "computing"])
async def test_a_block_longer_than_the_grace_costs_nothing(tmp_path: Path, busy: tuple[str, ...]) -> None:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as servers:
        async with worker(servers.servers, KEPT, "g", "heir") as heir:
            await at_work(heir, 4)
            async with worker(servers.servers, KEPT, "g", *busy) as process:
                said = await line_with(process.stdout, "kept")
                said += await line_with(process.stdout, "kept")
                process.terminate()
                _, err = await asyncio.wait_for(process.communicate(), 60)
        assert said.count("at ") == 2, "its work began once"
        kept = re.findall(r"kept (.+)", said)
        assert len(kept) == 2
        assert len(set(kept)) == 1, "generation and token"
        log = err.decode()
        assert " lost" not in log
        assert "the event loop has been blocked for " in log
        assert "in blocks_here\n" in log
        assert "the event loop was blocked for " in log


async def test_a_loop_that_hangs_keeps_nothing_and_says_why_when_it_wakes(tmp_path: Path) -> None:
    path = str(tmp_path / "sink")
    sink = Sink(path)
    async with (
        running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as servers,
        worker(servers.servers, HANGS, "g", path, "sleeper") as sleeper,
    ):
        await at_work(sleeper, 1)
        async with worker(servers.servers, HANGS, "g", path, "heir") as heir:
            await at_work(heir, 1)
            starts = "SELECT worker FROM starts ORDER BY token"
            await until_equal(lambda: sink.rows(starts), [("sleeper",), ("heir",)])
            (tmp_path / "sink.wake").touch()
            assert "refused: " in await line_with(sleeper.stdout, "refused: ")
            wrong = "SELECT worker FROM wrong WHERE what LIKE 'writes with%'"
            await until_equal(lambda: sink.rows(wrong), [("sleeper",)])
            log = await line_with(sleeper.stderr, "the event loop was blocked for longer than 1500 ms (loop")
            assert "the event loop has been blocked for longer than 1500 ms (loop_block_limit_ms)" in log
            assert re.search(r"partitions are lost|lost t 0", log)


async def test_a_rebalance_waits_for_a_blocked_loop(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        worker(servers.servers, JOINED, "g", "blocks") as process,
    ):
        await line_with(process.stdout, "blocks")
        async with worker(servers.servers, JOINED, "g") as heir:
            began = await line_with(heir.stdout, "began")
            back = await line_with(process.stdout, "back")
            await at_work(process, 2)
            for one in (process, heir):
                one.terminate()
            _, err = await asyncio.wait_for(process.communicate(), 60)
    assert float(began.split("began ")[1]) > float(back.split("back ")[1])
    assert " lost" not in err.decode()
