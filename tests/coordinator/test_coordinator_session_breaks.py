"""Which breaks of streams are the network, and what a shard that is lost does to a stream."""

import asyncio
from typing import Any

import pytest
from coordinator.coordinator_cluster import group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from coordinator.session_client import Session, stable
from kit.waiting import until, until_equal
from muster_coordinator.session.breaks import Breaks
from muster_coordinator.settings import SessionSettings
from muster_core import error_code
from pydantic import ValidationError


class FakeStream:
    def __init__(self, *, attached: bool = True, silent: bool = False) -> None:
        self.attached = attached
        self.is_silent = silent
        self.verdicts: list[bool] = []
        self.ago_ms = -1

    def silent(self, _: int) -> bool:
        return self.is_silent

    def broken(self, *, suspect: bool, ago_ms: int = 0) -> None:
        self.verdicts.append(suspect)
        self.ago_ms = ago_ms


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def judged(broken: int, alive: int, silent: int = 0, idle: int = 0) -> list[bool]:
    """Breaks so many of some streams; returns the verdicts."""
    streams = [FakeStream() for _ in range(broken + alive)]
    streams += [FakeStream(silent=True) for _ in range(silent)]
    streams += [FakeStream(attached=False, silent=True) for _ in range(idle)]
    left = list(streams)
    breaks = Breaks(left, 1, 1_000, Clock())
    for stream in streams[:broken]:
        left.remove(stream)
        breaks.broke(stream)
    await until(lambda: all(stream.verdicts for stream in streams[:broken]))
    assert not any(stream.verdicts for stream in streams[broken:])
    return [verdict for stream in streams[:broken] for verdict in stream.verdicts]


@pytest.mark.parametrize(
    ("streams", "suspect"),
    [
        ({"broken": 1, "alive": 0}, True),
        ({"broken": 1, "alive": 9}, True),
        ({"broken": 2, "alive": 0}, True),
        ({"broken": 2, "alive": 1}, True),
        ({"broken": 3, "alive": 0}, False),
        ({"broken": 3, "alive": 2}, False),
        ({"broken": 3, "alive": 3}, True),
        ({"broken": 1, "alive": 1, "silent": 2}, False),
        ({"broken": 1, "alive": 2, "silent": 2}, False),
        ({"broken": 1, "alive": 3, "silent": 2}, True),
        ({"broken": 3, "alive": 2, "idle": 20}, False),
        ({"broken": 1, "alive": 2, "idle": 20}, True),
    ],
)
async def test_most_streams_are_three_and_more_than_half(streams: dict[str, int], suspect: bool) -> None:
    assert set(await judged(**streams)) == {suspect}


async def test_a_verdict_says_how_long_ago_each_stream_broke() -> None:
    """Their members' grace has begun then, and not with the verdict."""
    clock = Clock()
    left = [FakeStream() for _ in range(5)]
    breaks = Breaks(left, 1, 1_000, clock)
    first, second = left.pop(), left.pop()
    breaks.broke(first)
    clock.now_ms += 150
    breaks.broke(second)
    clock.now_ms += 100
    await until(lambda: first.verdicts == second.verdicts == [True])
    assert (first.ago_ms, second.ago_ms) == (250, 100)


async def test_later_breaks_are_put_down_to_the_network_for_a_while() -> None:
    clock = Clock()
    left = [FakeStream() for _ in range(20)]
    breaks = Breaks(left, 1, 1_000, clock)
    first = [left.pop() for _ in range(11)]
    for stream in first:
        breaks.broke(stream)
    await until(lambda: all(stream.verdicts == [False] for stream in first))
    late = left.pop()
    clock.now_ms += 999
    breaks.broke(late)
    assert late.verdicts == [False]
    later = left.pop()
    clock.now_ms += 1
    breaks.broke(later)
    await until_equal(lambda: later.verdicts, [True])


async def test_a_stopped_judge_says_nothing() -> None:
    left = [FakeStream() for _ in range(5)]
    breaks = Breaks(left, 1, 1_000, Clock())
    stream = left.pop()
    breaks.broke(stream)
    breaks.stop()
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, done.set)
    await done.wait()
    assert not stream.verdicts


@pytest.mark.parametrize(
    "fields",
    [
        {"max_streams": 0},
        {"max_members": 0},
        {"max_frames": 0},
        {"max_open_calls": 0},
        {"max_queued_bytes": 1},
        {"hello_timeout_ms": 1},
        {"write_timeout_ms": 1},
        {"max_silence_ms": 1},
        {"max_age_ms": 1},
        {"break_window_ms": 2_001},
        {"break_hold_ms": -1},
    ],
)
def test_settings_have_bounds(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SessionSettings(**fields)


@pytest.mark.cluster
async def test_members_of_a_shard_that_was_lost_are_told_and_may_come_back(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, group = single.caller(coordinator), group_of(2, 0, SHARDS)
    joined = await stable(caller, group)
    session = await Session(caller.channel).hello()
    assert (await session.attach(group, joined)).shard_epoch == 1
    await single.claim(2)
    await caller.commit(group, 1, joined)
    moved = (await session.until(lambda: session.said("coordinator_moved")))[0]
    assert (moved.member_id, moved.coordinator.node_id) == (joined.member_id, "")
    async with asyncio.timeout(60):
        result = await session.attach(group, joined)
        while result.error_code != error_code.NONE:
            assert result.error_code in (
                error_code.COORDINATOR_NOT_AVAILABLE,
                error_code.COORDINATOR_LOAD_IN_PROGRESS,
            )
            result = await session.attach(group, joined)
    assert result.shard_epoch > 1
    assert not (await session.beat()).unheard
    await session.close()


@pytest.mark.cluster
async def test_members_of_a_failed_shard_are_unheard(single: RealCluster) -> None:
    coordinator = await single.add("a")
    await owns(coordinator, SHARDS)
    caller, groups = single.caller(coordinator), [group_of(1, 0, SHARDS), group_of(2, 0, SHARDS)]
    session = await Session(caller.channel).hello()
    for group in groups:
        await session.attach(group, await stable(caller, group))
    coordinator.shards[2]._fail("the test says so")
    unheard = (await session.beat()).unheard
    assert [(u.group_id, u.error_code) for u in unheard] == [
        (groups[1], error_code.COORDINATOR_NOT_AVAILABLE)
    ]
    await session.close()
