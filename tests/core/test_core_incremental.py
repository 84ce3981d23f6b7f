"""Incremental groups: what their rules promise (docs/safety.md, "Incremental groups")."""

import pytest
from kit.lives.incremental_shard import (
    AWAY,
    FEATURES,
    GROUP,
    LEAVE,
    NumberedMember,
    held_in,
    incremental_of,
    incremental_shard,
    joined,
    settle,
    tell_partitions,
)
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.features import Feature
from muster_core.log.application import UnknownCriticalRecord
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

FENCED, TAKEN = error_code.FENCED_MEMBER_EPOCH, error_code.UNRELEASED_INSTANCE_ID


def two(partitions: int = 4) -> tuple[VirtualShard, NumberedMember, NumberedMember]:
    """A member that has everything, and one that has just joined."""
    cluster = incremental_shard(partitions)
    (first,) = joined(cluster, "a")
    second = NumberedMember(cluster, "b")
    second.join()
    return cluster, first, second


def kinds(cluster: VirtualShard) -> list[str]:
    return [kind for kind in cluster.kinds() if kind != "topics_seen"]


def reloaded(cluster: VirtualShard, partitions: int = 4) -> VirtualShard:
    return incremental_shard(partitions, cluster.log, cluster.config)


# --- owners


def test_nobody_is_given_what_another_has_not_released() -> None:
    _, first, second = two()
    assert second.has == frozenset()
    before = first.has
    first.beat(before)  # is told what goes, and has not stopped it
    assert first.has < before
    second.beat(())
    assert second.has == frozenset()
    first.beat(first.has)  # it has stopped
    second.beat(())
    assert second.has == before - first.has


def test_what_does_not_move_is_not_touched() -> None:
    _, first, second = two()
    tokens = dict(first.owned)
    settle(first, second)
    assert first.owned == {partition: tokens[partition] for partition in first.has}
    assert len(first.has) == len(second.has) == 2


def test_a_record_stands_for_what_changes_and_a_heartbeat_for_nothing() -> None:
    cluster, first, second = two()
    settle(first, second)
    count = len(cluster.log)
    assert not first.beat().HasField("assignment")
    first.beat(first.has)
    assert len(cluster.log) == count


def test_a_member_that_leaves_gives_its_share_to_the_others_alone() -> None:
    cluster, first, second = two()
    settle(first, second)
    tokens = dict(first.owned)
    assert second.leave().member_epoch == LEAVE
    settle(first)
    assert len(first.has) == 4
    assert tokens.items() <= first.owned.items()
    assert "member_removed" in kinds(cluster)


def test_a_release_stands_before_what_it_frees() -> None:
    cluster, first, second = two()
    settle(first, second)
    free: set[tuple[str, int]] = {("t", number) for number in range(4)}
    for _, record in cluster.log:
        step = record.member_stepped
        free |= {(some.topic, number) for some in step.released for number in some.partitions}
        given = {(some.topic, number) for some in step.given for number in some.partitions}
        assert given <= free
        free -= given


# --- tokens


def test_a_new_life_has_new_tokens() -> None:
    _, first, second = two()
    settle(first, second)
    before = dict(first.owned)
    first.join()
    assert first.has == before.keys()
    assert all(first.owned[partition] > before[partition] for partition in before)


def test_a_join_that_is_made_again_changes_nothing() -> None:
    cluster, first, second = two()
    settle(first, second)
    before, count = dict(first.owned), len(cluster.log)
    answer = first.join(again=True)
    assert not answer.HasField("assignment")
    assert (first.owned, len(cluster.log)) == (before, count)


def test_an_earlier_join_of_the_process_changes_nothing() -> None:
    cluster, first, _ = two()
    first.join()
    count = len(cluster.log)
    first.seq -= 1
    assert first.join(again=True).error_code == FENCED
    assert len(cluster.log) == count


def test_another_process_waits_until_the_holder_has_left() -> None:
    cluster = incremental_shard()
    holder = NumberedMember(cluster, "a", instance="i", process="one")
    holder.join()
    newcomer = NumberedMember(cluster, "b", instance="i", process="two")
    refused = newcomer.join()
    assert refused.error_code == TAKEN
    named = Position.from_proto(refused.holder)
    assert named > NOWHERE
    assert newcomer.join(again=True, replaces=named).error_code == TAKEN  # it is there
    before = dict(holder.owned)
    assert holder.leave(AWAY).member_epoch == AWAY
    assert newcomer.join(again=True).error_code == TAKEN  # it has not said whom it replaces
    assert not newcomer.join(again=True, replaces=named).error_code
    assert newcomer.has == before.keys()
    assert all(newcomer.owned[partition] > before[partition] for partition in before)
    assert holder.beat().error_code == error_code.FENCED_INSTANCE_ID


def test_a_join_replaces_nobody_but_whom_it_names() -> None:
    cluster = incremental_shard()
    holder = NumberedMember(cluster, "a", instance="i", process="one")
    holder.join()
    newcomer = NumberedMember(cluster, "b", instance="i", process="two")
    named = Position.from_proto(newcomer.join().holder)
    holder.join()  # a new life
    holder.leave(AWAY)
    assert newcomer.join(again=True, replaces=named).error_code == TAKEN


# --- lists and versions


def test_a_list_from_before_a_partition_was_taken_frees_nothing() -> None:
    cluster, first, second = two()
    old = first.request(first.epoch)
    old.owned.SetInParent()  # sent before, and says that nothing is worked on yet
    first.beat(first.has)
    first.ask(old)
    second.beat(())
    assert second.has == frozenset()
    assert incremental_of(cluster).members["a"].pending


def test_a_list_that_lacks_what_was_not_taken_frees_nothing() -> None:
    cluster, first, second = two()
    first.beat(())
    assert len(incremental_of(cluster).members["a"].held) == 4
    second.beat(())
    assert second.has == frozenset()


def test_no_list_gives_nothing_back() -> None:
    cluster, first, _ = two()
    first.beat()
    first.beat()
    assert incremental_of(cluster).members["a"].pending


def test_each_partition_is_given_back_by_itself() -> None:
    _, first, second = two()
    before = first.has
    first.beat(before)
    gone = sorted(before - first.has)
    first.beat(first.has | {gone[0]})
    second.beat(())
    assert second.has == {gone[1]}


def test_unchanged_is_said_to_who_has_heard_all() -> None:
    _, first, _ = two()
    lost = first.ask(first.request(first.epoch))  # the answer that takes half is lost
    assert lost.HasField("assignment")
    again = first.beat()
    assert held_in(again) == held_in(lost)
    assert not first.beat().HasField("assignment")


def test_a_request_that_names_its_join_is_not_judged_by_its_epoch() -> None:
    _, first, second = two()
    settle(first, second)
    first.epoch = 1
    assert not first.beat(first.has).error_code
    first.epoch = 77
    assert not first.beat(first.has).error_code


def test_a_request_of_another_join_changes_nothing() -> None:
    cluster, first, _ = two()
    late = first.request(first.epoch)
    late.owned.SetInParent()
    leave, away = first.request(LEAVE), first.request(AWAY)
    first.join()
    count = len(cluster.log)
    assert first.ask(late).error_code == FENCED
    assert first.ask(leave).error_code == FENCED
    assert away.group_instance_id == ""
    nameless = first.request(first.epoch)
    nameless.member_seq, nameless.process_id = 0, b""
    assert first.ask(nameless).error_code == FENCED
    assert len(cluster.log) == count


def test_who_has_heard_what_the_log_lost_is_refused() -> None:
    cluster, first, second = two()
    settle(first, second)
    upto = next(place for place, (_, record) in enumerate(cluster.log) if record.HasField("member_stepped"))
    short = incremental_shard(4, cluster.log[: upto + 1], cluster.config)
    first.cluster = short
    assert first.beat(first.has).error_code == FENCED


# --- away


def test_who_is_away_keeps_what_nothing_takes_and_owes_nothing() -> None:
    cluster = incremental_shard()
    static = NumberedMember(cluster, "a", instance="i")
    static.join()
    other = NumberedMember(cluster, "b")
    other.join()
    static.beat()  # is told to give half of it back
    taken = incremental_of(cluster).members["a"].pending
    static.leave(AWAY)
    settle(other)
    assert other.has == taken
    assert incremental_of(cluster).members["a"].assigned
    assert static.beat().error_code == FENCED


def test_what_a_target_takes_from_who_is_away_is_free() -> None:
    cluster = incremental_shard()
    static = NumberedMember(cluster, "a", instance="i")
    static.join()
    static.leave(AWAY)
    other = NumberedMember(cluster, "b")
    other.join()
    assert len(other.has) == 2
    assert len(incremental_of(cluster).members["a"].held) == 2


# --- clocks


def test_who_does_not_give_back_in_time_is_removed() -> None:
    cluster, first, second = two()
    for _ in range(5):
        first.beat({("t", number) for number in range(4)})
        second.beat(())
        cluster.advance(7_000)
    assert first.beat().error_code == error_code.UNKNOWN_MEMBER_ID
    settle(second)
    assert len(second.has) == 4
    removed = next(r.member_removed for _, r in cluster.log if r.HasField("member_removed"))
    assert removed.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT


def test_a_deadline_ends_with_what_it_was_for() -> None:
    cluster, first, second = two(6)
    first.beat(first.has)
    third = NumberedMember(cluster, "c")
    third.join()
    cluster.advance(29_000)
    first.beat(first.has)  # in time; something else is taken with the same record
    assert incremental_of(cluster).members["a"].pending
    second.beat(())
    third.beat(())
    cluster.advance(2_000)
    assert not first.beat().error_code
    cluster.advance(27_000)
    assert not first.beat().error_code
    cluster.advance(2_000)
    assert first.beat().error_code == error_code.UNKNOWN_MEMBER_ID


def test_a_deadline_begins_anew_after_a_load() -> None:
    cluster, first, _ = two()
    first.beat()
    cluster.advance(29_000)
    first.cluster = reloaded(cluster)
    first.cluster.advance(29_000)
    assert not first.beat().error_code
    first.cluster.advance(2_000)
    assert first.beat().error_code == error_code.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_its_session_is_removed() -> None:
    cluster, first, second = two()
    settle(first, second)
    for _ in range(10):
        cluster.advance(5_000)
        second.beat(second.has)
    assert len(second.has) == 4
    assert first.beat().error_code == error_code.UNKNOWN_MEMBER_ID


def test_nobody_is_judged_by_the_silence_of_a_suspension() -> None:
    cluster, first, second = two()
    settle(first, second)
    cluster.suspend()
    cluster.advance(60_000)
    cluster.resume()
    cluster.advance(44_000)
    assert not first.beat().error_code


# --- loads


def test_a_load_gives_the_same_group() -> None:
    cluster, first, second = two()
    settle(first, second)
    second.leave()
    first.beat()
    after, before = incremental_of(reloaded(cluster)), incremental_of(cluster)
    assert after.members == before.members
    assert after.owners == before.owners
    assert (after.epoch, after.target_epoch) == (before.epoch, before.target_epoch)


def test_a_snapshot_and_the_log_after_it_give_the_same_group() -> None:
    cluster = incremental_shard()
    static = NumberedMember(cluster, "s", instance="i")
    static.join()
    first, second = joined(cluster, "a", "b")
    settle(static, first, second)
    static.leave(AWAY)
    second.leave()
    first.beat(first.has)
    check_every_cut([*cluster.log], cluster.config)


def test_a_target_that_is_due_is_computed_after_a_load() -> None:
    cluster, first, second = two()
    settle(first, second)
    second.leave()
    assert incremental_of(cluster).epoch > incremental_of(cluster).target_epoch
    first.cluster = reloaded(cluster)
    first.beat(first.has)
    assert len(first.has) == 4


def test_topics_that_changed_during_a_load_are_seen() -> None:
    cluster, first, second = two()
    settle(first, second)
    first.cluster = second.cluster = reloaded(cluster, 6)
    settle(first, second)
    assert len(first.has) == len(second.has) == 3


def test_a_partition_that_is_added_moves_nothing() -> None:
    cluster, first, second = two()
    settle(first, second)
    tokens = first.owned | second.owned
    tell_partitions(cluster, 6)
    settle(first, second)
    assert tokens.items() <= (first.owned | second.owned).items()
    assert len(first.has) == len(second.has) == 3


@pytest.mark.row("RC-29")
def test_a_log_that_gives_a_partition_twice_is_not_loaded() -> None:
    cluster, _, _ = two()
    step = incremental_pb2.MemberStepped(group_id=GROUP, member_id="b", epoch=9)
    step.given.add(topic="t", partitions=[0])
    damaged = [*cluster.log, (Position(1, cluster.log[-1][0].offset + 1), _record(step))]
    with pytest.raises(ValueError, match="while 'a' has it"):
        VirtualShard(records=damaged)


def _record(step: incremental_pb2.MemberStepped) -> records_pb2.Record:
    return records_pb2.Record(critical=True, member_stepped=step)


# --- the feature, kinds and limits


def test_without_the_feature_nothing_is_written() -> None:
    cluster = VirtualShard(features=FEATURES - {Feature.INCREMENTAL_GROUPS})
    member = NumberedMember(cluster, "a")
    count = len(cluster.log)
    assert member.join().error_code == error_code.UNSUPPORTED_VERSION
    assert len(cluster.log) == count
    commit = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_epoch=-1)
    commit.topics.add(name="t").partitions.add(partition=0, offset=7, leader_epoch=-1)
    assert _committed(cluster, commit) == error_code.UNSUPPORTED_VERSION
    assert len(cluster.log) == count
    assert not cluster.shard.groups


def test_all_records_are_critical() -> None:
    cluster, first, second = two()
    settle(first, second)
    assert all(record.critical for _, record in cluster.log if not record.HasField("claim"))


@pytest.mark.row("PR-24")
def test_a_reader_that_does_not_know_a_critical_record_stops() -> None:
    shard = Shard(0, GroupConfig())
    with pytest.raises(UnknownCriticalRecord):
        shard.replay(Position(1, 1), records_pb2.Record(critical=True))


def test_a_classic_member_is_refused_while_there_are_others() -> None:
    cluster, first, second = two()
    classic = VirtualMember(cluster, "classic").join()
    assert classic.joined().error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert not first.beat(first.has).error_code
    assert not second.beat().error_code


@pytest.mark.row("MG-01")
@pytest.mark.row("MG-02")
def test_epochs_and_generations_are_one_sequence() -> None:
    cluster, first, second = two()
    second.leave()
    first.leave()
    epoch = incremental_of(cluster).epoch
    classic = VirtualMember(cluster, "classic").join()
    cluster.advance(10_000)
    assert classic.joined().generation > epoch
    classic.leave()
    cluster.advance(60_000)
    generation = cluster.shard.groups[GROUP].generation
    again = NumberedMember(cluster, "z")
    assert again.join().member_epoch > generation


def test_an_incremental_member_is_refused_while_there_are_classic_ones() -> None:
    cluster = incremental_shard()
    VirtualMember(cluster, "classic").join()
    cluster.advance(10_000)
    assert NumberedMember(cluster, "a").join().error_code == error_code.GROUP_ID_NOT_FOUND


def test_a_group_with_members_is_not_deleted() -> None:
    cluster, first, second = two()
    request = coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP])
    refused = cluster.ask(request)
    assert isinstance(refused, coordinator_pb2.DeleteGroupsResponse)
    assert refused.results[0].error_code == error_code.NON_EMPTY_GROUP
    first.leave()
    second.leave()
    deleted = cluster.ask(request)
    assert isinstance(deleted, coordinator_pb2.DeleteGroupsResponse)
    assert not deleted.results[0].error_code
    assert first.beat().error_code == error_code.GROUP_ID_NOT_FOUND


def test_what_the_log_does_not_take_at_a_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_core.record_bounds.RECORD_MAX_BYTES", 60)
    cluster = incremental_shard(100)
    member = NumberedMember(cluster, "a")
    assert member.join().error_code == error_code.INVALID_REQUEST
    assert not [kind for kind in kinds(cluster) if kind.startswith("member")]


def test_a_commit_names_the_epoch_of_its_member() -> None:
    cluster, first, second = two()
    settle(first, second)
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id="a", member_epoch=first.epoch)
    request.topics.add(name="t").partitions.add(partition=0, offset=7, leader_epoch=-1)
    assert _committed(cluster, request) == error_code.NONE
    request.member_epoch += 1
    assert _committed(cluster, request) == error_code.STALE_MEMBER_EPOCH
    request.member_epoch, request.member_id = first.epoch, "nobody"
    assert _committed(cluster, request) == error_code.UNKNOWN_MEMBER_ID


def test_a_commit_waits_for_the_records_before_it() -> None:
    cluster, first, second = two()
    settle(first, second)
    cluster.auto_ack = False
    cluster.send(second.request(LEAVE))
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id="b", member_epoch=second.epoch)
    request.topics.add(name="t").partitions.add(partition=0, offset=7, leader_epoch=-1)
    commit = cluster.send(request)
    assert cluster.is_parked(commit)
    cluster.acknowledge()
    answer = cluster.answer(commit)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    assert answer.error_code == error_code.UNKNOWN_MEMBER_ID


def _committed(cluster: VirtualShard, request: coordinator_pb2.OffsetCommitRequest) -> int:
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def test_a_process_that_left_for_a_while_comes_back_as_itself() -> None:
    cluster = incremental_shard()
    static = NumberedMember(cluster, "a", instance="i")
    static.join()
    static.leave(AWAY)
    other = NumberedMember(cluster, "b")
    other.join()
    assert static.join(again=True).error_code == FENCED  # a late copy of the join before
    answer = static.join()
    assert answer.member_epoch > 0
    assert len(static.has) == 2
    assert not static.beat(static.has).error_code
