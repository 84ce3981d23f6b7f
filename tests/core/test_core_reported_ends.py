"""Ends that members report: kept in memory, of what they own, and gone with it."""

from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import TopicsChanged
from muster_protos.muster.v1 import common_pb2, coordinator_pb2


def plan(*numbers: int) -> bytes:
    topics = [common_pb2.TopicPartitions(topic="t", partitions=numbers)]
    return common_pb2.Assignment(version=1, partitions=topics).SerializeToString()


def owners(cluster: VirtualShard) -> tuple[VirtualMember, VirtualMember]:
    """`a` owns 0 and 1, `b` owns 2."""
    a, b = settled(cluster, "a", "b")
    assign(cluster, a, b)
    return a, b


def assign(cluster: VirtualShard, a: VirtualMember, b: VirtualMember) -> None:
    """Both join again, and get their own."""
    for member in (a, b):
        member.protocols = [("range", member.protocols[0][1] + b"+")]
        member.join()
    for member in (a, b):
        assert member.joined().error_code == error_code.NONE
    leader, other = (a, b) if a.members else (b, a)
    other.sync()
    leader.sync({a.member_id: plan(0, 1), b.member_id: plan(2)})
    for member in (a, b):
        assert member.synced().error_code == error_code.NONE


def report(member: VirtualMember, ends: dict[int, int]) -> coordinator_pb2.OffsetCommitResponse:
    request = coordinator_pb2.OffsetCommitRequest(
        group_id="g", member_id=member.member_id, generation=member.generation
    )
    topic = request.ends.add(name="t")
    for number, end in ends.items():
        topic.partitions.add(partition=number, end=end)
    answer = member.cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer


def ends(cluster: VirtualShard, numbers: range = range(4)) -> dict[int, int]:
    request = coordinator_pb2.OffsetFetchRequest()
    request.groups.add(group_id="g").topics.add(topic="t", partitions=numbers)
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetFetchResponse)
    found = answer.groups[0].topics[0].partitions
    return {entry.partition: entry.end for entry in found if entry.HasField("end")}


def test_ends_are_of_what_the_member_owns_and_write_nothing() -> None:
    cluster = VirtualShard()
    a, b = owners(cluster)
    written = len(cluster.log)
    assert report(a, {0: 10, 1: 0, 2: 99, 3: 99}).error_code == error_code.NONE
    assert ends(cluster) == {0: 10, 1: 0}
    assert report(b, {2: 7}).error_code == error_code.NONE
    assert report(a, {0: 11}).error_code == error_code.NONE
    assert ends(cluster) == {0: 11, 1: 0, 2: 7}
    assert len(cluster.log) == written
    assert ends(cluster.reloaded()) == {}, "the next owner is told again"


def test_a_report_that_is_refused_says_so_and_notes_nothing() -> None:
    cluster = VirtualShard()
    a, _ = owners(cluster)
    a.generation -= 1
    assert report(a, {0: 10}).error_code == error_code.ILLEGAL_GENERATION
    a.member_id = "nobody"
    assert report(a, {0: 10}).error_code == error_code.UNKNOWN_MEMBER_ID
    assert ends(cluster) == {}


def test_ends_travel_with_a_commit_and_are_listed_with_it() -> None:
    cluster = VirtualShard()
    a, _ = owners(cluster)
    request = a.commit_request(5, seq=1)
    request.ends.add(name="t").partitions.add(partition=0, end=9)
    cluster.ask(request)
    everything = coordinator_pb2.OffsetFetchRequest()
    everything.groups.add(group_id="g", limit=100)
    answer = cluster.ask(everything)
    assert isinstance(answer, coordinator_pb2.OffsetFetchResponse)
    (entry,) = answer.groups[0].topics[0].partitions
    assert (entry.offset, entry.end) == (5, 9)
    assert entry.committed_at_ms == cluster.shard.groups["g"].offsets.newest_ms > 0


def test_ends_go_with_the_partition_and_stay_over_a_rebalance_and_when_all_have_left() -> None:
    cluster = VirtualShard()
    a, b = owners(cluster)
    empty = cluster.shard.groups["g"].held_bytes
    report(a, {0: 10, 1: 11})
    assert cluster.shard.groups["g"].held_bytes == empty + cluster.shard.groups["g"].ends.held_bytes > empty
    assign(cluster, a, b)
    assert ends(cluster) == {0: 10, 1: 11}
    b.leave()
    assert a.join().joined().error_code == error_code.NONE
    a.sync({a.member_id: plan(1, 2)})
    a.synced()
    assert ends(cluster) == {1: 11}, "nobody owns 0, so nobody would report it"
    a.leave()
    cluster.advance(1_000)
    assert ends(cluster) == {1: 11}, "what is left to do is known while nobody works"
    cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    assert "g" not in cluster.shard.groups


def test_what_is_removed_of_a_partition_takes_its_end() -> None:
    cluster = VirtualShard()
    a, b = owners(cluster)
    a.commit(5)
    report(a, {0: 10, 1: 11})
    a.leave()
    b.leave()
    cluster.advance(1_000)
    removal = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    removal.topics.add(topic="t", partitions=[0])
    cluster.ask(removal)
    assert ends(cluster) == {1: 11}
    assert cluster.shard.groups["g"].ends.held_bytes > 0


def test_the_end_of_a_topic_that_was_deleted_is_not_that_of_the_one_created_again() -> None:
    cluster = VirtualShard()
    cluster.feed(TopicsChanged(frozenset(), catalog=Catalog(5, {"t": 4}, {})))
    a, b = owners(cluster)
    report(a, {0: 10})
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(7, {"t": 4}, {"t": 6}), carried_out=5))
    assert ends(cluster) == {}
    report(a, {0: 10})
    assert ends(cluster) == {}, "what it works at is of the topic before"
    assert cluster.shard.groups["g"].ends.held_bytes == 0
    assign(cluster, a, b)
    assert ends(cluster) == {}
    report(a, {0: 3})
    assert ends(cluster) == {0: 3}


def test_a_full_shard_takes_no_further_ends_and_those_that_it_has_it_goes_on_taking() -> None:
    cluster = VirtualShard(GroupConfig(max_bytes_per_shard=1 << 20))
    a, _ = owners(cluster)
    assert report(a, {0: 10}).error_code == error_code.NONE
    group = cluster.shard.groups["g"]
    group.ends.held_bytes += 2 << 20
    group.weigh()
    assert report(a, {1: 11}).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert report(a, {0: 12}).error_code == error_code.NONE
    assert ends(cluster) == {0: 12}
