"""Trimmed logs that say otherwise than their oldest snapshot: one was forged, and all hashes made right."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from kit.logs.forged_members import ONE, generation_with
from kit.logs.incremental_log import with_incremental_group
from kit.logs.log_builder import LogBuilder
from kit.logs.marked_logs import MARKED, Change, Hurt, as_it_is, marked, trimmed
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY, Member
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member as ClassicMember


class Front(NamedTuple):
    """A log of the corpus: what is wrong with it, the promise that it breaks, and how it is made.

    `change`: what the snapshot says otherwise.
    """

    name: str
    invariant: str
    make: Callable[[LogBuilder], None]
    hurt: Hurt
    change: Change


def _incremental(state: Shard) -> IncrementalGroup:
    return next(group.incremental for group in state.groups.values() if group.incremental is not None)


def _member_becomes(**values: Any) -> Change:
    def change(state: Shard) -> None:
        group = _incremental(state)
        group.put(replace(group.members["a"], **values))

    return change


def _told_otherwise(**values: Any) -> Change:
    def change(state: Shard) -> None:
        group = _incremental(state)
        member: Member = group.members["a"]
        group.put(replace(member, told=replace(member.told, **values)))

    return change


def _away(state: Shard) -> None:
    group = _incremental(state)
    group.put(replace(group.members["a"], epoch=AWAY))


def _wanted_twice(state: Shard) -> None:
    group = _incremental(state)
    group.put(replace(group.members["b"], target=group.members["a"].target))


def _epoch_less(state: Shard) -> None:
    _incremental(state).epoch -= 1


def _another_identity(state: Shard) -> None:
    member = next(iter(state.groups.values())).members["z"]
    record = member.to_record()
    record.identity = "bob"
    member.adopt(record)


def _no_member(state: Shard) -> None:
    group = next(iter(state.groups.values()))
    group.remove("z")


def _another_offset(state: Shard) -> None:
    offsets = next(iter(state.groups.values())).offsets
    partition, found = next(iter(offsets))
    offsets.put(partition, found._replace(offset=found.offset + 1))


def _no_group(state: Shard) -> None:
    state.groups.pop(next(iter(state.groups)))


def _bound(built: LogBuilder) -> None:
    """A member of somebody, and a commit of it."""
    generation_with(built, 2, "z", "alice", ONE)
    built.commit(2, "z", 20)


def _of_both_kinds(built: LogBuilder) -> None:
    with_incremental_group(built)


def _target_ahead(state: Shard) -> None:
    group = _incremental(state)
    group.target_epoch = group.epoch + 1


def _owners_ahead(state: Shard) -> None:
    next(iter(state.groups.values())).owners = {("t", 0): ("z", Position(9, 900))}


def _held_ahead(state: Shard) -> None:
    group = _incremental(state)
    member = group.members["a"]
    held = {partition: one._replace(token=Position(9, 900)) for partition, one in member.held.items()}
    group.put(replace(member, held=held))


def _two_members(built: LogBuilder) -> None:
    """Members `y` and `z=s` of a classic group that has its assignment."""
    built.generation(2, "y", "z=s")
    built.assignment(2, leader="y", y=[0], z=[1])
    built.commit(2, "z", 20)


def _classic(state: Shard) -> Group:
    return next(iter(state.groups.values()))


def _given_twice(state: Shard) -> None:
    group = _classic(state)
    group.assign(group.members["y"], group.members["z"].assignment)


def _led_by_a_stranger(state: Shard) -> None:
    _classic(state).leader = "stranger"


def _another_protocol(state: Shard) -> None:
    _classic(state).protocol_name = "sticky"


def _without_a_generation(state: Shard) -> None:
    _classic(state).generation = _classic(state).assigned_generation = 0


def _without_an_id(state: Shard) -> None:
    members = _classic(state).members
    members[""] = members.pop("y")
    members[""].member_id = ""


def _assigned_ahead(state: Shard) -> None:
    _classic(state).assigned_generation = 3


def _too_many(state: Shard) -> None:
    group = _classic(state)
    record = group.members["y"].to_record()
    for number in range(GroupConfig().max_size):
        member = ClassicMember(f"m{number}")
        member.adopt(record)
        group.add(member)


def _no_session(state: Shard) -> None:
    member = _classic(state).members["y"]
    record = member.to_record()
    record.session_timeout_ms = 0
    member.adopt(record)


def _owned_by_a_stranger(state: Shard) -> None:
    _classic(state).owners["t", 0] = ("stranger", _classic(state).members["y"].token)


def _owned_by_another(state: Shard) -> None:
    _classic(state).owners["t", 0] = _classic(state).owners["t", 1]


def _owned_by_nobody(state: Shard) -> None:
    del _classic(state).owners["t", 0]


def _another_token(state: Shard) -> None:
    member_id, since = _classic(state).owners["t", 0]
    _classic(state).owners["t", 0] = member_id, Position(since.epoch, since.offset - 1)


def _given_and_not_had(state: Shard) -> None:
    """Also where a generation that has no assignment yet follows the one that has."""
    group = _classic(state)
    group.assign(group.members["y"], b"")


def _given_long_ago(state: Shard) -> None:
    _classic(state).assigned_generation = 1


def _another_state(state: Shard) -> None:
    _classic(state).state = GroupState.EMPTY


def _rebalancing(built: LogBuilder) -> None:
    """The same members and a third one in a generation that has no assignment yet; what they had stays."""
    _two_members(built)
    built.generation(3, "y", "z=s", "x")
    built.commit(3, "z", 21)


def _left(built: LogBuilder) -> None:
    """The dynamic member is gone, and owns what it had until the next assignment."""
    _two_members(built)
    built.left(2, "y")
    built.commit(2, "z", 21)


def _empty(built: LogBuilder) -> None:
    """Nobody is there any more, which its last generation says."""
    _two_members(built)
    built.generation(3)
    built.commit(-1, "", 21)


def _owned(state: Shard) -> None:
    _classic(state).owners["t", 0] = ("y", Position(1, 1))


def _a_static_id_of_two(state: Shard) -> None:
    group = _incremental(state)
    told = replace(group.members["a"].told, group_instance_id="s")
    group.members["a"] = replace(group.members["a"], told=told)


def _front(
    name: str,
    invariant: str,
    make: Callable[[LogBuilder], None],
    change: Change,
    groups: int,
    begin: int = 12,
) -> Front:
    """The snapshot, changed, is the last thing; the log begins at some place before its end."""

    def built_and_marked(built: LogBuilder) -> None:
        make(built)
        marked(change, len(built.entries) - 1, groups=groups)(built)

    return Front(name, invariant, built_and_marked, trimmed(begin, change, MARKED), change)


_CLASSIC: dict[str, tuple[str, Change, int]] = {
    "a trimmed log with its members": ("–", as_it_is, 1),
    "another identity than before the oldest snapshot": ("G18", _another_identity, 1),
    "another offset than before the oldest snapshot": ("O2", _another_offset, 1),
    "a member less than before the oldest snapshot": ("G12", _no_member, 1),
    "a group less than before the oldest snapshot": ("G12", _no_group, 0),
    "a token from after the end of the oldest snapshot": ("G13", _owners_ahead, 1),
}

_INCREMENTAL: dict[str, tuple[str, Change]] = {
    "a trimmed log with an incremental group": ("–", as_it_is),
    "an epoch below that before the oldest snapshot": ("I4", _epoch_less),
    "a member at another epoch than before the oldest snapshot": ("I3", _member_becomes(epoch=1)),
    "a member of another than before the oldest snapshot": ("G18", _told_otherwise(identity="bob")),
    "other topics than before the oldest snapshot": ("G12", _told_otherwise(topics=frozenset())),
}

_STORED: dict[str, tuple[str, Change]] = {
    "nothing but the snapshot of an incremental group": ("–", as_it_is),
    "a member beyond the target in the oldest snapshot": ("I3", _member_becomes(epoch=9)),
    "a target beyond the epoch in the oldest snapshot": ("I4", _target_ahead),
    "a target for two in the oldest snapshot": ("I5", _wanted_twice),
    "a dynamic member that is away in the oldest snapshot": ("I6", _away),
    "a token from after its end in the oldest snapshot": ("I7", _held_ahead),
    "a static id for two incremental members in the oldest snapshot": ("G10", _a_static_id_of_two),
}

_STORED_CLASSIC: dict[str, tuple[str, Change]] = {
    "nothing but the snapshot of a classic group": ("–", as_it_is),
    "an assignment of a later generation in the oldest snapshot": ("G2", _assigned_ahead),
    "a leader that is no member in the oldest snapshot": ("G5", _led_by_a_stranger),
    "a protocol that nobody supports in the oldest snapshot": ("G6", _another_protocol),
    "a partition that is given twice in the oldest snapshot": ("G9", _given_twice),
    "members in no generation in the oldest snapshot": ("G1", _without_a_generation),
    "too many members in the oldest snapshot": ("G11", _too_many),
    "a member without an id in the oldest snapshot": ("M5", _without_an_id),
    "a member without a session in the oldest snapshot": ("G16", _no_session),
    "an owner that is no member in the oldest snapshot": ("G3", _owned_by_a_stranger),
    "another owner than was given it in the oldest snapshot": ("G12", _owned_by_another),
    "no owner of what was given in the oldest snapshot": ("G12", _owned_by_nobody),
    "another token than it was given by in the oldest snapshot": ("G13", _another_token),
    "another state than its members make in the oldest snapshot": ("G12", _another_state),
}

_STORED_UNASSIGNED: dict[str, tuple[Callable[[LogBuilder], None], str, Change]] = {
    "nothing but the snapshot of a group that rebalances": (_rebalancing, "–", as_it_is),
    "another owner while it rebalances in the oldest snapshot": (_rebalancing, "G12", _owned_by_another),
    "an owner that was given nothing in the oldest snapshot": (_rebalancing, "G12", _given_and_not_had),
    "an assignment of long ago in the oldest snapshot": (_rebalancing, "G2", _given_long_ago),
    "nothing but the snapshot of a group that a member left": (_left, "–", as_it_is),
    "another owner after a departure in the oldest snapshot": (_left, "G12", _owned_by_another),
    "nothing but the snapshot of an empty group": (_empty, "–", as_it_is),
    "an owner in an empty group in the oldest snapshot": (_empty, "G3", _owned),
}

FORGED_FRONTS = (
    *(
        _front(name, invariant, _two_members, change, 1, MARKED)
        for name, (invariant, change) in _STORED_CLASSIC.items()
    ),
    *(
        _front(name, invariant, make, change, 1, MARKED)
        for name, (make, invariant, change) in _STORED_UNASSIGNED.items()
    ),
    *(
        _front(name, invariant, _bound, change, groups)
        for name, (invariant, change, groups) in _CLASSIC.items()
    ),
    *(
        _front(name, invariant, _of_both_kinds, change, 2, begin)
        for begin, cases in ((12, _INCREMENTAL), (MARKED, _STORED))
        for name, (invariant, change) in cases.items()
    ),
)
