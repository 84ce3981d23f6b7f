"""The assignors against what Kafka's own classes assign, and their general promises."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster import TopicPartition
from muster.assignors import BUILT_IN, GroupSnapshot, MemberSnapshot, TopicSnapshot

VECTORS = json.loads((Path(__file__).parent / "vectors" / "assignors.json").read_text())["vectors"]


def snapshot(vector: dict[str, Any]) -> GroupSnapshot:
    racks = vector.get("partition_racks", {})
    return GroupSnapshot(
        members={
            m["member_id"]: MemberSnapshot(
                m["member_id"],
                tuple(m["topics"]),
                group_instance_id=m.get("group_instance_id", ""),
                rack_id=m.get("rack", ""),
            )
            for m in vector["members"]
        },
        topics={
            name: TopicSnapshot(count, tuple(frozenset(entry) for entry in racks.get(name, ())))
            for name, count in vector["topics"].items()
        },
    )


@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_assigns_as_kafka_does(vector: dict[str, Any]) -> None:
    assignment = BUILT_IN[vector["assignor"]].assign(snapshot(vector))
    assert {m: sorted(map(str, ps)) for m, ps in assignment.items()} == {
        m: sorted(ps) for m, ps in vector["expected"].items()
    }


groups = st.builds(
    lambda topics, members: GroupSnapshot(
        members={f"m{i}": MemberSnapshot(f"m{i}", tuple(sorted(wants))) for i, wants in enumerate(members)},
        topics={f"t{i}": TopicSnapshot(count) for i, count in enumerate(topics)},
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.sets(st.sampled_from(["t0", "t1", "t2", "t3"]), min_size=1), min_size=1, max_size=6),
)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@settings(deadline=None)
@given(group=groups)
def test_every_wanted_partition_has_one_owner_that_wants_it(name: str, group: GroupSnapshot) -> None:
    assignment = BUILT_IN[name].assign(group)
    given_out = [p for partitions in assignment.values() for p in partitions]
    wanted = {
        TopicPartition(topic, number)
        for topic in {t for m in group.members.values() for t in m.topics} & set(group.topics)
        for number in range(group.topics[topic].partitions)
    }
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    assert set(assignment) == set(group.members)
    assert all(p.topic in group.members[m].topics for m, ps in assignment.items() for p in ps)
