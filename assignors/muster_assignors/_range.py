"""The `range` assignor: consecutive partitions, topic by topic, racks considered (KIP-881).

Kafka has two classes of this name. That of its clients is `assign_range`; that of its servers, which knows
nothing of racks, is `assign_range_without_racks`. `assign_range_by_weight` is ours.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from muster_assignors._snapshot import (
    Assignment,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    partitions_of,
)
from muster_assignors._weighted import has_weights
from muster_assignors._weighted_range import weighted_ranges


def assign_range(group: GroupSnapshot) -> Assignment:
    """Gives each member a run of consecutive partitions of each topic; the first members get the extras.

    Where racks are known and differ, partitions go to members on their rack first; topics with the same
    members and the same number of partitions stay aligned, which counts more than racks.
    """
    shares = _shares(group)
    if any(share.needs_racks for share in shares):
        _match_racks(shares)
    return _runs(group, shares)


def assign_range_without_racks(group: GroupSnapshot) -> Assignment:
    """The `range` of Kafka's servers: runs as of `assign_range`, wherever members and partitions are."""
    return _runs(group, _shares(group))


def assign_range_by_weight(group: GroupSnapshot) -> Assignment:
    """`assign_range`, with runs as long as members are heavy and partitions are light."""
    return weighted_ranges(group) if has_weights(group) else assign_range(group)


@dataclass(slots=True)
class _Share:
    """One topic while its partitions are being assigned.

    Attributes:
        topic: its name.
        members: who subscribes to it, in order.
        numbers: the partitions that there are, in order; elsewhere they are given by their places in it.
        partition_racks: for each partition its racks; empty: unknown.
        needs_racks: members and partitions have racks in common, and not every partition is everywhere.
        size: how many partitions each member gets at least.
        extras: how many members may still get one more.
        owners: place of the owner in `members`, for each partition; -1: none yet.
        counts: how many partitions each member has.
    """

    topic: str
    members: tuple[MemberSnapshot, ...]
    numbers: Sequence[int]
    partition_racks: tuple[frozenset[str], ...]
    needs_racks: bool
    size: int
    extras: int
    owners: list[int]
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.members)

    def room(self, place: int) -> int:
        """How many partitions a member may still get."""
        return max(0, self.size + (self.extras > 0) - self.counts[place])

    def take(self, place: int, numbers: Iterable[int]) -> None:
        """Gives partitions to a member."""
        taken = 0
        for number in numbers:
            self.owners[number] = place
            taken += 1
        self.counts[place] += taken
        if taken and self.counts[place] > self.size:
            self.extras -= 1


def _shares(group: GroupSnapshot) -> list[_Share]:
    subscribers: dict[str, list[MemberSnapshot]] = defaultdict(list)
    for member in group.members_in_order():
        for topic in dict.fromkeys(member.topics):
            subscribers[topic].append(member)
    return [
        _share(topic, group.topics[topic], tuple(subscribers[topic])) for topic in group.topics_in_order()
    ]


def _share(name: str, topic: TopicSnapshot, members: tuple[MemberSnapshot, ...]) -> _Share:
    member_racks = {member.rack_id for member in members if member.rack_id}
    numbers = topic.numbers
    racks = tuple(topic.racks[number] for number in numbers) if topic.racks else ()
    all_racks = frozenset[str]().union(*racks)
    size, extras = divmod(len(numbers), len(members))
    return _Share(
        topic=name,
        members=members,
        numbers=numbers,
        partition_racks=racks,
        needs_racks=not member_racks.isdisjoint(all_racks) and any(r != all_racks for r in racks),
        size=size,
        extras=extras,
        owners=[-1] * len(numbers),
    )


def _runs(group: GroupSnapshot, shares: list[_Share]) -> Assignment:
    """Gives what is left, and returns what everybody has: by topic and number."""
    result: dict[str, list[TopicPartition]] = {member_id: [] for member_id in group.members}
    for share in shares:
        free = iter([number for number, owner in enumerate(share.owners) if owner < 0])
        for place in range(len(share.members)):
            share.take(place, islice(free, share.room(place)))
        numbers: list[list[int]] = [[] for _ in share.members]
        for number, owner in zip(share.numbers, share.owners, strict=True):
            numbers[owner].append(number)
        for member, own in zip(share.members, numbers, strict=True):
            result[member.member_id] += partitions_of(share.topic, own)
    return result


def _match_racks(shares: list[_Share]) -> None:
    aligned: dict[tuple[tuple[str, ...], int], list[_Share]] = defaultdict(list)
    for share in shares:
        aligned[tuple(member.member_id for member in share.members), len(share.owners)].append(share)
    for alike in aligned.values():
        if len(alike) > 1:
            _match_together(alike)
        elif alike[0].needs_racks:
            _match_alone(alike[0])


def _match_alone(share: _Share) -> None:
    """Gives each member the first free partitions on its rack; to one without a rack each partition is."""
    on_rack: dict[str, deque[int]] = defaultdict(deque)
    for number, racks in enumerate(share.partition_racks):
        on_rack[""].append(number)
        for rack in racks:
            on_rack[rack].append(number)
    for place, member in enumerate(share.members):
        room, numbers, taken = share.room(place), on_rack[member.rack_id], list[int]()
        while numbers and len(taken) < room:
            number = numbers.popleft()
            if share.owners[number] < 0:
                taken.append(number)
        share.take(place, taken)


def _match_together(shares: list[_Share]) -> None:
    """Gives each number, of all topics, to the first member on whose rack all of them are.

    The topics have the same members and sizes and lose the same numbers, so there is as much room in each.
    """
    first = shares[0]
    if not any(member.rack_id for member in first.members):
        return
    on_rack: dict[str, deque[int]] = defaultdict(deque)
    for place, member in enumerate(first.members):
        on_rack[member.rack_id].append(place)
    nowhere = frozenset[str]()
    for number in range(len(first.owners)):
        racks = frozenset.intersection(
            *(share.partition_racks[number] if share.partition_racks else nowhere for share in shares)
        )
        fitting = []
        for rack in ("", *racks):
            places = on_rack[rack] if rack in on_rack else deque[int]()
            while places and not first.room(places[0]):
                places.popleft()  # nobody gets room again
            fitting += [places[0]] if places else []
        if fitting:
            for share in shares:
                share.take(min(fitting), (number,))
