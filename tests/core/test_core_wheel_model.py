"""The timing wheel beside a sorted list: timers that come, move and go, and far deadlines."""

import random

import pytest
from muster_core.waiting.timing_wheel import Timer, TimingWheel

FARTHEST_MS = 2**48 - 1


class Bell(Timer):
    """Notes when it rings."""

    def __init__(self, rung: list["Bell"]) -> None:
        super().__init__()
        self._rung = rung

    def fire(self) -> None:
        assert not self.armed
        self._rung.append(self)


@pytest.mark.row("PT-10")
@pytest.mark.row("PT-11")
@pytest.mark.row("PT-12")
@pytest.mark.parametrize("seed", range(12))
def test_a_wheel_rings_what_a_sorted_list_would(seed: int) -> None:
    rng = random.Random(seed)
    now_ms = rng.choice([0, 1, 63, 64, 4_095, 4_096, 10**6, 10**12])
    wheel, rung = TimingWheel(now_ms), list[Bell]()
    bells = [Bell(rung) for _ in range(20)]
    model: dict[Bell, int] = {}
    for _ in range(400):
        bell, action = rng.choice(bells), rng.random()
        if action < 0.5:
            delay_ms = rng.choice([0, 1, 62, 63, 64, 65, 127, 128, 4_095, 4_096, 4_097, rng.randrange(10**6)])
            wheel.arm(bell, now_ms + delay_ms)
            model[bell] = now_ms + delay_ms
        elif action < 0.6:
            wheel.cancel(bell)
            model.pop(bell, None)
        else:
            earliest_ms = min(model.values(), default=now_ms)
            to_ms = rng.choice(
                [now_ms, now_ms - 5, now_ms + 1, earliest_ms - 1, earliest_ms, earliest_ms + 70]
            )
            now_ms = max(now_ms, to_ms)
            wheel.advance(to_ms)
            due = sorted(deadline_ms for deadline_ms in model.values() if deadline_ms <= now_ms)
            assert [model.pop(one) for one in rung] == due
            rung.clear()
        assert len(wheel) == len(model)
        assert all(one.armed is (one in model) for one in bells)
        assert all(one.deadline_ms == deadline_ms for one, deadline_ms in model.items())
        next_ms = wheel.next_deadline_ms()
        assert (next_ms is None) is (not model)
        if next_ms is not None:
            assert next_ms <= min(model.values())


@pytest.mark.parametrize("deadline_ms", [1, 63, 64, 4_096, 10**9, 2**42, FARTHEST_MS])
def test_a_far_deadline_is_reached_in_a_few_steps_and_never_late(deadline_ms: int) -> None:
    wheel, rung = TimingWheel(0), list[Bell]()
    bell = Bell(rung)
    wheel.arm(bell, deadline_ms)
    steps = 0
    while (next_ms := wheel.next_deadline_ms()) is not None:
        assert next_ms <= deadline_ms
        wheel.advance(next_ms - 1)
        assert rung == []
        wheel.advance(next_ms)
        steps += 1
    assert rung == [bell]
    assert steps <= 8, "one for each level"


@pytest.mark.row("PT-12")
def test_a_timer_that_is_set_again_to_the_same_time_keeps_its_turn() -> None:
    wheel, rung = TimingWheel(0), list[Bell]()
    first, second = Bell(rung), Bell(rung)
    wheel.arm(first, 50)
    wheel.arm(second, 50)
    wheel.arm(first, 50)
    wheel.advance(50)
    assert rung == [first, second]


@pytest.mark.row("PT-11")
def test_cancelled_timers_leave_nothing_to_wake_for() -> None:
    wheel, rung = TimingWheel(0), list[Bell]()
    early, late = Bell(rung), Bell(rung)
    wheel.arm(early, 10)
    wheel.arm(late, 20)
    wheel.cancel(early)
    assert (wheel.next_deadline_ms(), len(wheel)) == (20, 1)
    wheel.cancel(late)
    assert (wheel.next_deadline_ms(), len(wheel)) == (None, 0)
    wheel.arm(early, 15)
    assert (wheel.next_deadline_ms(), len(wheel)) == (15, 1)


@pytest.mark.row("PT-09")
@pytest.mark.parametrize("behind_ms", [0, 1, 1_000])
def test_a_deadline_of_the_past_rings_at_once_and_not_before_its_turn(behind_ms: int) -> None:
    wheel, rung = TimingWheel(1_000), list[Bell]()
    bell = Bell(rung)
    wheel.arm(bell, 1_000 - behind_ms)
    assert wheel.next_deadline_ms() == 1_000
    wheel.advance(999)
    assert rung == [bell], "time that runs backwards stands still"


@pytest.mark.row("PT-15")
def test_a_bell_that_raises_leaves_the_others_where_they_were_moved_to() -> None:
    wheel, rung = TimingWheel(0), list[Bell]()
    moved, waiting = Bell(rung), Bell(rung)

    class Broken(Bell):
        def fire(self) -> None:
            wheel.arm(moved, 90)
            raise RuntimeError("unforeseen")

    for bell in (Broken(rung), moved, waiting):
        wheel.arm(bell, 50)
    with pytest.raises(RuntimeError, match="unforeseen"):
        wheel.advance(70)
    assert len(wheel) == 2
    wheel.advance(89)
    assert rung == [waiting]
    wheel.advance(90)
    assert rung == [waiting, moved]
