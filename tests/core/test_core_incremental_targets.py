"""Targets that are computed aside, or after a pause (docs/safety.md, INC-30 to INC-35)."""

from collections.abc import Mapping

import pytest
from kit.lives.incremental_shard import (
    AWAY,
    FEATURES,
    GROUP,
    NumberedMember,
    held_in,
    incremental_of,
    joined,
    settle,
    tell_partitions,
)
from kit.lives.server_assignors import SERVER_ASSIGNORS, answer_to
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import Assign, Assigned, TopicsChanged, Unload
from muster_core.incremental.targets.target import Change
from muster_core.position import NOWHERE
from muster_core.protocol.room import Room
from muster_protos.muster.v1.coordinator_pb2 import DeleteGroupsRequest
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse


def shard(config: GroupConfig | None = None, partitions: int = 4) -> VirtualShard:
    """A shard that has all targets computed aside; the test says when."""
    cluster = VirtualShard(config, features=FEATURES)
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
    tell_partitions(cluster, partitions, frozenset())
    return cluster


def settled(*names: str, config: GroupConfig | None = None) -> tuple[VirtualShard, list[NumberedMember]]:
    """Members that have all their shares; from now on the test says when targets are computed."""
    cluster = shard(config)
    cluster.works = answer_to
    members = joined(cluster, *names)
    cluster.works = None
    return cluster, members


def joins(cluster: VirtualShard, name: str, instance: str = "") -> tuple[NumberedMember, int]:
    """A member whose join waits for the target."""
    member = NumberedMember(cluster, name, instance=instance)
    member.seq = 1
    request = member.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    call_id = cluster.send(request)
    assert cluster.is_parked(call_id)
    return member, call_id


def answered(cluster: VirtualShard, call_id: int) -> ConsumerGroupHeartbeatResponse:
    answer = cluster.answer(call_id)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def asked(cluster: VirtualShard) -> Assign:
    """The one assignment that is being computed."""
    (work,) = cluster.work
    cluster.work.clear()
    assert isinstance(work, Assign)
    return work


def give(cluster: VirtualShard, work: Assign, targets: Mapping[str, set[int]]) -> None:
    """The assignor says what each member should have of topic `t`."""
    changes = {}
    for who, numbers in targets.items():
        before = work.question.candidates[who].before
        target = frozenset(("t", number) for number in numbers)
        changes[who] = Change(target - before, before - target)
    cluster.feed(Assigned(work.group_id, work.number, changes))


def targets_in(cluster: VirtualShard) -> dict[str, set[int]]:
    members = incremental_of(cluster).members.values()
    return {member.member_id: {number for _, number in member.target} for member in members}


def epochs(cluster: VirtualShard) -> tuple[int, int]:
    group = incremental_of(cluster)
    return group.epoch, group.target_epoch


# --- late results


def test_requests_that_find_the_target_out_of_date_wait_for_it() -> None:
    cluster, (first,) = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    beat = cluster.send(first.request(first.epoch))
    assert cluster.is_parked(beat)
    assert not cluster.work  # one computation is enough
    cluster.feed(answer_to(work))
    assert answered(cluster, call).member_epoch == 2
    assert len(held_in(answered(cluster, beat))) == 2


def test_who_waits_is_alive() -> None:
    cluster, (first,) = settled("a", config=GroupConfig(incremental_assignment_wait_ms=60_000))
    cluster.advance(40_000)
    beat = cluster.send(first.request(first.epoch))
    assert answered(cluster, beat).member_epoch == 1
    _, call = joins(cluster, "b")
    beat = cluster.send(first.request(first.epoch))
    cluster.advance(40_000)
    assert cluster.is_parked(beat)
    assert cluster.is_parked(call)
    assert set(incremental_of(cluster).members) == {"a", "b"}


def test_a_storm_of_joins_does_not_starve_an_assignment() -> None:
    cluster, _ = settled("a")
    _, early = joins(cluster, "b")
    work = asked(cluster)
    _, late = joins(cluster, "c")
    give(cluster, work, {"a": {0, 1}, "b": {2, 3}})
    assert epochs(cluster) == (3, 2)
    assert answered(cluster, early).member_epoch == 2
    assert cluster.is_parked(late)
    following = asked(cluster)
    assert set(following.question.candidates) == {"a", "b", "c"}
    give(cluster, following, {"a": {0}, "b": {2, 3}, "c": {1}})
    assert epochs(cluster) == (3, 3)
    assert answered(cluster, late).member_epoch == 3


def test_the_share_of_a_member_that_is_gone_stays_where_it_is() -> None:
    cluster, _ = settled("a")
    newcomer, _ = joins(cluster, "b")
    work = asked(cluster)
    newcomer.leave()
    give(cluster, work, {"a": {0, 1}, "b": {2, 3}})
    assert targets_in(cluster) == {"a": {0, 1, 2, 3}}


def test_a_share_that_nobody_has_waits_for_the_next_assignment() -> None:
    cluster, (first, _) = settled("a", "b")
    newcomer, _ = joins(cluster, "c")
    work = asked(cluster)
    first.leave()
    newcomer.leave()
    give(cluster, work, {"a": {0}, "b": {2, 3}, "c": {1}})
    assert targets_in(cluster) == {"b": {2, 3}}


def test_a_member_of_another_id_gets_nothing_and_the_same_batch_raises_the_epoch() -> None:
    cluster = shard()
    cluster.works = answer_to
    (first,) = joined(cluster, "a")
    holder = NumberedMember(cluster, "b", instance="i", process="one")
    holder.join()
    settle(first, holder)
    cluster.works = None
    _, call = joins(cluster, "c")
    work = asked(cluster)
    named = incremental_of(cluster).members["b"].joined
    holder.leave(AWAY)
    follower = NumberedMember(cluster, "d", instance="i", process="two")
    follower.seq = 1
    request = follower.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    request.replaces.CopyFrom(named.to_proto())
    cluster.send(request)
    assert epochs(cluster) == (3, 2)  # none of this raised it
    had = {number for _, number in incremental_of(cluster).members["d"].target}
    give(cluster, work, {"a": {0}, "b": {1, 2}, "c": {3}})
    target = targets_in(cluster)
    assert sum(map(len, target.values())) == len(set().union(*target.values()))
    assert target["c"] == {3}
    assert target["d"] <= had
    assert epochs(cluster) == (4, 3)
    (stored,) = [append for append in cluster.appends if append.records[0].HasField("target_assigned")][-1:]
    assert [record.WhichOneof("kind") for record in stored.records[:2]] == ["target_assigned", "epoch_raised"]
    answered(cluster, call)


def test_nobody_is_given_what_another_inherited() -> None:
    cluster, (first,) = settled("a")
    newcomer = NumberedMember(cluster, "b")
    work_then = cluster.work
    assert not work_then
    _, call = joins(cluster, "b")
    work = asked(cluster)
    first.leave()
    again = NumberedMember(cluster, "a", process="other")
    again.seq = 1
    request = again.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    cluster.send(request)
    give(cluster, work, {"a": {0, 1}, "b": {2, 3}})
    assert targets_in(cluster) == {"a": set(), "b": {2, 3}}  # the other `a` has nothing that it kept
    answered(cluster, call)
    assert newcomer.version == NOWHERE


def test_a_topic_that_was_made_again_is_given_to_nobody() -> None:
    cluster, _ = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(9, {"t": 4}, {}, {"t": 9})))
    give(cluster, work, {"a": {0, 1}, "b": {2, 3}})
    assert targets_in(cluster)["b"] == set()
    answered(cluster, call)


def test_a_topic_that_a_member_does_not_want_any_more_is_not_given_to_it() -> None:
    cluster, _ = settled("a")
    newcomer, call = joins(cluster, "b")
    work = asked(cluster)
    newcomer.version = incremental_of(cluster).members["b"].version
    request = newcomer.request(1)
    request.topics.names.append("u")
    cluster.send(request)
    give(cluster, work, {"a": {0, 1}, "b": {2, 3}})
    assert targets_in(cluster) == {"a": {0, 1, 2, 3}, "b": set()}
    assert call in cluster.answered


def test_a_result_of_before_a_suspension_is_not_taken() -> None:
    cluster, (first,) = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    cluster.suspend()
    assert answered(cluster, call).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.resume()
    count = len(cluster.log)
    cluster.feed(answer_to(work))
    assert len(cluster.log) == count
    beat = cluster.send(first.request(first.epoch))
    cluster.feed(answer_to(asked(cluster)))
    assert epochs(cluster) == (2, 2)
    answered(cluster, beat)


def all_leave(cluster: VirtualShard) -> None:
    """All leave, and the group is deleted."""
    for who in tuple(incremental_of(cluster).members.values()):
        leaver = NumberedMember(cluster, who.member_id)
        leaver.seq = who.told.member_seq
        leaver.leave()
    cluster.ask(DeleteGroupsRequest(group_ids=[GROUP]))


def another_group(cluster: VirtualShard, name: str) -> tuple[NumberedMember, int]:
    """The group is deleted, and a member joins another one of its name."""
    all_leave(cluster)
    return joins(cluster, name)


def test_an_assignment_of_a_group_that_was_deleted_keeps_nobody_of_its_name_waiting() -> None:
    cluster, _ = settled("a")
    joins(cluster, "b")
    late = asked(cluster)
    _, call_id = another_group(cluster, "c")
    work = asked(cluster)
    cluster.feed(answer_to(late))
    assert cluster.is_parked(call_id)
    cluster.feed(answer_to(work))
    assert len(held_in(answered(cluster, call_id))) == 4


def test_a_result_for_a_group_that_was_deleted_is_not_that_of_another_of_its_name() -> None:
    """It would leave partitions to nobody: its members have had them."""
    cluster = shard()
    joins(cluster, "a")
    late = asked(cluster)
    cluster.suspend()
    cluster.resume()
    _, call_id = another_group(cluster, "a")
    work = asked(cluster)
    give(cluster, late, {"a": {0}})
    assert cluster.is_parked(call_id)
    cluster.feed(answer_to(work))
    assert len(held_in(answered(cluster, call_id))) == 4


def test_a_join_to_a_group_that_is_deleted_meanwhile_may_be_made_anew() -> None:
    """A client that hears in answer to a join that there is no such group gives up: it is a classic one."""
    cluster = shard()
    _, call_id = joins(cluster, "a")
    work = asked(cluster)
    all_leave(cluster)
    cluster.feed(answer_to(work))
    assert answered(cluster, call_id).error_code == error_code.UNKNOWN_MEMBER_ID


def test_who_joins_a_group_of_a_deleted_one_s_name_has_patience_of_its_own() -> None:
    cluster, _ = settled("a")
    joins(cluster, "b")
    cluster.advance(4_000)
    _, call_id = another_group(cluster, "c")
    cluster.advance(1_001)
    assert answered(cluster, call_id).error_code == error_code.NONE


def test_a_shard_that_is_given_up_refuses_who_waits() -> None:
    cluster, _ = settled("a")
    _, call = joins(cluster, "b")
    cluster.feed(Unload(None))
    assert answered(cluster, call).error_code == error_code.NOT_COORDINATOR


# --- who waits


def test_who_waits_too_long_is_answered_by_the_target_before() -> None:
    config = GroupConfig(incremental_assignment_wait_ms=2_000)
    cluster, _ = settled("a", config=config)
    _, call = joins(cluster, "b")
    work = asked(cluster)
    cluster.advance(1_999)
    assert cluster.is_parked(call)
    cluster.advance(1)
    answer = answered(cluster, call)
    assert (answer.error_code, answer.member_epoch, held_in(answer)) == (0, 1, {})
    cluster.feed(answer_to(work))  # still counts
    assert epochs(cluster) == (2, 2)


def test_of_two_requests_of_a_member_the_later_one_waits() -> None:
    cluster, (first,) = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    one = cluster.send(first.request(first.epoch))
    other = cluster.send(first.request(first.epoch))
    assert answered(cluster, one).member_epoch == 1
    cluster.feed(answer_to(work))
    assert held_in(answered(cluster, other)).keys() < first.has
    answered(cluster, call)


@pytest.mark.row("HQ-21")
def test_a_result_that_could_not_be_had_is_asked_for_again() -> None:
    cluster, _ = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    cluster.feed(Assigned(work.group_id, work.number, None))
    assert answered(cluster, call).member_epoch == 1
    assert not cluster.work
    cluster.advance(1_000)
    again = asked(cluster)
    assert again.number > work.number
    cluster.feed(answer_to(again))
    assert epochs(cluster) == (2, 2)


def test_what_many_waited_for_is_decided_together() -> None:
    cluster, _ = settled("a")
    calls = [joins(cluster, f"b{number}")[1] for number in range(30)]
    cluster.feed(answer_to(asked(cluster)))
    count = len(cluster.appends)
    cluster.feed(answer_to(asked(cluster)))  # of all that came meanwhile
    assert len(cluster.appends) - count <= 2
    for call in calls:
        assert not answered(cluster, call).error_code


def test_a_request_of_a_member_that_joined_again_meanwhile_is_refused() -> None:
    cluster, (first,) = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    beat = cluster.send(first.request(first.epoch))
    first.seq += 1
    request = first.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    join = cluster.send(request)
    cluster.feed(answer_to(work))
    # one member waits once: the beat is answered by the target before, and its join had gone by then
    assert answered(cluster, beat).error_code == error_code.FENCED_MEMBER_EPOCH
    assert not answered(cluster, join).error_code
    answered(cluster, call)


def test_a_list_that_waited_frees_nothing_that_was_taken_since() -> None:
    cluster, (first,) = settled("a")
    _, call = joins(cluster, "b")
    work = asked(cluster)
    request = first.request(first.epoch)
    request.owned.SetInParent()
    waiting = cluster.send(request)
    cluster.feed(answer_to(work))
    assert incremental_of(cluster).members["a"].pending
    answered(cluster, waiting)
    answered(cluster, call)


# --- pauses


def test_an_interval_that_is_set_is_kept_and_ends_by_itself() -> None:
    cluster = VirtualShard(GroupConfig(incremental_assignment_interval_ms=3_000), features=FEATURES)
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS))
    tell_partitions(cluster, 4, frozenset())
    (first,) = joined(cluster, "a")
    second = NumberedMember(cluster, "b")
    second.join()
    assert epochs(cluster) == (2, 1)
    assert second.epoch == 1
    assert not second.has
    cluster.advance(3_000)  # nobody has to ask
    assert epochs(cluster) == (2, 2)
    settle(first, second)
    assert len(second.has) == 2


def test_what_the_assignor_leaves_out_is_nobodys() -> None:
    cluster, _ = settled("a")
    _, call = joins(cluster, "b")
    give(cluster, asked(cluster), {"a": {0}, "b": {1}})
    assert targets_in(cluster) == {"a": {0}, "b": {1}}
    answered(cluster, call)


def test_of_many_that_waited_for_a_target_some_are_answered_at_a_time_while_their_group_waits() -> None:
    """LIM-19."""
    cluster = shard()
    calls = [joins(cluster, f"m{number:03}")[1] for number in range(250)]
    cluster.feed(answer_to(cluster.work.popleft()))
    cluster.feed(answer_to(cluster.work.popleft()))
    counts = [sum(map(cluster.is_parked, calls))]
    _, newcomer = joins(cluster, "z")
    while counts[-1]:
        assert cluster.shard.groups[GROUP].line.steps
        assert not cluster.work
        cluster.advance(4)
        counts.append(sum(map(cluster.is_parked, calls)))
    assert counts == [149, 49, 0]
    assert all(not answered(cluster, call).error_code for call in calls)
    assert cluster.is_parked(newcomer)
    cluster.feed(answer_to(cluster.work.popleft()))
    assert not answered(cluster, newcomer).error_code


def test_who_waited_for_a_target_and_goes_away_holds_up_nobody() -> None:
    cluster = shard()
    calls = [joins(cluster, f"m{number:03}")[1] for number in range(250)]
    cluster.feed(answer_to(cluster.work.popleft()))
    cluster.feed(answer_to(cluster.work.popleft()))
    for call in calls[100:200]:
        cluster.cancel(call)
    cluster.advance(100)
    assert all(not answered(cluster, call).error_code for call in (*calls[:100], *calls[201:]))
