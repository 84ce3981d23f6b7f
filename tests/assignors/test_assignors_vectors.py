"""The assignors against what Kafka's own classes assign, and what every assignor must keep."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from assignors.assignors_groups import group_of, groups, partition
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_assignors import (
    KAFKA,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    assign_range_without_racks,
    check_assignment,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "assignors.json").read_text())["vectors"]


def in_words(assignment: Any) -> dict[str, list[str]]:
    return {member: sorted(map(str, partitions)) for member, partitions in assignment.items()}


@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_assigns_as_kafka_does(vector: dict[str, Any]) -> None:
    assignor = KAFKA[vector["assignor"]]
    group = group_of(vector)
    assigned = assignor.assign(group)
    assert in_words(assigned) == {m: sorted(ps) for m, ps in vector["expected"].items()}
    keeping = {
        name: replace(member, keeps_owned=assignor.cooperative) for name, member in group.members.items()
    }
    check_assignment(assignor, replace(group, members=keeping), assigned)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KAFKA))
@settings(deadline=None)
@given(group=groups())
def test_every_wanted_partition_has_one_owner_that_wants_it(name: str, group: GroupSnapshot) -> None:
    check_assignment(KAFKA[name], group, KAFKA[name].assign(group))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KAFKA))
@settings(deadline=None)
@given(group=groups(), data=st.data())
def test_removed_partitions_are_as_if_they_had_never_been(
    name: str, group: GroupSnapshot, data: st.DataObject
) -> None:
    """What is left is shared as if it had been numbered without gaps."""
    topics, members = {}, {}
    places: dict[str, dict[int, int]] = {}
    for topic, snapshot in group.topics.items():
        removed = data.draw(st.frozensets(st.integers(0, snapshot.partitions - 1)))
        with_gaps = replace(snapshot, removed=removed)
        topics[topic] = with_gaps
        places[topic] = {number: place for place, number in enumerate(with_gaps.numbers)}
    dense = {
        topic: TopicSnapshot(len(one.numbers), tuple(one.racks[n] for n in one.numbers) if one.racks else ())
        for topic, one in topics.items()
    }
    for member_id, member in group.members.items():
        owned = tuple(
            TopicPartition(topic, places[topic][number])
            for topic, number in member.owned
            if number in places.get(topic, {})
        )
        members[member_id] = replace(member, owned=owned)
    assigned = KAFKA[name].assign(replace(group, topics=topics))
    check_assignment(KAFKA[name], replace(group, topics=topics), assigned)
    expected = KAFKA[name].assign(GroupSnapshot(members, dense))
    assert {m: [TopicPartition(t, places[t][n]) for t, n in ps] for m, ps in assigned.items()} == {
        m: list(ps) for m, ps in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@settings(deadline=None)
@given(group=groups())
def test_what_was_assigned_stays_where_nothing_changes(name: str, group: GroupSnapshot) -> None:
    """A cooperative group is done when what moved was released: the second round moves nothing.

    With racks Kafka's classes take a partition that is on no member's rack from its owner time and again.
    """
    assignor = KAFKA[name]
    group = replace(group, members={m: replace(s, rack_id="") for m, s in group.members.items()})
    for _ in range(3):
        assigned = assignor.assign(group)
        group = replace(
            group,
            members={
                m.member_id: replace(m, owned=tuple(assigned[m.member_id]), generation=4)
                for m in group.members.values()
            },
        )
    assert in_words(assignor.assign(group)) == in_words(assigned)


def test_a_take_of_nothing_is_no_extra() -> None:
    """`i743` has its one partition by its rack; it must not use up the extra of `c-g0` too."""
    zones = (frozenset({"r0"}), frozenset({"r1"}))
    members = [
        MemberSnapshot("c-g0", ("t1",), rack_id="r0"),
        MemberSnapshot("c-m2", ("t1",), rack_id="r2"),
        MemberSnapshot("c-s1", ("t1",), group_instance_id="i743", rack_id="r0"),
    ]
    group = GroupSnapshot({m.member_id: m for m in members}, {"t1": TopicSnapshot(2, zones)})
    assert in_words(KAFKA["range"].assign(group)) == {"c-g0": ["t1-1"], "c-m2": [], "c-s1": ["t1-0"]}


def test_the_range_of_kafkas_servers_knows_no_racks() -> None:
    zones = (frozenset({"far"}), frozenset({"near"}))
    members = [MemberSnapshot("a", ("t",), rack_id="near"), MemberSnapshot("b", ("t",), rack_id="far")]
    group = GroupSnapshot({m.member_id: m for m in members}, {"t": TopicSnapshot(2, zones)})
    assert in_words(assign_range_without_racks(group)) == {"a": ["t-0"], "b": ["t-1"]}
    assert in_words(KAFKA["range"].assign(group)) == {"a": ["t-1"], "b": ["t-0"]}


def test_the_user_data_of_kafkas_clients_says_what_a_member_had() -> None:
    """`sticky` takes it instead of the fields; what cannot be read counts as nothing."""

    def assigned(name: str, data: bytes) -> dict[str, list[str]]:
        had = MemberSnapshot("a", ("t",), owned=(partition("t-1"),), generation=-1, user_data=data)
        rival = MemberSnapshot("b", ("t",), owned=(partition("t-1"),), generation=4)
        group = GroupSnapshot({"a": had, "b": rival}, {"t": TopicSnapshot(2)})
        return in_words(KAFKA[name].assign(group))

    newer, older = {"a": ["t-1"], "b": ["t-0"]}, {"a": ["t-0"], "b": ["t-1"]}
    data = struct.pack(">ih1siii", 1, 1, b"t", 1, 1, 5)
    assert assigned("sticky", data) == newer
    for unreadable in (data[:-4], data[:7], b"\xff"):
        assert assigned("sticky", unreadable) == older
    assert assigned("cooperative-sticky", b"\0\0\0\5")["a"] == ["t-1"]
    assert assigned("cooperative-sticky", b"\0") == {"a": ["t-0"], "b": ["t-1"]}


def test_racks_are_those_of_each_partition() -> None:
    with pytest.raises(ValueError, match="racks of 1 partitions, not of 2"):
        TopicSnapshot(2, (frozenset({"r0"}),))
