"""The `uniform` assignor of Kafka's servers (KIP-848): balance first, then as few moves as possible.

A member's `owned` is what it should have had so far, given back or not. Two ways, as in Kafka: all members
want the same
topics, or they do not.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from muster_assignors._java import text_order
from muster_assignors._snapshot import Assignment, GroupSnapshot, MemberSnapshot, TopicPartition

_ROUNDS = 16
"""How often the topics are gone through for balance, where members want different ones."""


def assign_uniform(group: GroupSnapshot, alike: bool | None = None) -> Assignment:
    """Gives each member as many partitions as the others, over all topics, and leaves it what it had.

    Args:
        group: the group.
        alike: whether all members count as wanting the same topics; None: by what they want. True where
            they do not
            gives a member what it does not want.
    """
    members = [group.members[member_id] for member_id in sorted(group.members, key=text_order)]
    wanted = {frozenset(member.topics) for member in members}
    topics = group.topics_in_order()
    if alike is None:
        alike = len(wanted) == 1
    shares = _alike(group, members, topics) if alike else _different(group, members, topics)
    return {member.member_id: sorted(share) for member, share in zip(members, shares, strict=True)}


def _alike(
    group: GroupSnapshot, members: Sequence[MemberSnapshot], topics: Sequence[str]
) -> list[list[TopicPartition]]:
    """Everybody wants the same topics: sizes differ by one at most, and who has one more keeps it."""
    every = [TopicPartition(topic, number) for topic in topics for number in group.topics[topic].numbers]
    there = frozenset(every)
    owned = {partition for member in members for partition in member.owned}
    free = [partition for partition in every if partition not in owned]
    quota, extras = divmod(len(every), len(members))
    shares: list[list[TopicPartition]] = []
    unfilled: list[tuple[list[TopicPartition], int]] = []
    for place, member in enumerate(members):
        has_extra = extras > 0
        room = quota + has_extra
        valid = [partition for partition in sorted(member.owned) if partition in there]
        share = valid[:room]
        free += valid[room:]
        room -= len(share)
        if room and has_extra and len(members) - place > extras:
            room -= 1
            has_extra = False
        shares.append(share)
        if room:
            unfilled.append((share, room))
        extras -= has_extra
    rest = iter(free)
    for share, room in unfilled:
        share += islice(rest, room)
    return shares


def _different(
    group: GroupSnapshot, members: Sequence[MemberSnapshot], topics: Sequence[str]
) -> list[list[TopicPartition]]:
    """Members want different topics: what is free goes to the least loaded, then loads are evened out."""
    subscribers = {
        topic: [place for place, member in enumerate(members) if topic in member.topics] for topic in topics
    }
    held: list[dict[str, set[int]]] = []
    loads = [0] * len(members)
    owned: defaultdict[str, set[int]] = defaultdict(set)
    for place, member in enumerate(members):
        mine: defaultdict[str, set[int]] = defaultdict(set)
        for topic, number in member.owned:
            if topic in member.topics and topic in subscribers and number in group.topics[topic].numbers:
                mine[topic].add(number)
                owned[topic].add(number)
                loads[place] += 1
        held.append(mine)
    order = sorted(
        topics,
        key=lambda topic: (
            -len(group.topics[topic].numbers) / len(subscribers[topic]),
            len(subscribers[topic]),
            text_order(topic),
        ),
    )
    for topic in order:
        takers = sorted(subscribers[topic], key=lambda one: (loads[one], one))
        for number in group.topics[topic].numbers:
            if number not in owned[topic]:
                place = min(takers, key=loads.__getitem__)  # of equals the one that had least at first
                held[place][topic].add(number)
                loads[place] += 1
    _even_out([topic for topic in order if len(subscribers[topic]) > 1], subscribers, held, loads)
    return [
        [TopicPartition(topic, number) for topic, numbers in mine.items() for number in numbers]
        for mine in held
    ]


def _even_out(
    topics: Sequence[str],
    subscribers: dict[str, list[int]],
    held: Sequence[dict[str, set[int]]],
    loads: list[int],
) -> None:
    """Moves partitions from who has two more than another subscriber, as long as that helps."""
    quiet = 0
    for _ in range(_ROUNDS):
        for topic in topics:
            quiet = 0 if _even_out_topic(topic, subscribers[topic], held, loads) else quiet + 1
            if quiet >= len(topics):
                return


def _even_out_topic(
    topic: str, subscribers: Sequence[int], held: Sequence[dict[str, set[int]]], loads: list[int]
) -> bool:
    moved = False
    while True:
        least = min(subscribers, key=lambda one: (loads[one], one))
        givers = [one for one in subscribers if held[one].get(topic)]
        most = max(givers, key=lambda one: (loads[one], one), default=least)
        if loads[most] - loads[least] < 2:
            return moved
        number = max(held[most][topic])
        held[most][topic].remove(number)
        held[least][topic].add(number)
        loads[most] -= 1
        loads[least] += 1
        moved = True
