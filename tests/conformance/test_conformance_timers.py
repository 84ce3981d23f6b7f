"""Rows PT that tests/core/test_core_timing.py does not have: completion once, timers that move and go."""

import pytest
from muster_core.waiting.purgatory import DelayedOperation, Purgatory
from muster_core.waiting.timing_wheel import Timer, TimingWheel


class _Operation(DelayedOperation):
    def __init__(self, delay_ms: int, done: list[str]) -> None:
        super().__init__(delay_ms)
        self.ready, self.done = False, done

    def can_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> None:
        self.done.append("complete")

    def on_expiration(self) -> None:
        self.done.append("expire")


class _Chain(Timer):
    """Does something to another timer when it fires."""

    def __init__(self, wheel: TimingWheel, fired: list[str], name: str) -> None:
        super().__init__()
        self.wheel, self.fired, self.name = wheel, fired, name
        self.cancels: Timer | None = None
        self.moves: Timer | None = None

    def fire(self) -> None:
        self.fired.append(self.name)
        if self.cancels is not None:
            self.wheel.cancel(self.cancels)
        if self.moves is not None:
            self.wheel.arm(self.moves, self.deadline_ms + 100)


@pytest.mark.row("PT-03")
@pytest.mark.row("PT-04")
@pytest.mark.parametrize("first", ["event", "deadline"])
def test_an_operation_is_completed_once(first: str) -> None:
    done: list[str] = []
    purgatory = Purgatory(0)
    operation = _Operation(100, done)
    purgatory.try_complete_else_watch(operation, ["k"])
    operation.ready = True
    if first == "event":
        assert purgatory.check_and_complete("k") == 1
    purgatory.advance(100)
    assert purgatory.check_and_complete("k") == 0
    purgatory.advance(10_000)
    assert done == (["complete"] if first == "event" else ["complete", "expire"])


@pytest.mark.row("PT-12")
def test_a_timer_that_is_set_again_replaces_itself() -> None:
    fired: list[str] = []
    wheel = TimingWheel(0)
    timer = _Chain(wheel, fired, "t")
    for deadline_ms in (50, 500, 5):
        wheel.arm(timer, deadline_ms)
        assert len(wheel) == 1
    wheel.advance(4)
    assert fired == []
    wheel.advance(1_000)
    assert fired == ["t"]


@pytest.mark.row("PT-13")
@pytest.mark.parametrize("same_deadline", [True, False])
@pytest.mark.parametrize("what", ["cancels", "moves"])
def test_what_is_due_and_is_cancelled_or_moved_first_does_nothing(what: str, same_deadline: bool) -> None:
    fired: list[str] = []
    wheel = TimingWheel(0)
    first, second = _Chain(wheel, fired, "first"), _Chain(wheel, fired, "second")
    setattr(first, what, second)
    wheel.arm(first, 10)
    wheel.arm(second, 10 if same_deadline else 11)
    wheel.advance(20)
    assert fired == ["first"]
    wheel.advance(109)
    assert fired == ["first"]
    wheel.advance(110)
    assert fired == (["first", "second"] if what == "moves" else ["first"])
