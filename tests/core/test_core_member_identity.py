"""A member belongs to the identity that joined: nobody else acts for it, whoever owns the shard by then."""

from collections.abc import Callable
from typing import Any

import pytest
from conformance import acts
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.events import Attach, Detach
from muster_core.fault import event_of, message_of
from muster_core.features import ALL_FEATURES, Feature
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

UNKNOWN, FENCED = error_code.UNKNOWN_MEMBER_ID, error_code.FENCED_INSTANCE_ID
OWNER, THIEF = "spiffe://shop/owner", "spiffe://shop/thief"
Leaver = coordinator_pb2.LeaveGroupRequest.Member


def shard_of_owner(**config: Any) -> VirtualShard:
    cluster = acts.shard(**config)
    cluster.identity = OWNER
    return cluster


def commit(who: VirtualMember) -> int:
    request = coordinator_pb2.OffsetCommitRequest(
        group_id=who.group,
        member_id=who.member_id,
        group_instance_id=who.instance,
        generation=who.generation,
    )
    request.topics.add(name="t").partitions.add(partition=0, offset=5)
    answer = who.cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def leave(cluster: VirtualShard, *leavers: coordinator_pb2.LeaveGroupRequest.Member) -> list[int]:
    answer = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id="g", members=leavers))
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    return [entry.error_code for entry in answer.members]


def attach(who: VirtualMember, stream_id: int) -> int:
    request = session_pb2.Attach(
        group_id=who.group, member_id=who.member_id, generation=who.generation, group_instance_id=who.instance
    )
    who.cluster.feed(Attach(stream_id, request, identity=who.cluster.identity))
    result = who.cluster.pushes[-1].message
    assert isinstance(result, session_pb2.AttachResult)
    return result.error_code


def refused_everything(who: VirtualMember) -> bool:
    """Whether each call in the name of a member is answered as if nobody had its id."""
    return {
        "heartbeat": who.heartbeat(),
        "commit": commit(who),
        "sync": acts.ask_sync(who).error_code,
        "join": acts.ask_join(who).error_code,
        "attach": attach(who, 77),
        "leave": leave(who.cluster, Leaver(member_id=who.member_id))[0],
    } == dict.fromkeys(("heartbeat", "commit", "sync", "join", "attach", "leave"), UNKNOWN)


def as_it_is(cluster: VirtualShard) -> VirtualShard:
    return cluster


def taken_over(cluster: VirtualShard) -> VirtualShard:
    return cluster.reloaded()


@pytest.mark.parametrize("after", [as_it_is, taken_over])
@pytest.mark.parametrize("thief", [THIEF, ""])
def test_nobody_but_its_identity_acts_for_a_member(
    after: Callable[[VirtualShard], VirtualShard], thief: str
) -> None:
    before = shard_of_owner()
    (who,) = acts.stable(before, "a")
    cluster = who.cluster = after(before)
    cluster.identity = thief
    records = len(cluster.log)
    assert refused_everything(who)
    assert (len(cluster.log), len(cluster.describe().members)) == (records, 1)
    cluster.identity = OWNER
    assert (who.heartbeat(), commit(who), attach(who, 1)) == (0, 0, 0)
    assert leave(cluster, Leaver(member_id=who.member_id)) == [0]


def test_a_foreign_call_neither_prolongs_a_session_nor_takes_a_stream() -> None:
    cluster = shard_of_owner()
    (who,) = acts.stable(cluster, "a")
    assert attach(who, 1) == 0
    cluster.identity = THIEF
    assert attach(who, 2) == UNKNOWN
    assert cluster.shard.streams == 1
    cluster.feed(Detach(1, session_pb2.Detach(group_id="g", member_id=who.member_id)))
    cluster.advance(acts.SESSION_MS // 2)
    assert who.heartbeat() == UNKNOWN
    cluster.advance(acts.SESSION_MS // 2)
    assert cluster.describe().members == []


def test_an_id_that_was_given_out_is_used_by_who_got_it() -> None:
    cluster = shard_of_owner()
    (_,) = acts.stable(cluster, "a")
    new = acts.member(cluster, "b")
    new.member_id = acts.ask_join(new).member_id
    cluster.identity = THIEF
    assert acts.ask_join(new).error_code == UNKNOWN
    assert leave(cluster, Leaver(member_id=new.member_id)) == [UNKNOWN]
    cluster.identity = OWNER
    new.join()
    assert new.is_parked


@pytest.mark.parametrize("after", [as_it_is, taken_over])
def test_the_place_of_a_static_member_is_taken_by_its_identity_alone(
    after: Callable[[VirtualShard], VirtualShard],
) -> None:
    before = shard_of_owner()
    (first,) = acts.stable(before, "a=i")
    cluster = after(before)
    cluster.identity = THIEF
    other = acts.member(cluster, "b=i")
    assert acts.ask_join(other).error_code == FENCED
    other.member_id = first.member_id
    assert acts.ask_join(other).error_code == UNKNOWN
    cluster.identity = OWNER
    heir = acts.member(cluster, "c=i").join()
    assert heir.joined().error_code == 0
    cluster.identity = THIEF
    assert heir.heartbeat() == UNKNOWN
    cluster = cluster.reloaded()
    cluster.identity = THIEF
    assert acts.ask_join(acts.member(cluster, "d=i")).error_code == FENCED


def test_of_two_who_want_a_place_while_a_record_is_on_its_way_the_second_does_not_get_it() -> None:
    cluster = shard_of_owner()
    acts.stable(cluster, "a")
    cluster.auto_ack = False
    other = acts.member(cluster, "a2")
    other.member_id = acts.ask_join(other).member_id
    gone = acts.member(cluster, "x")
    gone.member_id = next(iter(cluster.shard.groups["g"].members))
    cluster.send(coordinator_pb2.LeaveGroupRequest(group_id="g", members=[Leaver(member_id=gone.member_id)]))
    assert cluster.shard.groups["g"].line.in_flight
    mine = acts.member(cluster, "b=i").join()
    cluster.identity = THIEF
    theirs = acts.member(cluster, "c=i").join()
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    assert theirs.joined().error_code == FENCED
    assert mine.is_parked or mine.joined().error_code == 0


def test_a_member_of_nobody_belongs_to_the_identity_of_its_next_join() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.identity = THIEF
    assert who.heartbeat() == 0
    cluster.identity = OWNER
    acts.rejoined(who)
    cluster.identity = THIEF
    assert refused_everything(who)


def test_an_operator_puts_members_of_others_out() -> None:
    cluster = shard_of_owner()
    first, second, third = acts.stable(cluster, "a", "b=i", "c=k")
    cluster.identity = THIEF
    batch = [
        Leaver(member_id=first.member_id),
        Leaver(member_id=second.member_id, group_instance_id="i"),
        Leaver(group_instance_id="k"),
    ]
    cluster.is_operator = False
    assert leave(cluster, *batch) == [UNKNOWN] * 3
    cluster.is_operator = None  # nobody says who is one: whoever names an instance id counts as one
    assert leave(cluster, *batch[:2]) == [UNKNOWN] * 2
    assert leave(cluster, *batch) == [UNKNOWN, UNKNOWN, 0]
    cluster.is_operator = True
    assert leave(cluster, *batch) == [0, 0, UNKNOWN]
    assert not third.cluster.describe().members


def test_before_its_feature_nothing_of_an_identity_is_written_and_nobody_is_bound() -> None:
    cluster = VirtualShard(features=ALL_FEATURES - {Feature.MEMBER_IDENTITY})
    cluster.identity = OWNER
    who = acts.member(cluster, "a").join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert who.joined().error_code == 0
    assert not [True for _, record in cluster.log if OWNER.encode() in record.SerializeToString()]
    cluster.identity = THIEF
    assert who.heartbeat() == 0
    # An owner that has not heard of the feature yet takes nothing away that the log says.
    bound = shard_of_owner()
    (who,) = acts.stable(bound, "a")
    bound.features -= {Feature.MEMBER_IDENTITY}
    cluster = who.cluster = bound.reloaded()
    cluster.identity = OWNER
    acts.rejoined(who)
    cluster.identity = THIEF
    assert refused_everything(who)


def test_a_snapshot_keeps_whom_members_belong_to() -> None:
    cluster = shard_of_owner()
    acts.stable(cluster, "a", "b=i")
    acts.member(cluster, "c=i").join()
    check_every_cut(cluster.log, cluster.config)
    assert {member.identity for member in cluster.reloaded().shard.groups["g"].members.values()} == {OWNER}


def test_a_kept_event_is_repeated_in_the_name_of_its_identity() -> None:
    cluster = shard_of_owner()
    (who,) = acts.stable(cluster, "a")
    request = session_pb2.Attach(group_id="g", member_id=who.member_id)
    event = Attach(3, request, knows_unsure=True, identity=OWNER)
    assert event_of(message_of(event, cluster.now)) == event


def test_what_is_kept_of_an_identity_counts_in_the_size_of_a_group() -> None:
    sizes = []
    for identity in ("", "x" * 512):
        cluster = acts.shard()
        cluster.identity = identity
        acts.stable(cluster, "a")
        sizes.append(cluster.shard.groups["g"].size_bytes)
    assert sizes[1] - sizes[0] == 512
