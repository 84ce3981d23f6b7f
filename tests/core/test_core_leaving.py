"""Leaving in batches: who is named as the cause, ids that were never used, what a slow log does."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

LEFT = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
ADMIN = common_pb2.REBALANCE_CAUSE_KIND_ADMIN

Leaver = coordinator_pb2.LeaveGroupRequest.Member


def leave(cluster: VirtualShard, *leavers: coordinator_pb2.LeaveGroupRequest.Member) -> list[int]:
    """Errors of a batch."""
    answer = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id="g", members=leavers))
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    return [entry.error_code for entry in answer.members]


def pending(cluster: VirtualShard, name: str, request_id: str = "") -> VirtualMember:
    """A member that got its id and has not used it."""
    who = acts.member(cluster, name)
    who.member_id = acts.ask_join(who, request_id=request_id).member_id
    return who


def pending_ids(cluster: VirtualShard) -> list[str]:
    return list(cluster.shard.groups["g"].pending_members)


@pytest.mark.row("LG-06")
@pytest.mark.row("LG-17")
@pytest.mark.parametrize(("count", "others"), [(1, ""), (2, " and 1 other"), (3, " and 2 others")])
def test_the_first_of_a_batch_is_the_cause_and_the_others_are_counted(count: int, others: str) -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b", "c", "d")
    leavers = members[1 : count + 1]
    batch = [Leaver(member_id=who.member_id, reason=f"reason {who.name}") for who in leavers]
    assert leave(cluster, *batch) == [0] * count
    cause = cluster.describe().cause
    assert (cause.kind, cause.member_id, cause.reason) == (LEFT, leavers[0].member_id, "reason b")
    assert cause.sentence == f"Member {leavers[0].member_id} at 10.0.0.1{others} left the group: reason b."


@pytest.mark.row("LG-09")
@pytest.mark.parametrize("named", [False, True])
def test_an_operator_removes_by_instance_and_a_member_leaves_by_its_id(named: bool) -> None:
    cluster = acts.shard()
    first, _ = acts.stable(cluster, "a=i", "b")
    leaver = Leaver(group_instance_id="i", member_id=first.member_id if named else "", reason="swap")
    assert leave(cluster, leaver) == [0]
    assert cluster.describe().cause.kind == (LEFT if named else ADMIN)


@pytest.mark.row("LG-04")
def test_a_member_leaves_once_in_a_batch() -> None:
    cluster = acts.shard()
    _, second, third = acts.stable(cluster, "a", "b", "c=k")
    batch = [
        Leaver(member_id=second.member_id),
        Leaver(member_id=second.member_id),
        Leaver(group_instance_id="k"),
        Leaver(group_instance_id="k"),
        Leaver(member_id=third.member_id),
    ]
    assert leave(cluster, *batch) == [0, 25, 0, 25, 25]
    assert cluster.kinds()[-2:] == ["member_left", "member_left"]
    assert len(cluster.describe().members) == 1


@pytest.mark.row("PM-06")
@pytest.mark.row("LG-15")
def test_giving_unused_ids_back_rebalances_in_the_name_of_the_first() -> None:
    cluster = acts.shard()
    (first,) = acts.stable(cluster, "a")
    one, two = pending(cluster, "b"), pending(cluster, "c")
    cluster.advance(40)
    assert leave(
        cluster,
        Leaver(member_id=one.member_id, reason="never mind"),
        Leaver(member_id=two.member_id, reason="neither"),
    ) == [0, 0]
    assert pending_ids(cluster) == []
    cause = cluster.describe().cause
    assert (cause.kind, cause.member_id, cause.reason) == (LEFT, one.member_id, "never mind")
    assert cause.sentence == f"Member {one.member_id} left the group: never mind."
    assert cause.at_ms == cluster.now.wall_ms
    assert first.heartbeat() == 27
    assert "member_left" not in cluster.kinds(), "the log never knew them"


@pytest.mark.row("PM-06")
def test_giving_an_unused_id_back_leaves_an_empty_group_empty() -> None:
    cluster = acts.shard()
    who = pending(cluster, "a")
    assert leave(cluster, Leaver(member_id=who.member_id)) == [0]
    assert (cluster.state(), pending_ids(cluster), cluster.kinds()) == ("Empty", [], [])
    cluster.advance(10 * SESSION_MS)
    assert (cluster.state(), cluster.describe().generation) == ("Empty", 0)


@pytest.mark.row("LG-15")
def test_an_unused_id_and_a_member_leave_in_the_name_of_the_member() -> None:
    cluster = acts.shard()
    _, second = acts.stable(cluster, "a", "b")
    who = pending(cluster, "c")
    batch = [Leaver(member_id=who.member_id), Leaver(member_id=second.member_id), Leaver(member_id="x")]
    assert leave(cluster, *batch) == [0, 0, 25]
    assert cluster.describe().cause.member_id == second.member_id
    assert pending_ids(cluster) == []


@pytest.mark.row("LG-10")
def test_an_instance_id_does_not_give_an_unused_id_back() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a=i")
    who = pending(cluster, "b")
    leavers = [Leaver(member_id=who.member_id, group_instance_id=name) for name in ("i", "nobody")]
    assert leave(cluster, *leavers) == [82, 25]
    assert pending_ids(cluster) == [who.member_id]
    assert cluster.state() == "Stable"


@pytest.mark.row("PM-02")
@pytest.mark.parametrize("used", [False, True])
def test_the_time_of_an_id_that_was_given_back_is_over_with_it(used: bool) -> None:
    """One join asks again and gets another id: it has a whole session to use that."""
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = pending(cluster, "b", "r")
    cluster.advance(1)
    if used:
        who.join(request_id="r")
    assert leave(cluster, Leaver(member_id=who.member_id)) == [0]
    cluster.advance(4_999)
    again = acts.ask_join(who, member_id="", request_id="r").member_id
    assert again != who.member_id
    cluster.advance(SESSION_MS - 1)
    assert pending_ids(cluster) == [again]
    cluster.advance(1)
    assert pending_ids(cluster) == []


@pytest.mark.row("LG-01")
def test_answers_name_who_was_asked_for() -> None:
    cluster = acts.shard()
    asked = [Leaver(member_id="m", group_instance_id="i"), Leaver(member_id="n")]
    answer: Any = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id="g", members=asked))
    unknown = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
    assert answer == coordinator_pb2.LeaveGroupResponse(
        shard_epoch=1,
        members=[
            coordinator_pb2.LeaveGroupResponse.Member(
                member_id="m", group_instance_id="i", error_code=unknown
            ),
            coordinator_pb2.LeaveGroupResponse.Member(member_id="n", error_code=unknown),
        ],
    )
    assert cluster.shard.groups == {}


@pytest.mark.row("LG-17")
def test_a_slow_log_answers_a_batch_retriably_and_it_still_counts() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    cluster.auto_ack = False
    call = cluster.send(
        coordinator_pb2.LeaveGroupRequest(group_id="g", members=[Leaver(member_id=second.member_id)])
    )
    cluster.advance(4_999)
    assert cluster.is_parked(call)
    cluster.advance(1)
    assert acts.error_of(cluster.answer(call)) == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.acknowledge()
    assert first.heartbeat() == 27
    assert [entry.member_id for entry in cluster.describe().members] == [first.member_id]
