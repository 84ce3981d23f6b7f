"""What `uniform` moves, beside an exhaustive search for the fewest moves that balance allows."""

import random
from collections.abc import Iterator, Mapping
from itertools import product

import pytest
from muster_assignors import GroupSnapshot, MemberSnapshot, TopicPartition, TopicSnapshot, assign_uniform

CASES = 150
MOVES_ABOVE = 1
"""Where members want different topics: moves above the fewest that make loads as even, of 6 partitions."""


def moves(before: Mapping[TopicPartition, str], after: Mapping[TopicPartition, str]) -> int:
    """Partitions whose owner is there still and is another one now."""
    return sum(after[partition] != owner for partition, owner in before.items() if partition in after)


def spread(loads: list[int]) -> int:
    """How uneven loads are: who moves one from the fuller to the emptier of two makes it less."""
    return sum(load * load for load in loads)


def searched(
    partitions: list[TopicPartition], wanted: Mapping[str, frozenset[str]]
) -> Iterator[Mapping[TopicPartition, str]]:
    """Each way to share partitions among those who want their topics."""
    takers = [[member for member, topics in wanted.items() if one.topic in topics] for one in partitions]
    for owners in product(*takers):
        yield dict(zip(partitions, owners, strict=True))


def fewest(
    before: Mapping[TopicPartition, str],
    partitions: list[TopicPartition],
    wanted: Mapping[str, frozenset[str]],
    unevenness: int | None,
) -> tuple[int, int]:
    """The least spread (or the one that is given) of all ways, and the fewest moves of those that have it."""
    found = [
        (spread([list(way.values()).count(member) for member in wanted]), moves(before, way))
        for way in searched(partitions, wanted)
    ]
    least = min(found)[0] if unevenness is None else unevenness
    return least, min(moved for spread_of_way, moved in found if spread_of_way <= least)


def case(
    seed: int, *, alike: bool
) -> tuple[dict[TopicPartition, str], list[TopicPartition], dict[str, frozenset[str]]]:
    """Who has had what, what there is now, and who wants what."""
    draw = random.Random(seed)
    topics = ["a", "b"]
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(draw.randint(1, 3))]
    members = [f"m{place}" for place in range(draw.randint(1, 4))]
    wanted = {
        member: frozenset(topics if alike else draw.sample(topics, draw.randint(1, 2))) for member in members
    }
    before = {}
    for one in partitions:
        takers = [member for member in members if one.topic in wanted[member]]
        if takers and draw.random() < 0.8:  # as after changes of members and topics, which leave any shares
            before[one] = draw.choice(takers)
    there = [one for one in partitions if any(one.topic in some for some in wanted.values())]
    return before, there, wanted


def assigned(
    before: Mapping[TopicPartition, str],
    partitions: list[TopicPartition],
    wanted: Mapping[str, frozenset[str]],
) -> dict[TopicPartition, str]:
    """What `uniform` makes of it."""
    members = {
        member: MemberSnapshot(
            member,
            tuple(sorted(topics)),
            owned=tuple(one for one, owner in before.items() if owner == member),
        )
        for member, topics in wanted.items()
    }
    counts = {
        topic: TopicSnapshot(1 + max(one.number for one in partitions if one.topic == topic))
        for topic in {one.topic for one in partitions}
    }
    answer = assign_uniform(GroupSnapshot(members, counts))
    after = {one: member for member, own in answer.items() for one in own}
    assert sorted(after) == sorted(partitions)
    return after


@pytest.mark.parametrize("seed", range(CASES))
def test_no_partition_moves_that_need_not_where_all_want_the_same(seed: int) -> None:
    before, partitions, wanted = case(seed, alike=True)
    after = assigned(before, partitions, wanted)
    least, moved = fewest(before, partitions, wanted, None)
    assert spread([list(after.values()).count(member) for member in wanted]) == least
    assert moves(before, after) == moved


@pytest.mark.parametrize("seed", range(CASES))
def test_few_partitions_move_that_need_not_where_members_want_different_topics(seed: int) -> None:
    before, partitions, wanted = case(seed, alike=False)
    after = assigned(before, partitions, wanted)
    reached = spread([list(after.values()).count(member) for member in wanted])
    _, moved = fewest(before, partitions, wanted, reached)
    assert moves(before, after) <= moved + MOVES_ABOVE
