"""Groups for the tests of assignors: drawn ones, and those of the vectors."""

from typing import Any

from hypothesis import strategies as st
from muster_assignors import GroupSnapshot, MemberSnapshot, TopicPartition, TopicSnapshot

TOPICS = ("t0", "t1", "t2", "absent")
RACKS = ("r0", "r1", "r2")


def partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def group_of(vector: dict[str, Any]) -> GroupSnapshot:
    racks = vector.get("partition_racks", {})
    return GroupSnapshot(
        members={
            m["member_id"]: MemberSnapshot(
                m["member_id"],
                tuple(m["topics"]),
                group_instance_id=m.get("group_instance_id", ""),
                rack_id=m.get("rack", ""),
                owned=tuple(map(partition, m.get("owned_partitions", ()))),
                generation=m.get("generation", -1),
            )
            for m in vector["members"]
        },
        topics={
            name: TopicSnapshot(count, tuple(frozenset(entry) for entry in racks.get(name, ())))
            for name, count in vector["topics"].items()
        },
    )


@st.composite
def groups(draw: st.DrawFn) -> GroupSnapshot:
    """Groups with racks, static members, topics that are not there, and claims that contradict each other."""
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    topics = {}
    for number, count in enumerate(counts):
        racks = draw(st.lists(st.frozensets(st.sampled_from(RACKS)), min_size=count, max_size=count))
        topics[f"t{number}"] = TopicSnapshot(count, tuple(racks) if draw(st.booleans()) else ())
    claims = st.tuples(st.sampled_from(TOPICS), st.integers(0, 10)).map(lambda p: TopicPartition(*p))
    alike = draw(st.none() | st.sets(st.sampled_from(TOPICS), min_size=1))
    members = {}
    for number in range(draw(st.integers(1, 7))):
        wanted = alike or draw(st.sets(st.sampled_from(TOPICS)))
        members[f"m{number}"] = MemberSnapshot(
            f"m{number}",
            tuple(sorted(wanted)),
            group_instance_id=draw(st.sampled_from(["", f"static-{number}"])),
            rack_id=draw(st.sampled_from(["", *RACKS])),
            owned=tuple(draw(st.lists(claims, max_size=12))),
            keeps_owned=True,
            generation=draw(st.integers(-1, 3)),
        )
    return GroupSnapshot(members, topics)
