"""What large groups leave when they end."""

import asyncio
import itertools
import time

import pytest
from muster_coordinator.shard.ended_groups import AT_ONCE, EndedGroups
from muster_core.state.group import Group
from muster_core.state.offsets.offset_store import CommittedOffset, OffsetStore

pytestmark = pytest.mark.quick


def group(offsets: int) -> Group:
    made = Group("g", 0, 1)
    for number in range(offsets):
        made.offsets.put(("t", number), CommittedOffset(1, -1, "", 1, 0))
    return made


async def test_offsets_of_groups_that_ended_are_given_up_some_at_a_time() -> None:
    """LIM-55: half a million at a stretch held the loop for 60 ms."""
    groups = [group(2 * AT_ONCE), group(AT_ONCE + 1)]
    ended = EndedGroups()
    for one in groups:
        ended.take(one)
    seen = [sum(len(one.offsets) for one in groups)]
    while seen[-1]:
        await asyncio.sleep(0)
        seen.append(sum(len(one.offsets) for one in groups))
    steps = [before - after for before, after in itertools.pairwise(seen)]
    assert max(steps) == AT_ONCE


async def test_offsets_are_given_up_in_a_fifth_of_the_loops_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-55: with half of it they, and removals that have the other half, left nothing to all others."""
    took_s, steps, times, over = 0.005, 4, list[float](), asyncio.Event()

    def clear_some(_store: OffsetStore, _most: int) -> bool:
        times.append(time.monotonic())
        time.sleep(took_s)
        if len(times) == steps:
            over.set()
        return over.is_set()

    monkeypatch.setattr(OffsetStore, "clear_some", clear_some)
    EndedGroups().take(group(AT_ONCE + 1))
    await asyncio.wait_for(over.wait(), 30)
    shortest_s = min(after - before for before, after in itertools.pairwise(times))
    assert shortest_s > 4.5 * took_s  # timers have a grain


async def test_small_groups_go_at_once() -> None:
    ended, small = EndedGroups(), group(AT_ONCE)
    ended.take(small)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(small.offsets) == AT_ONCE, "nobody works on it"
