"""How many partitions an assignment or a target moved, beside the fewest that it could have."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from muster_core.incremental.partitions import named_in
from muster_protos.muster.log.v1 import incremental_pb2
from muster_protos.muster.v1 import common_pb2


class Moves(NamedTuple):
    """What changed: partitions given, those with a new owner, and how few could have; None: not known."""

    partitions: int | None
    moves: int
    minimum: int | None


class Aims(Protocol):
    """Who knows how many partitions the target gives it; None: it does not."""

    target: int | None


def fewest(shares: Mapping[str, int], had: Mapping[str, int]) -> int:
    """The fewest moves that give members shares of the same sizes.

    The members who had most of these partitions would get the largest shares.

    Args:
        shares: how many partitions each member has.
        had: how many of these each of them had before; who had none may be missing.
    """
    sizes = zip(sorted(shares.values(), reverse=True), sorted(had.values(), reverse=True), strict=False)
    return sum(shares.values()) - sum(map(min, sizes))


def aimed(members: Mapping[str, Aims], message: incremental_pb2.TargetAssigned) -> Moves:
    """Notes with each member of an incremental group what a target gives it; says what that moved."""
    gets = {change.member_id: _count(change.gets) for change in message.changes}
    moves = sum(gets.values())
    if any(member.target is None for member in members.values()):
        return Moves(None, moves, None)
    given = {partition for change in message.changes for partition in named_in(change.gets)}
    had = {member_id: member.target or 0 for member_id, member in members.items()}
    shares = had | {}
    for change in message.changes:
        if change.member_id in members:
            lost = named_in(change.loses)
            shares[change.member_id] += gets[change.member_id] - len(lost)
            had[change.member_id] -= sum(partition not in given for partition in lost)
    for member_id, member in members.items():
        member.target = shares[member_id]
    owners = {member_id: had[member_id] for member_id, share in shares.items() if share}
    return Moves(sum(shares.values()), moves, fewest(shares, owners))


def _count(topics: Iterable[common_pb2.TopicPartitions]) -> int:
    return sum(len(topic.partitions) for topic in topics)
