"""What an assignor returns is refused unless each partition has one owner who wants it."""

from typing import Any

import pytest
from muster_assignors import (
    AssignmentRefused,
    Assignor,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    check_assignment,
)

T0, T1, T2, U0 = (
    TopicPartition("t", 0),
    TopicPartition("t", 1),
    TopicPartition("t", 2),
    TopicPartition("u", 0),
)
MEMBERS = {
    "m": MemberSnapshot("m", ("t", "u"), owned=(T1,), keeps_owned=True),
    "n": MemberSnapshot("n", ("t",), owned=(T0,)),
}
GROUP = GroupSnapshot(MEMBERS, {"t": TopicSnapshot(2), "u": TopicSnapshot(1)})


def check(assignment: Any, *, cooperative: bool = False) -> None:
    check_assignment(Assignor("mine", lambda _: {}, cooperative=cooperative), GROUP, assignment)


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ([("m", [T0])], "it returned list, not a mapping"),
        ({"stranger": [T0]}, "it assigned to 'stranger', which is not a member"),
        ({"m": 7}, "it assigned int to 'm', not a list of partitions"),
        ({"m": [T2]}, "it assigned t-2, which does not exist"),
        ({"m": [TopicPartition("t", -1)]}, "it assigned t--1, which does not exist"),
        ({"m": [("t", 0.0), ("t", 1), ("u", 0)]}, "it assigned t-0.0"),
        ({"n": [U0]}, "it assigned u-0 to 'n', which does not want the topic"),
        ({"m": [T0], "n": [T0]}, "it assigned t-0 to 'm' and to 'n'"),
        ({"m": [T0, T0, T1, U0]}, "it assigned t-0 to 'm' and to 'm'"),
        ({"m": [T0], "n": [T1]}, "it left out u-0: each partition needs an owner"),
        ({"m": [U0]}, "it left out t-0 and 1 more: each partition needs an owner"),
        ({}, "it left out t-0 and 2 more"),
    ],
)
def test_what_is_no_assignment_is_refused(assignment: Any, why: str) -> None:
    with pytest.raises(AssignmentRefused) as caught:
        check(assignment)
    assert why in str(caught.value)


def test_a_removed_partition_is_given_to_nobody() -> None:
    group = GroupSnapshot(MEMBERS, {"t": TopicSnapshot(3, removed=frozenset({1})), "u": TopicSnapshot(1)})
    assignor = Assignor("mine", lambda _: {})
    check_assignment(assignor, group, {"m": [T0, U0], "n": [T2]})
    with pytest.raises(AssignmentRefused, match="it assigned t-1, which was removed"):
        check_assignment(assignor, group, {"m": [T0, U0], "n": [T1, T2]})


def test_each_partition_with_one_owner_is_an_assignment() -> None:
    check({"m": [T0, U0], "n": [T1]})
    check({"m": [("t", 0), ("t", 1), ("u", 0)]})


def test_a_cooperative_assignor_may_leave_out_what_a_member_is_to_release() -> None:
    check({"m": [U0], "n": [T0]}, cooperative=True)
    with pytest.raises(AssignmentRefused, match="left out t-1:"):
        check({"m": [U0], "n": [T0]})
    with pytest.raises(AssignmentRefused, match="left out t-0:"):
        check({"m": [U0], "n": [T1]}, cooperative=True)
