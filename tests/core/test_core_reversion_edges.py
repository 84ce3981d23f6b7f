"""A way back meets deletions of topics, and ids that were given out (docs/safety.md, INC-158, INC-159)."""

import gc
from dataclasses import replace
from weakref import ref

import pytest
from core.test_core_conversions import Changing, stable
from core.test_core_reversions import AUTO, CLASSIC, INCREMENTAL, Returning, both, convert, plan_of
from kit.lives.incremental_shard import incremental_of, incremental_shard, joined, settle
from kit.lives.stream_member import StreamMember, let_move
from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.events import Attach, Tick, TopicsChanged
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position
from muster_protos.muster.v1 import coordinator_pb2, group_conversion_pb2, session_pb2

NOTHING = -1


def make_anew(cluster: VirtualShard) -> None:
    """Topic `t` is deleted, and made again."""
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(11, {"t": 4}, {"t": 10}, {"t": 11})))


def commit(cluster: VirtualShard, owned: dict[TopicPartition, Position], *, generation: int = 0) -> int:
    """Sends a commit of member `a` by the token of its first partition; gives the call."""
    (topic, number), token = sorted(owned.items())[0]
    request = coordinator_pb2.OffsetCommitRequest(
        group_id="g", member_id="a", member_epoch=1, member_seq=1, generation=generation
    )
    entry = request.topics.add(name=topic).partitions.add(partition=number, offset=77)
    entry.token.CopyFrom(token.to_proto())
    return cluster.send(request)


def outcome(cluster: VirtualShard, call_id: int) -> int:
    """What became of the partition."""
    answer = cluster.answer(call_id)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def test_what_was_taken_of_a_deleted_topic_is_given_back_first() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b", on_streams=True)
    owned = dict(a.owned)
    make_anew(cluster)
    assert incremental_of(cluster).members["a"].pending == owned.keys(), "asked for, and not given back"
    assert convert(cluster) == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(cluster, commit(cluster, owned)) == error_code.UNKNOWN_TOPIC_OR_PARTITION
    let_move(*[one for one in (a, b) if isinstance(one, StreamMember)])
    assert convert(cluster) == error_code.NONE
    assert fetched(cluster) == NOTHING
    assert not broken_promises(cluster)


def test_no_commit_in_a_topic_that_was_deleted_since_counts() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, _ = both(cluster, "a", "b", on_streams=True)
    assert convert(cluster) == error_code.NONE
    make_anew(cluster)
    for generation in (0, -1):
        call_id = commit(cluster, a.owned, generation=generation)
        assert outcome(cluster, call_id) == error_code.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(cluster) == NOTHING
    assert not broken_promises(cluster)


def test_nor_in_one_whose_deletion_follows_the_reversion_to_the_log() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, _ = both(cluster, "a", "b", on_streams=True)
    cluster.auto_ack = False
    cluster.send(group_conversion_pb2.ConvertGroupRequest(group_id="g", kind=CLASSIC))
    make_anew(cluster)
    assert [one.records[0].WhichOneof("kind") for one in cluster.waiting] == ["group_reverted", "topics_seen"]
    cluster.acknowledge()
    call_id = commit(cluster, a.owned)
    while cluster.waiting:
        cluster.acknowledge()
    assert outcome(cluster, call_id) == error_code.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(cluster) == NOTHING
    assert not broken_promises(cluster)


def test_an_id_that_was_given_out_is_no_second_member_on_the_way_back() -> None:
    cluster = incremental_shard(4, config=AUTO)
    (one,) = stable(cluster, "one")
    late = Changing(cluster, "late")
    late.seq = 1
    answer = cluster.ask(late.join_request(member_seq=1, process_id=late.process_id))
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    assert answer.error_code == error_code.MEMBER_ID_REQUIRED
    late.member_id = answer.member_id
    assert convert(cluster, INCREMENTAL) == error_code.NONE
    member, other = late.turn(has_stopped=True), one.turn()
    member.classic_protocols = ["range"]
    assert not member.join().error_code
    settle(other, member)
    request = coordinator_pb2.OffsetCommitRequest(
        group_id="g", member_id=member.member_id, member_epoch=member.epoch, member_seq=5
    )
    for (topic, number), token in member.owned.items():
        entry = request.topics.add(name=topic).partitions.add(partition=number, offset=5)
        entry.token.CopyFrom(token.to_proto())
    cluster.ask(request)
    assert convert(cluster) == error_code.NONE
    Returning(member).enter()
    again = cluster.shard.groups["g"].members[member.member_id]
    assert again.recorded
    assert again.commit_seq == 5, "or a late commit would pass"


def test_who_left_as_a_classic_member_comes_back_under_its_id() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    assert convert(cluster) == error_code.NONE
    assert a.leave().member_epoch == -1
    one = Returning(b).enter()
    one.joined()
    one.sync({"b": plan_of(0, 1, 2, 3)})
    assert len(one.take()) == 4
    assert convert(cluster, INCREMENTAL) == error_code.NONE
    assert a.join().error_code == error_code.NONE
    assert convert(cluster) == error_code.NONE
    again = Returning(a).enter()
    one.seq += 1
    one.join(member_seq=one.seq, process_id=one.process_id)
    assert again.joined().generation == one.joined().generation
    assert not broken_promises(cluster)


def test_a_group_whose_members_are_all_in_their_first_join_is_not_converted() -> None:
    """INC-70: there is nobody that the record could name."""
    cluster = incremental_shard(4, config=AUTO)
    (one,) = stable(cluster, "one")
    late = Changing(cluster, "late").enter()
    about_to_join = Changing(cluster, "next")
    cluster.ask(about_to_join.join_request(member_seq=1, process_id=about_to_join.process_id))
    assert one.leave() == error_code.NONE
    assert late.is_parked
    kinds = cluster.kinds()
    assert convert(cluster, INCREMENTAL) == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert cluster.kinds() == kinds
    cluster.advance(300_000)
    assert late.joined().error_code == error_code.NONE
    assert not broken_promises(cluster)


@pytest.mark.parametrize("waits_for", ["a conversion", "an assignment", "the end of a hold"])
def test_no_wait_keeps_a_group_that_was_deleted(waits_for: str) -> None:
    """LIM-60: there may be many of them, and they count nowhere."""
    cluster = incremental_shard(4, config=replace(AUTO, incremental_assignment_interval_ms=600_000))
    if waits_for == "a conversion":
        stable(cluster, "a")[0].leave()
    else:
        members = joined(cluster, "a", "b")
        if waits_for == "the end of a hold":
            members[0].seq += 1
            request = members[0].request(0)
            request.topics.names.append("t")
            request.rebalance_timeout_ms, request.rollout_hold_ms = 30_000, 3_600_000
            request.owned.SetInParent()
            members[0].ask(request)
            assert incremental_of(cluster).holds_moves
        for member in members:
            member.leave()
    group = ref(cluster.shard.groups["g"])
    cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    cluster.feed(Tick())
    cluster.appends.clear()
    gc.collect()
    assert group() is None
    assert not cluster.shard._targets.holds._ends
    cluster.advance(100_000_000)


def test_a_group_is_converted_with_the_weights_that_are_stored() -> None:
    """INC-160: of a join that is in no record nobody knows what it said, as the audit finds (I9)."""
    cluster = incremental_shard(4, config=AUTO)
    one, _ = stable(cluster, "a", "b")
    one.weight = 3
    one.enter()
    assert one.is_parked
    assert convert(cluster, INCREMENTAL) == error_code.NONE
    assert incremental_of(cluster).members[one.member_id].told.weight == 1
    assert not broken_promises(cluster)


@pytest.mark.parametrize("on_stream", [True, False], ids=["stream", "unary"])
def test_who_is_to_join_beats_in_any_epoch_that_it_was_in(on_stream: bool) -> None:
    """INC-153: its session lasts as long as it beats, while the group waits for it, and no longer."""
    config = replace(AUTO, incremental_session_timeout_ms=25_000, max_session_timeout_ms=60_000)
    cluster = incremental_shard(4, config=config)
    (a,) = both(cluster, "a")
    old, b = a.epoch, both(cluster, "b")[0]
    a.beat(a.owned)
    settle(a, b)
    assert convert(cluster) == error_code.NONE
    generation = cluster.shard.groups["g"].generation
    assert 0 < old < generation
    member = cluster.shard.groups["g"].members["a"]

    def live(epoch: int) -> int:
        if on_stream:
            attach = session_pb2.Attach(group_id="g", member_id="a", generation=epoch)
            cluster.feed(Attach(7, attach, knows_unsure=True))
            result = cluster.pushes[-1].message
            assert isinstance(result, session_pb2.AttachResult)
            return result.error_code
        one = VirtualMember(cluster, "a")
        one.member_id, one.generation = "a", epoch
        return one.heartbeat()

    other = Returning(b).enter()
    for epoch in (old, generation):
        cluster.advance(10_000)
        assert member.heartbeat is not None
        before_ms = member.heartbeat.deadline_ms
        assert live(epoch) == error_code.REBALANCE_IN_PROGRESS
        assert member.heartbeat.deadline_ms == before_ms + 10_000
    for epoch in (0, -1, generation + 1):
        assert live(epoch) == error_code.ILLEGAL_GENERATION
    assert Returning(a).enter().joined().generation == generation + 1
    other.joined()
    assert live(old) == live(generation) == error_code.ILLEGAL_GENERATION
