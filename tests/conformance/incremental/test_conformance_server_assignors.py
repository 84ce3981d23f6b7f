"""The assignors of the coordinator: `uniform` (rows UA) and `range` (rows RA)."""

import random
from collections.abc import Mapping

import pytest
from muster_assignors import (
    Assignment,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    assign_range_without_racks,
    assign_uniform,
)

SEEDS = range(60)


def listed(text: str) -> tuple[TopicPartition, ...]:
    """`t0 t1 u2` are partitions 0 and 1 of `t` and 2 of `u`."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def group(topics: Mapping[str, int], **members: tuple[str, str]) -> GroupSnapshot:
    """Members by id: the topics of each, one letter each, and what it had before."""
    return GroupSnapshot(
        {
            who: MemberSnapshot(who, tuple(names), owned=listed(before))
            for who, (names, before) in members.items()
        },
        {name: TopicSnapshot(count) for name, count in topics.items()},
    )


def in_words(assigned: Assignment) -> dict[str, str]:
    return {who: " ".join(f"{p.topic}{p.number}" for p in sorted(some)) for who, some in assigned.items()}


def uniform(topics: Mapping[str, int], **members: tuple[str, str]) -> dict[str, str]:
    return in_words(assign_uniform(group(topics, **members)))


def ranged(topics: Mapping[str, int], **members: tuple[str, str]) -> dict[str, str]:
    return in_words(assign_range_without_racks(group(topics, **members)))


def again(snapshot: GroupSnapshot, assigned: Assignment) -> GroupSnapshot:
    """The same group, where each member had what was assigned."""
    members = {
        who: MemberSnapshot(who, one.topics, owned=tuple(assigned.get(who, ())))
        for who, one in snapshot.members.items()
    }
    return GroupSnapshot(members, snapshot.topics)


def drawn(seed: int, *, alike: bool) -> GroupSnapshot:
    """Topics and members, and what they had before: of an assignment of other members, and of nobody."""
    draw = random.Random(seed)
    topics = {name: draw.randint(1, 6) for name in "tuvw"[: draw.randint(1, 4)]}
    members: dict[str, tuple[str, str]] = {}
    free = [f"{name}{number}" for name, count in topics.items() for number in range(count)]
    draw.shuffle(free)
    for number in range(draw.randint(1, 7)):
        names = "".join(topics) if alike else "".join(name for name in topics if draw.random() < 0.7)
        mine = [free.pop() for _ in range(min(len(free), draw.randint(0, 4)))]
        members[f"m{number}"] = (names, " ".join(one for one in mine if one[0] in names))
    return group(topics, **members)


def sizes(assigned: Assignment) -> list[int]:
    return sorted(len(some) for some in assigned.values())


def every(snapshot: GroupSnapshot) -> set[TopicPartition]:
    wanted = {topic for member in snapshot.members.values() for topic in member.topics}
    return {
        TopicPartition(name, number)
        for name, topic in snapshot.topics.items()
        if name in wanted
        for number in topic.numbers
    }


@pytest.mark.row("UA-01")
@pytest.mark.row("UA-02")
@pytest.mark.row("UA-20")
@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_want_the_same_have_as_much_and_each_partition_once(seed: int) -> None:
    snapshot = drawn(seed, alike=True)
    assigned = assign_uniform(snapshot)
    given = [partition for some in assigned.values() for partition in some]
    assert len(given) == len(set(given))
    assert set(given) == every(snapshot)
    quota, extras = divmod(len(given), len(snapshot.members))
    assert sizes(assigned) == [quota] * (len(assigned) - extras) + [quota + 1] * extras


@pytest.mark.row("UA-03")
@pytest.mark.row("UA-20")
@pytest.mark.row("TA-17")
@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_want_the_same_keep_what_they_had_up_to_their_share(seed: int) -> None:
    snapshot = drawn(seed, alike=True)
    assigned = assign_uniform(snapshot)
    for who, member in snapshot.members.items():
        kept = set(assigned[who]) & set(member.owned)
        assert len(kept) == min(len(member.owned), len(assigned[who]))
    assert assign_uniform(again(snapshot, assigned)) == assigned


@pytest.mark.row("UA-04")
def test_whoever_has_one_more_keeps_it() -> None:
    assert uniform({"t": 5}, a=("t", "t0 t1"), b=("t", "t2 t3 t4")) == {"a": "t0 t1", "b": "t2 t3 t4"}


@pytest.mark.row("UA-05")
def test_a_newcomer_gets_from_who_has_too_much_alone() -> None:
    before = {"a": ("tu", "t0 t1 u0"), "b": ("tu", "t2 u1 u2")}
    after = uniform({"t": 3, "u": 3}, **before, c=("tu", ""))
    assert len(after["c"].split()) == 2
    for who, (_, had) in before.items():
        assert set(after[who].split()) <= set(had.split())
        assert len(after[who].split()) == 2


@pytest.mark.row("UA-06")
def test_what_a_leaver_had_goes_to_the_others_who_keep_theirs() -> None:
    after = uniform({"t": 3, "u": 3}, a=("tu", "t0 u0"), b=("tu", "t1 u1"))
    assert set(after["a"].split()) > {"t0", "u0"}
    assert set(after["b"].split()) > {"t1", "u1"}
    assert len(after["a"].split()) == len(after["b"].split()) == 3


@pytest.mark.row("UA-07")
def test_new_partitions_fill_the_gaps() -> None:
    after = uniform({"t": 4, "u": 4}, a=("tu", "t0 t2 u0"), b=("tu", "t1 u1 u2"))
    assert set(after["a"].split()) > {"t0", "t2", "u0"}
    assert set(after["b"].split()) > {"t1", "u1", "u2"}


@pytest.mark.row("UA-08")
def test_a_topic_that_all_have_dropped_is_nobodys() -> None:
    after = uniform({"t": 3, "u": 4}, a=("u", "t0 u0 u1 u2"), b=("u", "t1 t2 u3"))
    assert {who: len(some.split()) for who, some in after.items()} == {"a": 2, "b": 2}
    assert "t" not in "".join(after.values())
    assert "u3" in after["b"]


@pytest.mark.row("UA-09")
def test_one_move_is_enough_where_one_is() -> None:
    after = uniform({"t": 3, "u": 3}, a=("tu", "t0 t1 u0 u1"), b=("tu", "t2 u2"))
    assert after == {"a": "t0 t1 u0", "b": "t2 u1 u2"}


@pytest.mark.row("UA-10")
def test_more_members_than_partitions() -> None:
    for names in ("ttt", "tut"):
        after = uniform({"t": 2, "u": 1}, a=(names[0], ""), b=("tu"[: len(set(names))], ""), c=(names[2], ""))
        assert max(len(some.split()) for some in after.values()) <= 1


@pytest.mark.row("UA-11")
def test_no_topic_at_all() -> None:
    assert uniform({}, a=("", ""), b=("", "")) == {"a": "", "b": ""}
    assert uniform({"t": 2}, a=("", ""), b=("", "")) == {"a": "", "b": ""}


@pytest.mark.row("UA-12")
@pytest.mark.parametrize("other", ["x", "tx"])
def test_a_topic_that_there_is_not_is_passed_over(other: str) -> None:
    after = uniform({"t": 2}, a=("tx", ""), b=(other, ""))
    assert sorted(" ".join(after.values()).split()) == ["t0", "t1"]


@pytest.mark.row("UA-14")
@pytest.mark.row("UA-20")
@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_want_different_topics_get_what_they_want(seed: int) -> None:
    snapshot = drawn(seed, alike=False)
    assigned = assign_uniform(snapshot)
    given = [partition for some in assigned.values() for partition in some]
    assert len(given) == len(set(given))
    assert set(given) == every(snapshot)
    for who, some in assigned.items():
        assert {partition.topic for partition in some} <= set(snapshot.members[who].topics)


@pytest.mark.row("UA-15")
@pytest.mark.parametrize("count", range(1, 9))
def test_members_whose_topics_nobody_else_wants_share_them_evenly(count: int) -> None:
    after = uniform(
        {"t": count, "u": 5}, a=("t", ""), b=("t", "t0 t1"[: 3 * min(count, 2)]), c=("u", ""), d=("u", "u1")
    )
    for first, second in (("a", "b"), ("c", "d")):
        assert abs(len(after[first].split()) - len(after[second].split())) <= 1


@pytest.mark.row("UA-16")
@pytest.mark.row("UA-20")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_members_of_different_topics_had_stays_unless_that_helps(seed: int) -> None:
    snapshot = drawn(seed, alike=False)
    assigned = assign_uniform(snapshot)
    repeated = assign_uniform(again(snapshot, assigned))
    assert repeated == assigned
    loads = {who: len(some) for who, some in assigned.items()}
    for who, member in snapshot.members.items():
        for partition in set(member.owned) - set(assigned[who]):
            taker = next(other for other, some in assigned.items() if partition in some)
            assert loads[taker] <= loads[who] + 1  # it did not go to somebody with more


@pytest.mark.row("UA-17")
def test_members_of_different_topics_come_and_go_and_topics_grow() -> None:
    start = uniform({"t": 3, "u": 3}, a=("t", ""), b=("tu", ""))
    grown = uniform({"t": 4, "u": 4}, a=("t", start["a"]), b=("tu", start["b"]))
    assert set(grown["a"].split()) >= set(start["a"].split())
    joined = uniform({"t": 4, "u": 4}, a=("t", grown["a"]), b=("tu", grown["b"]), c=("u", ""))
    assert set(joined["c"].split()) <= {f"u{number}" for number in range(4)}
    assert {who: len(some.split()) for who, some in joined.items()} == {"a": 3, "b": 3, "c": 2}
    assert set(joined["a"].split()) < set(grown["a"].split())
    left = uniform({"t": 4, "u": 4}, b=("tu", joined["b"]), c=("u", joined["c"]))
    assert set(left["b"].split()) >= {f"t{number}" for number in range(4)}
    dropped = uniform({"t": 4, "u": 4}, b=("t", left["b"]), c=("u", left["c"]))
    assert dropped == {"b": "t0 t1 t2 t3", "c": "u0 u1 u2 u3"}


@pytest.mark.row("UA-18")
def test_whoever_finds_nothing_left_of_a_shared_topic_stays_empty() -> None:
    after = uniform({"t": 1, "u": 2}, a=("t", "t0"), b=("t", ""), c=("tu", "u0 u1"))
    assert after == {"a": "t0", "b": "", "c": "u0 u1"}


@pytest.mark.row("UA-19")
@pytest.mark.parametrize("assign", [assign_uniform, assign_range_without_racks])
def test_racks_do_not_count(assign: object) -> None:
    assert callable(assign)
    zones = (frozenset({"far"}), frozenset({"near"}))
    members = {who: MemberSnapshot(who, ("t",), rack_id=rack) for who, rack in (("a", "near"), ("b", "far"))}
    assert in_words(assign(GroupSnapshot(members, {"t": TopicSnapshot(2, zones)}))) == {"a": "t0", "b": "t1"}


# --- range


@pytest.mark.row("RA-01")
def test_static_members_come_first_by_their_static_id() -> None:
    def member(who: str, instance: str = "") -> MemberSnapshot:
        return MemberSnapshot(who, ("t",), group_instance_id=instance)

    topics = {"t": TopicSnapshot(4)}
    members = [member("a"), member("z", "i1"), member("b", "i2"), member("c")]
    assigned = assign_range_without_racks(GroupSnapshot({m.member_id: m for m in members}, topics))
    assert in_words(assigned) == {"z": "t0", "b": "t1", "a": "t2", "c": "t3"}
    restarted = [member("a"), member("x", "i1"), member("y", "i2"), member("c")]
    later = assign_range_without_racks(GroupSnapshot({m.member_id: m for m in restarted}, topics))
    assert in_words(later) == {"x": "t0", "y": "t1", "a": "t2", "c": "t3"}


@pytest.mark.row("RA-02")
@pytest.mark.row("RA-03")
def test_each_topic_is_cut_into_blocks_alike() -> None:
    after = ranged({"t": 5, "u": 5}, a=("tu", ""), b=("tu", ""))
    assert after == {"a": "t0 t1 t2 u0 u1 u2", "b": "t3 t4 u3 u4"}


@pytest.mark.row("RA-04")
def test_each_topic_is_cut_for_its_subscribers() -> None:
    after = ranged({"t": 3, "u": 3, "v": 2}, a=("tu", ""), b=("v", ""), c=("uv", ""))
    assert after == {"a": "t0 t1 t2 u0 u1", "b": "v0", "c": "u2 v1"}


@pytest.mark.row("RA-05")
def test_what_members_had_does_not_count() -> None:
    topics = {"t": 3, "u": 3}
    after = ranged(topics, a=("tu", "t2 u2"), b=("tu", "t0 t1 u0 u1"))
    assert after == ranged(topics, a=("tu", ""), b=("tu", "")) == {"a": "t0 t1 u0 u1", "b": "t2 u2"}
