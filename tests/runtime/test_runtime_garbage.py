"""The garbage collector of a process that remembers much."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest
from kit.waiting import until
from muster_runtime import garbage
from muster_runtime.garbage import Collector


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


class Machine:
    """A clock and a memory that do as they are told.

    Attributes:
        step_s: how far the clock goes on each time that it is read.
        blocks: how large the process is.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self.blocks = 1_000
        self._now_s = 1_000.0

    def now_s(self) -> float:
        self._now_s += self.step_s
        return self._now_s

    def wait(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def collector(machine: Machine) -> AsyncIterator[Collector]:
    """A collector that runs, in a process of which nothing is set aside."""
    made = Collector(machine.now_s, lambda: machine.blocks)
    gc.unfreeze()  # a test before it may have started servers, whose imports are set aside
    gc.collect()
    with made.running():
        yield made
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("took_s", "set_aside"), [(garbage.LONG_S / 2, False), (2 * garbage.LONG_S, True)])
async def test_what_survived_a_long_collection_is_not_looked_at_again(
    collector: Collector, machine: Machine, took_s: float, set_aside: bool
) -> None:
    machine.step_s = took_s
    kept = Ring()
    gc.collect()
    assert (gc.get_freeze_count() > 0) is set_aside
    assert any(found is kept for found in gc.get_objects()) is not set_aside


@pytest.mark.slow
async def test_what_a_read_has_made_is_not_looked_at_when_it_ends(collector: Collector) -> None:
    with collector.left_alone(), collector.left_alone():
        assert not gc.isenabled()
        kept = Ring()
    assert gc.isenabled()
    assert not any(found is kept for found in gc.get_objects())


@pytest.mark.slow
async def test_garbage_among_what_was_set_aside_is_swept_up_when_the_process_has_grown(
    collector: Collector, machine: Machine
) -> None:
    with collector.left_alone():
        ring = Ring()
    left = weakref.ref(ring)
    del ring
    gc.collect()
    machine.blocks = 1_999
    assert not collector.sweep_if_due()
    assert left() is not None
    machine.blocks = 2_000
    assert collector.sweep_if_due()
    assert left() is None


@pytest.mark.slow
async def test_a_sweep_is_seldom_however_fast_the_process_grows(
    collector: Collector, machine: Machine
) -> None:
    machine.step_s = 0.5
    gc.collect()
    machine.blocks = 4_000
    assert collector.sweep_if_due()
    machine.blocks = 16_000
    machine.wait(400)
    assert not collector.sweep_if_due()
    machine.wait(2_000)
    assert collector.sweep_if_due()


async def test_nothing_is_swept_where_nothing_was_set_aside(collector: Collector, machine: Machine) -> None:
    machine.blocks = 1_000_000
    assert not collector.sweep_if_due()


async def swept(collector: Collector, *portions: list[object]) -> list[bool]:
    """Has a sweep of what is set aside go over all but some portions.

    Returns:
        Of each of them, whether the collector looked at anything of it.
    """
    looked_at: list[bool] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at[:] = [any(map(gc.is_tracked, portion)) for portion in portions]

    collector.in_use = lambda: iter(portions)
    gc.callbacks.append(seen)
    await collector._sweep()
    gc.callbacks.remove(seen)
    return looked_at


@pytest.mark.slow
async def test_a_sweep_does_not_look_at_what_is_in_use_and_finds_the_rest(
    collector: Collector, machine: Machine
) -> None:
    """LIM-18: a sweep of 100,000 groups held the loop for 0.4 s."""
    kept = [Ring() for _ in range(10)]
    with collector.left_alone():
        ring = Ring()
    left = weakref.ref(ring)
    del ring
    machine.blocks = 2_000
    assert await swept(collector, [kept], [*kept]) == [False, False]
    assert left() is None, "other garbage is found"
    assert gc.is_tracked(kept)
    assert all(map(gc.is_tracked, kept)), "what becomes garbage of it later is found"
    assert not any(found is kept for found in gc.get_objects()), "younger collections do not look at it"
    once = [weakref.ref(ring) for ring in kept]
    kept.clear()
    machine.blocks = 8_000
    machine.wait(10_000)
    assert await swept(collector) == []
    assert not any(ring() for ring in once)


@pytest.mark.slow
async def test_what_is_in_use_may_change_while_it_is_hidden(collector: Collector, machine: Machine) -> None:
    table: dict[str, object] = {"a": []}

    def portions() -> Iterator[list[object]]:
        yield [table]
        table["b"] = []  # the collector looks at it again
        yield [table["b"], table["b"]]

    with collector.left_alone():
        pass
    machine.blocks = 2_000
    collector.in_use = portions
    await collector._sweep()
    gc.unfreeze()
    assert sum(found is table for found in gc.get_objects()) == 1
    assert sum(found is table["b"] for found in gc.get_objects()) == 1


@pytest.mark.slow
async def test_others_go_on_while_what_is_in_use_is_hidden_and_shown(
    collector: Collector, machine: Machine
) -> None:
    """LIM-18: to hide what 100,000 groups are made of takes half a second."""
    kept: list[list[object]] = [[[] for _ in range(1_000)] for _ in range(10)]
    with collector.left_alone():
        pass
    machine.blocks = 2_000
    machine.step_s = 0.001
    hidden: list[int] = []

    async def others() -> None:
        while True:
            hidden.append(sum(not gc.is_tracked(one) for portion in kept for one in portion))
            await asyncio.sleep(0)

    beside = asyncio.get_running_loop().create_task(others())
    await swept(collector, *kept)
    beside.cancel()
    most = hidden.index(max(hidden))
    assert len({*hidden[:most]}) > 1, "hidden some at a time"
    assert len({*hidden[most:]}) > 5, "shown some at a time"


@pytest.mark.slow
async def test_a_sweep_that_is_ended_hides_nothing_any_more(collector: Collector, machine: Machine) -> None:
    kept: list[object] = [[], []]

    def portions() -> Iterator[list[object]]:
        yield kept
        raise asyncio.CancelledError

    machine.blocks = 2_000
    collector.in_use = portions
    with pytest.raises(asyncio.CancelledError):
        await collector._sweep()
    assert all(map(gc.is_tracked, kept))


@pytest.mark.slow
async def test_what_is_in_use_is_asked_for_before_a_sweep_that_is_due_and_not_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "SWEEP_CHECK_S", 0.01)
    asked: list[int] = []

    def portions() -> Iterator[list[object]]:
        asked.append(machine.blocks)
        yield [asked]

    made = Collector(machine.now_s, lambda: machine.blocks)
    made.in_use = portions
    gc.unfreeze()
    with made.running():
        with made.left_alone():
            ring = Ring()
        left = weakref.ref(ring)
        del ring
        await asyncio.sleep(0.1)
        assert not asked
        machine.blocks = 3_000
        await until(lambda: left() is None, "a sweep")
    assert asked == [3_000]
