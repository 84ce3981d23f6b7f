"""The assignors `sticky` and `cooperative-sticky`: even shares, in which members keep what they had."""

from collections.abc import Iterable

from muster_assignors._equal import EqualShares
from muster_assignors._snapshot import Assignment, GroupSnapshot, MemberSnapshot, TopicPartition
from muster_assignors._unequal import UnequalShares
from muster_assignors._user_data import UNKNOWN_GENERATION, decode_generation, decode_previous
from muster_assignors._work import Claims, Work


def assign_sticky(group: GroupSnapshot) -> Assignment:
    """Gives members what they had, as far as shares can be even, and moves the rest."""
    work = Work(group)
    return work.named(_share(work, work.claims(_had))[0])


def assign_cooperative_sticky(group: GroupSnapshot) -> Assignment:
    """Shares as of `assign_sticky`, without what somebody else had and is to release first (KIP-429)."""
    work = Work(group)
    shares, moving = _share(work, work.claims(_keeps))
    return work.named([partition for partition in share if partition not in moving] for share in shares)


def _share(work: Work, claims: Claims) -> tuple[list[Iterable[int]], dict[int, int]]:
    """The share of each member; partitions that are to be released first → their new owner."""
    if work.is_equal:
        equal = EqualShares(work, claims)
        return list(equal.shares), equal.moving
    shares = UnequalShares(work, claims).shares
    had = [set(stated) for stated, _ in claims.stated]
    everything = set[int]().union(*had)
    moving = {
        partition: member
        for member, share in enumerate(shares)
        for partition in share
        if partition in everything and partition not in had[member]
    }
    return list(shares), moving


def _had(member: MemberSnapshot) -> tuple[Iterable[TopicPartition], int]:
    return decode_previous(member.user_data) if member.user_data else (member.owned, member.generation)


def _keeps(member: MemberSnapshot) -> tuple[Iterable[TopicPartition], int]:
    generation = member.generation
    if generation == UNKNOWN_GENERATION and member.user_data:
        generation = decode_generation(member.user_data)
    return member.owned, generation
