"""What operators see of incremental groups, and do to them."""

from typing import Any

import pytest
from kit.lives.incremental_shard import (
    AWAY,
    GROUP,
    NumberedMember,
    incremental_of,
    incremental_shard,
    joined,
    settle,
)
from kit.lives.virtual_shard import VirtualShard, settled
from kit.logs.snapshots import check_every_cut
from muster_core import error_code, record_bounds
from muster_core.incremental.partitions import named_in
from muster_core.state.published import partitions_in
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

UNKNOWN = error_code.UNKNOWN_MEMBER_ID
Leaver = coordinator_pb2.LeaveGroupRequest.Member


def detail(cluster: VirtualShard) -> incremental_pb2.ConsumerGroupDescribeResponse.Group:
    request = incremental_pb2.ConsumerGroupDescribeRequest(group_ids=[GROUP])
    answer = cluster.ask(request)
    assert isinstance(answer, incremental_pb2.ConsumerGroupDescribeResponse)
    return answer.groups[0]


def listed(cluster: VirtualShard, **filters: Any) -> list[tuple[str, str, int]]:
    answer = cluster.ask(coordinator_pb2.ListGroupsRequest(**filters))
    assert isinstance(answer, coordinator_pb2.ListGroupsResponse)
    return [(group.group_id, group.type, group.state) for group in answer.groups]


def put_out(cluster: VirtualShard, *leavers: Leaver) -> list[int]:
    answer = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=leavers))
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    return [int(outcome.error_code) for outcome in answer.members]


def history(cluster: VirtualShard) -> list[Any]:
    answer = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id=GROUP))
    assert isinstance(answer, coordinator_pb2.GroupHistoryResponse)
    return list(answer.generations)


def on_its_way() -> tuple[VirtualShard, NumberedMember, NumberedMember]:
    """Member `a` is to give half back, and `b` waits for that."""
    cluster = incremental_shard()
    (first,) = joined(cluster, "a")
    second = NumberedMember(cluster, "b")
    second.join()
    first.beat(first.has)
    return cluster, first, second


def test_what_is_on_its_way_is_described_with_who_holds_it_up() -> None:
    cluster, first, second = on_its_way()
    cluster.advance(1_000)
    group = detail(cluster)
    giver, taker = group.members
    revoking = set(named_in(giver.revoking))
    assert len(revoking) == 2
    assert giver.revocation_remaining_ms == 29_000
    assert taker.revocation_remaining_ms == -1
    assert [(one.member_id, set(named_in(one.topics))) for one in taker.awaits] == [("a", revoking)]
    assert taker.session_remaining_ms == cluster.config.incremental_session_timeout_ms - 1_000
    assert group.cause.member_id == "b"
    settle(first, second)
    assert not any(member.awaits for member in detail(cluster).members)


def test_both_kinds_are_described_and_listed() -> None:
    cluster, first, _ = on_its_way()
    settled(cluster, "classic", group="c")
    group = cluster.describe(GROUP)
    assert (group.type, group.protocol_type, group.protocol_name) == ("consumer", "consumer", "uniform")
    assert group.state == coordinator_pb2.GROUP_STATE_RECONCILING
    assert group.generation == incremental_of(cluster).epoch
    assert group.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
    assert {*partitions_in(group.members[0].assignment)} == first.has
    assert group.members[0].token == max(first.owned.values()).token
    reconciling, stable = coordinator_pb2.GROUP_STATE_RECONCILING, coordinator_pb2.GROUP_STATE_STABLE
    consumer, classic = (GROUP, "consumer", reconciling), ("c", "classic", stable)
    assert sorted(listed(cluster)) == [classic, consumer]
    assert listed(cluster, types=["Consumer"]) == [consumer]
    assert listed(cluster, types=["classic"]) == [classic]
    assert listed(cluster, states=["reconciling"]) == [consumer]
    assert cluster.describe("c").type == "classic"


def test_the_history_has_each_epoch_with_its_cause_and_what_moved() -> None:
    cluster, first, second = on_its_way()
    settle(first, second)
    second.leave()
    settle(first)
    epochs = history(cluster)
    assert [one.generation for one in epochs] == [1, 2, 3]
    assert [len(one.members) for one in epochs] == [1, 2, 1]
    assert [len(one.moves) for one in epochs] == [4, 2, 2]
    assert {(move.from_member_id, move.to_member_id) for move in epochs[1].moves} == {("a", "b")}
    kinds = [common_pb2.RebalanceCauseKind.Name(one.cause.kind).rpartition("KIND_")[2] for one in epochs]
    assert kinds == ["MEMBER_JOINED", "MEMBER_JOINED", "MEMBER_LEFT"]
    assert all(one.assigned_at_ms for one in epochs)
    check_every_cut([*cluster.log], cluster.config)


def test_the_history_says_why_a_member_left() -> None:
    cluster = incremental_shard()
    first, second, third = joined(cluster, "a", "b", "c")
    settle(first, second, third)
    assert not second.leave(reason="deployment.").error_code
    settle(first, third)
    assert not third.leave().error_code
    causes = [epoch.cause for epoch in history(cluster)]
    who = ("Member b at 10.0.0.1", "Member c at 10.0.0.1")
    assert [(cause.reason, cause.sentence) for cause in causes[-2:]] == [
        ("deployment.", f"{who[0]} left the group: deployment."),
        ("", f"{who[1]} left the group."),
    ]
    assert group_cause(cluster) == causes[-1]
    check_every_cut([*cluster.log], cluster.config)


def test_an_operator_puts_members_out_and_their_shares_go_to_the_others() -> None:
    cluster = incremental_shard()
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    third = NumberedMember(cluster, "c", instance="i")
    third.join()
    settle(first, second, third)
    assert put_out(cluster, Leaver(member_id="a")) == [UNKNOWN]  # by Kafka's rules: of the other kind
    assert put_out(
        cluster, Leaver(group_instance_id="i", reason="it hangs"), Leaver(group_instance_id="j")
    ) == [
        error_code.NONE,
        UNKNOWN,
    ]
    assert group_cause(cluster).reason == "it hangs"
    assert group_cause(cluster).sentence.endswith("was removed by an operator: it hangs.")
    cluster.is_operator = True
    assert put_out(cluster, Leaver(member_id="a"), Leaver(member_id="a")) == [error_code.NONE, UNKNOWN]
    assert group_cause(cluster).kind == common_pb2.REBALANCE_CAUSE_KIND_ADMIN
    settle(second)
    assert len(second.has) == 4
    assert first.beat().error_code == third.beat().error_code == UNKNOWN


def test_more_than_the_log_takes_at_a_time_are_not_put_out_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = incremental_shard()
    members = joined(cluster, "a", "b", "c")
    settle(*members)
    cluster.is_operator = True
    monkeypatch.setattr(record_bounds, "APPEND_MAX_RECORDS", 3)
    kinds = cluster.kinds()
    request = coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[Leaver(member_id=n) for n in "abc"])
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    assert answer.error_code == error_code.INVALID_REQUEST
    assert "name fewer" in answer.error_message
    assert cluster.kinds() == kinds
    assert put_out(cluster, *request.members[:2]) == [error_code.NONE] * 2
    settle(members[2])
    assert len(members[2].has) == 4


def group_cause(cluster: VirtualShard) -> common_pb2.RebalanceCause:
    cause = cluster.shard.groups[GROUP].cause
    assert cause is not None
    return cause


def test_a_member_of_another_identity_is_put_out_by_an_operator_alone() -> None:
    cluster = incremental_shard()
    cluster.identity = "owner"
    member = NumberedMember(cluster, "a", instance="i")
    member.join()
    cluster.identity, cluster.is_operator = "thief", False
    assert put_out(cluster, Leaver(group_instance_id="i"), Leaver(member_id="a")) == [UNKNOWN] * 2
    cluster.is_operator = True
    assert put_out(cluster, Leaver(group_instance_id="i")) == [error_code.NONE]


def test_a_group_is_deleted_when_it_is_empty_and_begins_anew() -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a", instance="i")
    member.join()
    assert member.leave(AWAY).member_epoch == AWAY
    assert deleted(cluster) == error_code.NON_EMPTY_GROUP  # its place is kept
    member.join()
    member.leave()
    assert deleted(cluster) == error_code.NONE
    assert GROUP not in cluster.shard.groups
    (again,) = joined(cluster, "b")
    assert again.epoch == 1
    assert len(again.has) == 4
    check_every_cut([*cluster.log], cluster.config)


def deleted(cluster: VirtualShard) -> int:
    answer = cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP]))
    assert isinstance(answer, coordinator_pb2.DeleteGroupsResponse)
    return int(answer.results[0].error_code)
