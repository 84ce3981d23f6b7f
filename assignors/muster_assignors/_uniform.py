"""The `uniform` assignor of Kafka's servers (KIP-848): balance first, then as few moves as possible.

A member's `owned` is what it should have had so far, given back or not. Two ways, as in Kafka: all
members want the same topics, or they do not. `assign_uniform_by_weight` is ours.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import filterfalse, islice, repeat

from muster_assignors._java import in_text_order, text_order
from muster_assignors._snapshot import Assignment, GroupSnapshot, MemberSnapshot, TopicPartition
from muster_assignors._weighted import has_weights, has_zones, weighted_shares

_ROUNDS = 16
"""How often the topics are gone through for balance, where members want different ones."""


def assign_uniform(group: GroupSnapshot, alike: bool | None = None) -> Assignment:
    """Gives each member as many partitions as the others, over all topics, and leaves it what it had.

    Args:
        group: the group.
        alike: whether all members count as wanting the same topics; None: by what they want. True where
            they do not gives a member what it does not want.
    """
    topics = group.topics_in_order()
    if alike is None:
        alike = len({frozenset(member.topics) for member in group.members.values()}) == 1
    if alike:
        numbers = {topic: group.topics[topic].numbers for topic in topics}
        shares = even_shares({name: member.owned for name, member in group.members.items()}, numbers)
        return {name: sorted(map(TopicPartition._make, share)) for name, share in shares.items()}
    members = [group.members[name] for name in in_text_order(group.members)]
    of_members = _different(group, members, topics)
    return {member.member_id: sorted(share) for member, share in zip(members, of_members, strict=True)}


def assign_uniform_by_weight(group: GroupSnapshot, alike: bool | None = None) -> Assignment:
    """`assign_uniform`, by load for weight, where members or partitions differ in that or zones are known."""
    return weighted_shares(group) if has_weights(group) or has_zones(group) else assign_uniform(group, alike)


def even_shares(
    owned: Mapping[str, Collection[tuple[str, int]]], numbers: Mapping[str, Sequence[int]]
) -> dict[str, Collection[tuple[str, int]]]:
    """What each member gets as `uniform` gives it, where all want the same topics.

    Sizes differ by one at most, and who has one more keeps it. A coordinator asks for each change of a large
    group, so partitions are plain pairs, and those that stay are looked at together.

    Args:
        owned: what each member should have had so far.
        numbers: the numbers of the partitions of each topic, ascending.

    Returns:
        The share of each member, in no order; whose share stays gets the very collection that it had.
    """
    every = [
        partition for topic in in_text_order(numbers) for partition in zip(repeat(topic), numbers[topic])
    ]
    taken = frozenset[tuple[str, int]]().union(*owned.values())
    free = list(filterfalse(taken.__contains__, every))
    all_there = len(taken) == len(every) - len(free)
    shares = dict(owned)
    if not all_there:
        there = frozenset(every)
        shares = {
            name: share if there.issuperset(share) else there.intersection(share)
            for name, share in owned.items()
        }
    quota, extras = divmod(len(every), len(owned))
    unfilled: list[tuple[str, int]] = []
    for left, name in zip(range(len(owned), 0, -1), in_text_order(owned), strict=True):
        share = shares[name]
        size, most = len(share), quota + (extras > 0)
        if size > most:
            in_order = sorted(share)
            free += in_order[most:]
            shares[name] = in_order[:most]
        elif size < most:
            if left > extras:  # enough come after it for those who have one more
                most = quota
            if size < most:
                unfilled.append((name, most - size))
        extras -= most > quota
    rest = iter(free)
    for name, room in unfilled:
        if more := list(islice(rest, room)):
            shares[name] = [*shares[name], *more]
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
