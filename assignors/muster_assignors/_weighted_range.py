"""`range` where members or partitions have weights: runs of each topic that are as long as members are heavy.

A member's share of a topic is as much of its load as the member's weight is of its takers'. Nobody is given
more than its share and the heaviest partition of the topic.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from muster_assignors._snapshot import GroupSnapshot, MemberSnapshot, TopicPartition


class _Kind(NamedTuple):
    """What topics have in common whose partitions of one number stay together.

    Attributes:
        members: who takes them, in order.
        numbers: their partitions.
        loads: of these.
    """

    members: tuple[str, ...]
    numbers: tuple[int, ...]
    loads: tuple[int, ...]


def weighted_ranges(group: GroupSnapshot) -> dict[str, list[TopicPartition]]:
    """What each member gets: partitions near it first, consecutive ones of what is left."""
    takers: defaultdict[str, list[MemberSnapshot]] = defaultdict(list)
    for member in group.members_in_order():
        for topic in dict.fromkeys(member.topics):
            takers[topic].append(member)
    kinds: defaultdict[_Kind, list[str]] = defaultdict(list)
    for topic in group.topics_in_order():
        about = group.topics[topic]
        numbers = tuple(about.numbers)
        loads = tuple(about.weights[number] for number in numbers) if about.weights else (1,) * len(numbers)
        kinds[_Kind(tuple(one.member_id for one in takers[topic]), numbers, loads)].append(topic)
    shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in group.members}
    for kind, topics in kinds.items():
        for index, owner in enumerate(_owners(group, kind, topics)):
            shares[kind.members[owner]] += [TopicPartition(topic, kind.numbers[index]) for topic in topics]
    return {member_id: sorted(share) for member_id, share in shares.items()}


def _owners(group: GroupSnapshot, kind: _Kind, topics: Sequence[str]) -> list[int]:
    """The owner of each partition, by its place among the members.

    All loads and shares are multiplied by the weight of all takers, and by two, so that halves are whole.
    """
    weights = [group.members[member_id].weight for member_id in kind.members]
    shares = [2 * sum(kind.loads) * weight for weight in weights]
    loads = [2 * sum(weights) * load for load in kind.loads]
    near = _near(group, kind, topics)
    owners: dict[int, int] = {}
    rooms = list(shares)
    for place, member_id in enumerate(kind.members):
        for index in near[group.members[member_id].rack_id]:
            if index not in owners and loads[index] // 2 <= rooms[place]:
                owners[index] = place
                rooms[place] -= loads[index]
    rooms = [max(room, 0) for room in rooms]
    rest = [index for index in range(len(loads)) if index not in owners]
    rest_load, all_room = sum(loads[index] for index in rest), sum(rooms)
    before, place, filled = 0, 0, rooms[0]
    for index in rest:
        middle = before + loads[index] // 2
        while place < len(rooms) - 1 and middle * all_room > rest_load * filled:
            place += 1
            filled += rooms[place]
        owners[index] = place
        before += loads[index]
    return [owners[index] for index in range(len(loads))]


def _near(group: GroupSnapshot, kind: _Kind, topics: Sequence[str]) -> defaultdict[str, list[int]]:
    """The partitions that are near a rack in all topics, by rack, in order."""
    near: defaultdict[str, list[int]] = defaultdict(list)
    if all(group.topics[topic].racks for topic in topics):
        for index, number in enumerate(kind.numbers):
            for rack in frozenset.intersection(*(group.topics[topic].racks[number] for topic in topics)):
                near[rack].append(index)
    return near
