"""G1 to G3, G5, G6, G9 to G13, G16 and M5: what the oldest snapshot of a trimmed log says of members."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from muster_core.audit.groups.form_parts import wrong_in_member
from muster_core.audit.groups.kept_tokens import Given
from muster_core.audit.invariants import Findings
from muster_core.position import Position
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
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
    for problem in chain(_of_both(places, max_size), _of_classic(group), _of_owners(group)):
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
    if group.state is not (state := _state_of(group)):
        yield Problem("G12", f"it is {group.state.name}, and has to be {state.name}")
    for member in group.members.values():
        for text in wrong_in_member(member.to_record()):
            yield Problem("G16", text)
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


def _state_of(group: Group) -> GroupState:
    """The state of a group by what else is said of it. The last one that left does not end its generation."""
    if not group.members and (group.unfinished is None or group.incremental is not None):
        return GroupState.EMPTY
    if group.assigned_generation == group.generation:
        return GroupState.STABLE
    return GroupState.COMPLETING_REBALANCE


def _of_owners(group: Group) -> Iterator[Problem]:
    """Who has a partition is who was given it last.

    What members were given in the generation before is still said of those that stay, of an earlier one
    nothing is; owners stay until the next assignment, also those that are gone by then.
    """
    members, age = group.members, group.generation - group.assigned_generation
    nobody_left = not age and group.unfinished is None
    nobody_is_there = not members and group.unfinished is None
    if nobody_left or nobody_is_there:
        strangers = {owner for owner, _ in group.owners.values()} - members.keys()
        if strangers:
            yield Problem("G3", f"{sorted(strangers)[:5]} have partitions, and are no members")
    if age > 1:
        if late := sorted(member_id for member_id, one in members.items() if one.assignment):
            yield Problem("G2", f"{late[:5]} have assignments of generation {group.assigned_generation}")
        return
    owned = {partition: token for partition, token in group.owners.items() if token[0] in members}
    given = _given_to(group)
    if odd := sorted(p for p in owned.keys() | given.keys() if _owner(owned, p) != _owner(given, p)):
        yield Problem("G12", f"who has {odd[:5]} is not who was given them")
    elif not group.reverted and (odd := sorted(p for p in owned if owned[p] != given[p])):
        yield Problem("G13", f"{odd[:5]} by other tokens than they were given by")


def _given_to(group: Group) -> Given:
    """Whom the assignments of members give what, and by which tokens."""
    given: Given = {}
    for member_id, member in group.members.items():
        given.update(zip(partitions_in(member.assignment), repeat((member_id, member.token))))
        for kept in member.kept_tokens:
            partition = kept.topic, kept.partition
            if _owner(given, partition) == member_id:
                given[partition] = member_id, Position.from_proto(kept.position)
    return given


def _owner(given: Given, partition: TopicPartition) -> str:
    return given[partition][0] if partition in given else ""


def _twice(names: Iterable[T]) -> list[T]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
