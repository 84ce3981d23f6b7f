"""What each record does to an incremental group, live, in a replay and in the draft of a decision."""

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import Any

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY, Held, Member, Told
from muster_core.incremental.partitions import named_in, without
from muster_core.incremental.rollout import Hold
from muster_core.position import NOWHERE, Position


def apply(group: IncrementalGroup, kind: str, position: Position, record: Any) -> None:
    """Carries out one record.

    Args:
        group: the group; changed in place.
        kind: one of `KINDS`.
        position: place of the record.
        record: its part of that kind.

    Raises:
        KeyError, ValueError: it contradicts the records before it.
    """
    _APPLIERS[kind](group, position, record)


def _subscribed(
    group: IncrementalGroup, position: Position, record: incremental_pb2.MemberSubscribed
) -> None:
    told = Told.of_record(record.member)
    member = group.members.get(told.member_id)
    if member is None:
        group.put(Member(told, joined=position, version=position))
    elif record.joined:
        group.put(_begun_anew(group, member, told, position))
    else:
        group.put(member.with_told(told))
    if member is not None:
        _forget_expression(group, member, told)


def _forget_expression(group: IncrementalGroup, before: Member, told: Told | None) -> None:
    """What an expression matches is known as long as somebody subscribes to it (conformance RX-08)."""
    expression = before.told.topic_regex
    if expression and (told is None or told.topic_regex != expression) and not group.uses(expression):
        group.forget(expression)


def _resolved(group: IncrementalGroup, _: Position, record: incremental_pb2.ExpressionResolved) -> None:
    group.resolve(record.expression, frozenset(record.topics))


def _begun_anew(group: IncrementalGroup, member: Member, told: Told, position: Position) -> Member:
    """A new life: what was to be given back is free, and the rest is given anew."""
    if member.is_away and told.is_numbered:
        member = replace(member, epoch=group.target_epoch, waits=True)
    elif member.told.on_session:  # it may come without a stream now, and has an epoch of its own then
        member = replace(member, epoch=group.epoch_of(member), waits=True)
    held = {partition: Held(position) for partition, one in member.held.items() if one.taken == NOWHERE}
    return replace(member, told=told, held=held, joined=position, version=position, commit_seq=0)


def _epoch_raised(group: IncrementalGroup, _: Position, record: incremental_pb2.EpochRaised) -> None:
    if record.epoch <= group.epoch:
        raise ValueError(f"the epoch goes from {group.epoch} to {record.epoch}")
    group.epoch = record.epoch
    group.topics_hash = record.topics_hash


def _target_assigned(group: IncrementalGroup, _: Position, record: incremental_pb2.TargetAssigned) -> None:
    for change in record.changes:
        member = group.members[change.member_id]
        gets = frozenset(named_in(change.gets))
        target = without(member.target, frozenset(named_in(change.loses)))
        target = target | gets if target else gets  # there may be a hundred thousand, which are not copied
        # whoever has something to give back now keeps the epoch that it has had (INC-19)
        group.put(member.aimed_at(target, group.epoch_of(member)))
    group.target_epoch, group.server_assignor = record.epoch, record.server_assignor


def _stepped(group: IncrementalGroup, position: Position, record: incremental_pb2.MemberStepped) -> None:
    member = group.members[record.member_id]
    held = dict(member.held)
    told_anew = bool(record.taken or record.given)
    if not member.told.on_session:
        told_anew = told_anew or record.epoch != member.epoch
    for partition in named_in(record.released):
        told_anew = held.pop(partition).taken == NOWHERE or told_anew
    anew: dict[Held, Held] = {}  # a hundred thousand partitions have few
    for partition in named_in(record.taken):
        one = held[partition]
        if one not in anew:
            anew[one] = one._replace(taken=position)
        held[partition] = anew[one]
    given = named_in(record.given)
    if not held.keys().isdisjoint(given):
        again = next(partition for partition in given if partition in held)
        raise ValueError(f"{again} is given to {record.member_id!r}, which has it")
    held.update(zip(given, repeat(Held(position))))
    version = position if told_anew else member.version
    group.put(member.stepped(record.epoch, held, version, waits=record.waits))


def _went_away(group: IncrementalGroup, position: Position, record: incremental_pb2.MemberWentAway) -> None:
    member = group.members[record.member_id]
    held = {partition: one for partition, one in member.held.items() if one.taken == NOWHERE}
    group.put(replace(member, epoch=AWAY, held=held, version=position))


def _instance_moved(
    group: IncrementalGroup, position: Position, record: incremental_pb2.InstanceMoved
) -> None:
    member = group.members[record.old_member_id]
    group.remove(record.old_member_id)
    anew = _begun_anew(group, member, Told.of_record(record.member), position)
    if not anew.told.is_numbered:  # as in Kafka, where a join gives up everything and gets its target
        anew = replace(anew, epoch=0, previous_epoch=0)
    other = group.members.get(anew.member_id)  # of Kafka's rules: it is replaced, too
    group.put(anew)
    for before in (member, other):
        if before is not None:
            _forget_expression(group, before, anew.told)


def _removed(group: IncrementalGroup, _: Position, record: incremental_pb2.MemberRemoved) -> None:
    member = group.members[record.member_id]
    group.remove(record.member_id)
    _forget_expression(group, member, None)
    if not group.members:
        group.hold = None


def _held(group: IncrementalGroup, _: Position, record: incremental_pb2.MovesHeld) -> None:
    if record.until_ms:
        group.hold = Hold(record.member_id, record.began_ms, record.until_ms, record.is_start)
    elif group.holds_moves:
        group.hold = Hold(freed_epoch=group.epoch + 1)  # which the next record raises
    else:
        raise ValueError(f"group {record.group_id!r} ends a hold that it does not have")


_APPLIERS: dict[str, Callable[[IncrementalGroup, Position, Any], None]] = {
    "member_subscribed": _subscribed,
    "epoch_raised": _epoch_raised,
    "target_assigned": _target_assigned,
    "member_stepped": _stepped,
    "member_went_away": _went_away,
    "instance_moved": _instance_moved,
    "member_removed": _removed,
    "expression_resolved": _resolved,
    "moves_held": _held,
}

KINDS = frozenset(_APPLIERS)
"""Kinds of records that are about incremental groups."""
