"""Reading records back: also those that a careful writer would not have written."""

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from kit.logs.log_builder import LogBuilder, healthy
from kit.logs.snapshots import picture
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

CONFIG = GroupConfig(initial_rebalance_delay_ms=100)
FOREIGN = b"\xff"


def subscribed(topic: str) -> bytes:
    return common_pb2.Subscription(version=1, topics=[topic]).SerializeToString()


def replayed(built: LogBuilder) -> Group:
    shard = Shard(0, CONFIG)
    for entry in built.entries:
        shard.replay(entry.position, records_pb2.Record.FromString(entry.record))
    return shard.groups["g"]


def test_a_healthy_log_is_replayed() -> None:
    assert replayed(healthy()).generation == 1


def test_a_replaced_member_without_the_groups_protocol_ends_no_load_of_foreign_metadata() -> None:
    built = LogBuilder(metadata=b"")
    built.genesis()
    built.claim()
    built.generation(1, "a", "b=static")
    built.assignment(1, a=[0], b=[1])
    built.replaced(1, "b", "c", "static", protocol="")
    group = replayed(built)
    assert group.members["c"].terms.protocols == ()
    assert group.subscribed_topics is None


TOLD = [field.name for field in records_pb2.Member.DESCRIPTOR.fields if field.name != "member_id"]


@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("name", TOLD)
def test_whatever_a_member_says_with_a_later_join_is_read_back(name: str, later: int) -> None:
    first = records_pb2.Member(member_id="a", session_timeout_ms=6_000, member_seq=7)
    first.protocols.add(name="range", metadata=subscribed("t"))
    second = records_pb2.Member()
    second.CopyFrom(first)
    second.member_seq += later
    before = getattr(second, name)
    if name == "protocols":
        second.protocols.add(name="sticky", metadata=FOREIGN)
    else:
        setattr(second, name, before + (b"x" * 16 if isinstance(before, bytes) else type(before)("5")))
    shard, expected = Shard(0, CONFIG), Member("a")
    for generation, member in enumerate((first, second), 1):
        started = records_pb2.GenerationStarted(
            group_id="g", generation=generation, leader="a", members=[member], protocol_name="range"
        )
        shard.replay(Position(1, generation), records_pb2.Record(generation_started=started))
    expected.adopt(second)
    found, derived = shard.groups["g"].members["a"], {"_participant", "_record"}
    for slot in {*Member.__slots__} - derived:
        assert picture(getattr(found, slot)) == picture(getattr(expected, slot)), slot
    assert found.to_record() == second


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        ([subscribed("t"), subscribed("t")], {"t"}),
        ([subscribed("t"), subscribed("u")], {"t", "u"}),
        ([subscribed("t"), FOREIGN], None),
        ([FOREIGN, subscribed("t")], None),
    ],
)
def test_topics_are_those_of_all_members_live_and_loaded(
    metadata: list[bytes], topics: set[str] | None
) -> None:
    cluster = VirtualShard(CONFIG)
    settled(cluster, "a", "b")
    members = [VirtualMember(cluster, name, "h") for name in ("a", "b")]
    for member, data in zip(members, metadata, strict=True):
        member.protocols = [("range", data)]
        member.join()
    cluster.advance(1_000)
    for shard in (cluster.shard, cluster.reloaded().shard):
        assert shard.groups["h"].subscribed_topics == topics


def test_joining_again_with_other_protocols_is_read_back() -> None:
    cluster = VirtualShard(CONFIG)
    first, second = settled(cluster, "a", "b")
    static = VirtualMember(cluster, "s", instance="i").join()
    for member in (first, second):
        member.protocols = [("sticky", subscribed("t")), ("range", b"m")]
        member.join()
    for member in (first, second, static):
        assert member.joined().error_code == 0
    static.member_id, static.protocols = "", [("range", b"new"), ("sticky", b"new")]
    static.join()
    for member in (first, second):
        member.protocols = [("sticky", subscribed("u"))]
        member.join()
    assert {member.joined().protocol_name for member in (first, second, static)} == {"sticky"}
    for upto in range(3, len(cluster.log) + 1):
        group = cluster.reloaded(upto).shard.groups["g"]
        assert all(group.protocol_name in dict(member.terms.protocols) for member in group.members.values())
    group, again = cluster.shard.groups["g"], cluster.reloaded().shard.groups["g"]
    assert {key: member.terms.protocols for key, member in again.members.items()} == {
        key: member.terms.protocols for key, member in group.members.items()
    }
    assert again.protocol_name == "sticky"


def test_a_take_over_before_the_assignment_passes_the_partitions_on_live_and_loaded() -> None:
    cluster = VirtualShard(CONFIG)
    leader = VirtualMember(cluster, "a", instance="i").join()
    cluster.advance(1_000)
    leader.joined()
    plan = common_pb2.Assignment(
        version=1, partitions=[common_pb2.TopicPartitions(topic="t", partitions=[0])]
    ).SerializeToString()
    leader.sync({leader.member_id: plan}).synced()
    for metadata in (b"n", b"o"):
        leader.protocols = [("range", metadata)]
        leader.join()  # a generation that nobody syncs, and a join phase after it that waits for another
        if metadata == b"n":
            leader.joined()
            VirtualMember(cluster, "b").join()
    leader.member_id = ""
    leader.join(request_id="another process")
    records = [record for _, record in cluster.log]
    assert records[-1].WhichOneof("kind") == "member_replaced"
    new_id = records[-1].member_replaced.member.member_id
    owners = cluster.shard.groups["g"].owners
    assert owners == {("t", 0): (new_id, cluster.log[-1][0])}
    assert cluster.reloaded().shard.groups["g"].owners == owners
