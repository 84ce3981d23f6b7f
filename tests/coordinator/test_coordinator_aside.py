"""Work in a process of its own: what it answers, and what becomes of one that dies or hangs (INC-34)."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from kit.waiting import until
from muster_coordinator.assignment.answers import answer_to
from muster_coordinator.assignment.aside import QUEUED_MAX, Aside
from muster_coordinator.assignment.lines import lines_of_work, work_of
from muster_core.events import Assign, Assigned, Resolve, Resolved, Work
from muster_core.incremental.candidate import Candidate
from muster_core.incremental.targets.target import Question

LIMIT_S = 60.0


def assignment(number: int = 1, members: int = 300, partitions: int = 3_000) -> Assign:
    """A group that a member has just joined; the others have everything."""
    every = [("t", place) for place in range(partitions)]
    candidates = {
        f"m{place}": Candidate(
            f"m{place}",
            "i" if place == 1 else "",
            "r",
            frozenset({"t", "nope"}),
            frozenset(every[place - 1 :: members - 1]) if place else frozenset(),
        )
        for place in range(members)
    }
    return Assign("g", number, "uniform", Question(candidates, {"t": list(range(partitions))}, True, True))


def weighed(assignor: str) -> Assign:
    """A group in which everything counts differently."""
    plain = assignment(5, members=5, partitions=40).question
    candidates = {
        name: one._replace(weight=1 + place) for place, (name, one) in enumerate(plain.candidates.items())
    }
    weights, zones = {"t": {3: 7, 9: 2}}, {"t": {3: frozenset({"r", "s"}), 5: frozenset({"s"})}}
    return Assign("g", 5, assignor, Question(candidates, plain.topics, True, False, weights, zones))


def test_weights_and_zones_travel_with_the_work() -> None:
    """INC-161."""
    for assignor in ("uniform", "range"):
        work = weighed(assignor)
        assert work_of(lines_of_work(work)) == work
        assert answer_to(work) != answer_to(replace(work, question=replace(work.question, weights={})))


async def result(aside: Aside, work: Work) -> Assigned | Resolved:
    done: asyncio.Future[Assigned | Resolved] = asyncio.get_running_loop().create_future()
    aside.submit(work, done.set_result)
    return await asyncio.wait_for(done, LIMIT_S)


@pytest.fixture
async def aside() -> AsyncIterator[Aside]:
    started = Aside(limit_ms=30_000)
    yield started
    await started.stop()
    assert started.pid is None


async def test_it_answers_as_a_turn_of_the_shard_would(aside: Aside) -> None:
    names = (*(f"orders-{number}" for number in range(5_000)), "other")
    for work in (
        assignment(),
        assignment(2, members=1, partitions=5),
        Assign("g", 3, "range", Question({}, {}, True, True)),
        weighed("uniform"),
        weighed("range"),
        Resolve("g", 4, ("orders-1.*", "nothing", "oth[e]r"), names),
    ):
        assert await result(aside, work) == answer_to(work)


async def test_one_that_was_killed_is_begun_again(aside: Aside) -> None:
    work = assignment()
    await result(aside, work)
    pid = aside.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await result(aside, work) == answer_to(work)
    assert aside.pid not in (None, pid)


@pytest.mark.slow
@pytest.mark.row("TA-18")
async def test_one_that_hangs_is_ended_and_the_loop_goes_on_meanwhile() -> None:
    aside = Aside(limit_ms=6_000)
    try:
        work = assignment()
        while isinstance(await result(aside, work), Assigned) and aside.pid is None:
            pass  # a machine that is this busy: the process has to be there
        pid = aside.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        answer = asyncio.ensure_future(result(aside, work))
        turns = 0
        while not answer.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 1
        assert aside.pid != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        await aside.stop()


async def test_what_cannot_be_done_is_said_after_two_attempts() -> None:
    aside = Aside(limit_ms=30_000, program=(sys.executable, "-c", "pass"))
    try:
        assert await result(aside, assignment()) == Assigned("g", 1, None)
        assert await result(aside, Resolve("g", 2, ("a",), ("a",))) == Resolved("g", 2, None)
    finally:
        await aside.stop()


TALKS = """
import sys
sys.stdout.buffer.write(b"\\n")
while True:
    sys.stdout.buffer.write(b"[]\\n" * 10_000)
"""


async def test_one_that_writes_faster_than_it_is_read_is_ended_too() -> None:
    """Python's own wait for the end of a process waits for all that it wrote, and reads no more of it."""
    aside = Aside(limit_ms=60_000, program=(sys.executable, "-c", TALKS))
    aside.submit(assignment(), lambda _: None)

    def is_read_no_more() -> bool:
        process: Any = aside._process
        return process is not None and process.stdout._paused

    await until(is_read_no_more, "much of what it wrote waits")
    async with asyncio.timeout(LIMIT_S):
        await aside.stop()
    assert aside.pid is None


async def test_no_more_waits_than_may(aside: Aside) -> None:
    answers: list[Assigned | Resolved] = []
    for number in range(QUEUED_MAX + 2):
        aside.submit(assignment(number, members=1, partitions=1), answers.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [one for one in answers if isinstance(one, Assigned) and one.changes is None]
    assert [one.number for one in refused] == [QUEUED_MAX, QUEUED_MAX + 1]
