"""G1, G2, G5, G6, G9 to G11 and M5: what the snapshot that a trimmed log begins with says of members."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from muster_core.audit.invariants import Findings
from muster_core.position import Position
from muster_core.state.group import Group
from muster_core.state.published import TopicPartition, partitions_in

T = TypeVar("T", str, TopicPartition)


class Problem(NamedTuple):
    """What cannot be: the promise that is broken, and how."""

    invariant: str
    text: str


def check_members(group: Group, max_size: int, position: Position, findings: Findings) -> None:
    """Checks that a group can have the members that it is said to have; what is said is believed then.

    Args:
        group: as the snapshot has it, of either kind.
        max_size: members that a group may have.
        position: where the snapshot ends.
        findings: takes the results.
    """
    places = _places(group)
    findings.checked["G11"] += 1
    findings.checked["G10"] += len(places)
    for problem in chain(_of_both(places, max_size), _of_classic(group)):
        text = f"group {group.group_id!r}, by the oldest snapshot: {problem.text}"
        findings.broke(problem.invariant, position, text)


def _places(group: Group) -> list[tuple[str, str]]:
    """Members with their static ids."""
    if group.incremental is not None:
        rows = group.incremental.members.items()
        return [(member_id, member.told.group_instance_id) for member_id, member in rows]
    return [(member_id, member.group_instance_id) for member_id, member in group.members.items()]


def _of_both(places: list[tuple[str, str]], max_size: int) -> Iterator[Problem]:
    if len(places) > max_size:
        yield Problem("G11", f"{len(places)} members of at most {max_size}")
    if any(not member_id for member_id, _ in places):
        yield Problem("M5", "a member without an id")
    if double := _twice(static for _, static in places if static):
        yield Problem("G10", f"two members have the static ids {double[:5]}")


def _of_classic(group: Group) -> Iterator[Problem]:
    if group.members and group.generation < 1:
        yield Problem(
            "G1", f"members {sorted(group.members)[:5]}, and it is in generation {group.generation}"
        )
    if group.assigned_generation > group.generation:
        assigned = f"generation {group.assigned_generation} has an assignment"
        yield Problem("G2", f"{assigned}, and it is in {group.generation}")
    if double := _twice(chain.from_iterable(partitions_in(one.assignment) for one in group.members.values())):
        yield Problem("G9", f"{double[:5]} are given twice")
    if group.reverted:  # it has neither before its next generation
        return
    if group.leader not in group.members if group.members else group.leader:
        yield Problem("G5", f"leader {group.leader!r} of members {sorted(group.members)[:5]}")
    if group.unfinished is not None:  # a new process of a member may support something else
        return
    chosen = group.protocol_name
    without = [
        member_id
        for member_id, member in group.members.items()
        if chosen not in [name for name, _ in member.terms.protocols]
    ]
    if without:
        yield Problem("G6", f"{without[:5]} do not support {chosen!r}")


def _twice(names: Iterable[T]) -> list[T]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
