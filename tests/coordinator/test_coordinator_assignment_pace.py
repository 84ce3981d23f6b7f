"""How much of the loop assignments take (docs/safety.md, LIM-69)."""

import itertools

import pytest
from muster_coordinator.shard.assignment_pace import AssignmentPace
from muster_coordinator.shard.process_room import ProcessRoom

SIZE = 1_000
TAKES_MS = 17
"""What an assignment takes that moves so many partitions."""
AT_ONCE = 100 // TAKES_MS + 1
"""So many of them take a tenth of a second."""


class Fleet:
    """Groups whose names begin with that of their caller, and time."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.pace = AssignmentPace(lambda group_id: group_id.partition("-")[0], lambda: self.now_ms)

    def waits_ms(self, group_id: str, size: int = SIZE) -> int:
        return self.pace.turn_ms(group_id, size)


def test_assignments_of_a_caller_have_a_fifth_of_the_loop_when_they_have_taken_much() -> None:
    fleet = Fleet()
    assert [fleet.waits_ms("a-1") for _ in range(AT_ONCE)] == [0] * AT_ONCE
    waits_ms = [fleet.waits_ms(f"a-{number}") for number in range(4)]
    assert [later - earlier for earlier, later in itertools.pairwise(waits_ms)] == [5 * TAKES_MS] * 3
    assert waits_ms[0] == 5 * (AT_ONCE * TAKES_MS - 100)


def test_who_has_waited_long_enough_begins_at_once_again() -> None:
    fleet = Fleet()
    for _ in range(AT_ONCE):
        fleet.waits_ms("a-1")
    fleet.now_ms += 5 * (AT_ONCE * TAKES_MS - 100)
    assert not fleet.waits_ms("a-1")
    fleet.now_ms += 60_000
    assert [fleet.waits_ms("a-1") for _ in range(AT_ONCE)] == [0] * AT_ONCE, "time is not saved up"
    assert fleet.waits_ms("a-1")


def test_a_caller_does_not_wait_for_another_one() -> None:
    fleet = Fleet()
    assert not fleet.waits_ms("a-1", 1_000_000)
    assert fleet.waits_ms("a-2") > 60_000
    assert not fleet.waits_ms("b-1")


def test_what_an_assignment_leaves_alone_takes_less() -> None:
    fleet = Fleet()
    for _ in range(AT_ONCE):
        fleet.waits_ms("a-1")
        fleet.pace.left_alone("a-1", SIZE)
    assert not fleet.waits_ms("a-1", 100 // TAKES_MS)


def test_callers_who_owe_nothing_are_forgotten() -> None:
    fleet = Fleet()
    for number in range(5_000):
        fleet.waits_ms(f"{number}-1", 10)
        fleet.now_ms += 1
    assert fleet.pace.known <= 1_000
    fleet.waits_ms("a-1", 1_000_000)
    for number in range(5_000):
        fleet.waits_ms(f"{number}-2", 10)
        fleet.now_ms += 1
    assert fleet.waits_ms("a-1") > 0, "who owes much is not forgotten"


@pytest.mark.parametrize("whose", ["a", ""])
def test_shards_of_a_process_have_one_pace(whose: str) -> None:
    room = ProcessRoom(list, lambda: 1_000, lambda _: None, whose=lambda _: whose).room
    assert not room.turn_ms("g", 1_000_000)
    assert room.turn_ms("h", 1)
    room.left_alone("g", 1_000_000)
    assert room.turn_ms("h", 1) < 60_000
