"""The timing wheel and the purgatory (conformance PT-01 to PT-11)."""

import random

import pytest
from muster_core.waiting.purgatory import DelayedOperation, Purgatory
from muster_core.waiting.timing_wheel import Timer, TimingWheel


class Note(Timer):
    def __init__(self, fired: list[tuple[int, int]], wheel: "Clock", name: int) -> None:
        super().__init__()
        self._fired, self._clock, self._name = fired, wheel, name

    def fire(self) -> None:
        self._fired.append((self._clock.now_ms, self._name))


class Clock:
    now_ms = 0


class Operation(DelayedOperation):
    def __init__(self, delay_ms: int, events: list[str], ready: bool = False) -> None:
        super().__init__(delay_ms)
        self.events, self.ready = events, ready

    def can_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> None:
        self.events.append("complete")

    def on_expiration(self) -> None:
        self.events.append("expire")


@pytest.mark.row("PT-10")
@pytest.mark.parametrize("seed", range(5))
def test_timers_fire_at_their_deadline_in_order(seed: int) -> None:
    rng = random.Random(seed)
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    deadlines = [
        rng.choice([rng.randrange(100), rng.randrange(10_000), rng.randrange(10**9)]) for _ in range(500)
    ]
    for index, deadline in enumerate(deadlines):
        wheel.arm(Note(fired, clock, index), deadline)
    while (due := wheel.next_deadline_ms()) is not None:
        assert due >= clock.now_ms
        clock.now_ms = due
        wheel.advance(due)
    assert [deadlines[name] for _, name in fired] == sorted(deadlines)
    assert all(at == deadlines[name] for at, name in fired)
    assert len(wheel) == 0


def test_one_big_jump_fires_in_the_order_of_deadlines() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    deadlines = [70_000, 65, 5_000, 64, 63, 4_096, 1]
    for index, deadline in enumerate(deadlines):
        wheel.arm(Note(fired, clock, index), deadline)
    wheel.advance(100_000)
    assert [deadlines[name] for _, name in fired] == sorted(deadlines)


@pytest.mark.row("PT-12")
def test_a_moved_timer_fires_once_at_its_last_deadline() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    timer = Note(fired, clock, 0)
    for deadline in (10, 500, 20, 1_000_000, 7_000):
        wheel.arm(timer, deadline)
    assert len(wheel) == 1
    wheel.advance(6_999)
    assert fired == []
    wheel.advance(7_000)
    assert len(fired) == 1
    wheel.advance(2_000_000)
    assert len(fired) == 1


@pytest.mark.row("PT-09")
def test_a_deadline_that_has_passed_fires_at_the_next_advance() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(1_000)
    wheel.arm(Note(fired, clock, 0), 5)
    wheel.advance(1_000)
    assert len(fired) == 1


@pytest.mark.row("PT-11")
def test_a_cancelled_timer_never_fires() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    timers = [Note(fired, clock, index) for index in range(3)]
    for timer in timers:
        wheel.arm(timer, 50)
    wheel.cancel(timers[1])
    wheel.cancel(timers[1])
    assert len(wheel) == 2
    wheel.advance(60)
    assert [name for _, name in fired] == [0, 2]
    assert wheel.next_deadline_ms() is None


class Raising(Note):
    def fire(self) -> None:
        super().fire()
        raise RuntimeError("unforeseen")


@pytest.mark.row("PT-15")
def test_a_timer_that_raises_is_gone_and_costs_the_others_nothing() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    for index, kind in enumerate((Note, Raising, Note, Note)):
        wheel.arm(kind(fired, clock, index), 50)
    with pytest.raises(RuntimeError, match="unforeseen"):
        wheel.advance(50)
    assert [name for _, name in fired] == [0, 1]
    assert (len(wheel), wheel.next_deadline_ms()) == (2, 50)
    wheel.advance(50)
    assert [name for _, name in fired] == [0, 1, 2, 3]
    assert len(wheel) == 0


@pytest.mark.row("PT-13")
def test_a_due_timer_that_another_one_moves_or_cancels_does_not_fire() -> None:
    clock, fired = Clock(), list[tuple[int, int]]()
    wheel = TimingWheel(0)
    cancelled, moved = Note(fired, clock, 1), Note(fired, clock, 2)

    class First(Note):
        def fire(self) -> None:
            super().fire()
            wheel.cancel(cancelled)
            wheel.arm(moved, 90)

    for timer in (First(fired, clock, 0), cancelled, moved):
        wheel.arm(timer, 50)
    wheel.advance(89)
    assert [name for _, name in fired] == [0]
    wheel.advance(90)
    assert [name for _, name in fired] == [0, 2]


def test_moving_a_deadline_later_files_nothing_anew() -> None:
    wheel = TimingWheel(0)
    timer = Note([], Clock(), 0)
    wheel.arm(timer, 1_000)
    slot = timer._slot
    for deadline in range(1_001, 2_000):
        wheel.arm(timer, deadline)
    assert timer._slot is slot


@pytest.mark.row("PT-01")
def test_an_operation_is_completed_by_its_key() -> None:
    events: list[str] = []
    purgatory = Purgatory(0)
    operation = Operation(100, events)
    assert not purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert purgatory.check_and_complete("a") == 0
    operation.ready = True
    assert purgatory.check_and_complete("b") == 1
    purgatory.advance(1_000)
    assert events == ["complete"]


@pytest.mark.row("PT-02")
@pytest.mark.row("PT-04")
def test_an_operation_expires_at_its_deadline_and_not_before() -> None:
    events: list[str] = []
    purgatory = Purgatory(0)
    purgatory.try_complete_else_watch(Operation(100, events), ["a"])
    purgatory.advance(99)
    assert events == []
    purgatory.advance(100)
    assert events == ["complete", "expire"]
    assert purgatory.check_and_complete("a") == 0


@pytest.mark.row("PT-06")
def test_cancelling_a_key_runs_nothing() -> None:
    events: list[str] = []
    purgatory = Purgatory(0)
    operation = Operation(100, events)
    purgatory.try_complete_else_watch(operation, ["a"])
    assert purgatory.cancel_for_key("a") == [operation]
    purgatory.advance(1_000)
    assert events == []


@pytest.mark.row("PT-07")
@pytest.mark.parametrize("end", ["event", "deadline", "cancelled"])
def test_a_completed_operation_is_kept_under_no_key(end: str) -> None:
    purgatory = Purgatory(0)
    waiting, operation = Operation(10**6, []), Operation(100, [])
    purgatory.try_complete_else_watch(waiting, ["shared"])
    purgatory.try_complete_else_watch(operation, ["own", "shared"])
    assert len(purgatory) == 3
    if end == "event":
        operation.ready = True
        assert purgatory.check_and_complete("own") == 1
    elif end == "deadline":
        purgatory.advance(100)
    else:
        purgatory.cancel_for_key("own")
    assert (len(purgatory), len(purgatory.wheel)) == (1, 1)
    waiting.ready = True
    assert purgatory.check_and_complete("shared") == 1
    assert (len(purgatory), len(purgatory.wheel)) == (0, 0)


@pytest.mark.parametrize("ready", [True, False])
def test_the_purgatory_says_whether_an_operation_is_complete(ready: bool) -> None:
    operation = Operation(10, [], ready)
    assert Purgatory(0).try_complete_else_watch(operation, ["a"]) is ready
    assert operation.completed is ready


def test_delays_count_from_the_latest_time_that_was_told() -> None:
    events: list[str] = []
    purgatory = Purgatory(100)
    purgatory.move_clock(50)
    purgatory.try_complete_else_watch(Operation(10, events), ["a"])
    purgatory.advance(109)
    assert events == []
    purgatory.advance(110)
    assert events == ["complete", "expire"]
