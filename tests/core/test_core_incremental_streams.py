"""Members of incremental groups on session streams (docs/safety.md, INC-17 to INC-25)."""

from collections.abc import Iterator

import pytest
from core.test_core_incremental_commits import commit, remade
from kit.lives.incremental_shard import (
    AWAY,
    LEAVE,
    NumberedMember,
    incremental_of,
    incremental_shard,
    tell_partitions,
)
from kit.lives.stream_member import StreamMember, let_move, on_streams
from kit.lives.virtual_shard import VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.events import Detach, Unload
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Question
from muster_core.position import Position
from muster_protos.muster.v1 import common_pb2, session_pb2

FENCED, TAKEN = error_code.FENCED_MEMBER_EPOCH, error_code.UNRELEASED_INSTANCE_ID
GRACE_MS, SESSION_MS = 3_000, 45_000


def reloaded(cluster: VirtualShard, partitions: int = 4) -> VirtualShard:
    return incremental_shard(partitions, cluster.log, cluster.config)


def epoch_of(cluster: VirtualShard, member: NumberedMember) -> int:
    group = incremental_of(cluster)
    return group.epoch_of(group.members[member.member_id])


def epochs(cluster: VirtualShard) -> dict[str, int]:
    group = incremental_of(cluster)
    return {member_id: group.epoch_of(member) for member_id, member in group.members.items()}


# --- steps and news


def test_a_join_is_told_to_who_has_to_give_in_the_turn_that_stores_it() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    second = StreamMember(cluster, "b")
    second.join()
    (news,) = first.listen()
    assert news.HasField("assignment")
    assert len(first.has) == 2
    assert second.has == frozenset()


def test_who_has_to_give_back_is_told_that_its_list_is_waited_for() -> None:
    """INC-48."""
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    assert not first.beat(first.owned).awaits_owned
    second = StreamMember(cluster, "b")
    assert not second.join().awaits_owned
    (news,) = first.listen()
    assert news.awaits_owned
    assert first.beat().awaits_owned, "it does not say what it works on"
    assert not first.beat(first.owned).awaits_owned


def test_a_release_wakes_who_waits_in_the_same_turn() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    second = StreamMember(cluster, "b")
    second.join()
    first.listen()
    count = len(cluster.appends)
    first.beat(first.owned)
    assert len(cluster.appends) == count + 1  # one decision: the release stands first
    second.listen()
    assert len(second.has) == 2
    assert not first.has & second.has


def test_what_a_leaver_had_is_with_the_others_in_the_same_turn() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    tokens = dict(first.owned)
    count = len(cluster.appends)
    assert second.leave().member_epoch == LEAVE
    first.listen()
    assert len(cluster.appends) == count + 1
    assert len(first.has) == 4
    assert tokens.items() <= first.owned.items()


def test_a_stream_member_is_woken_by_a_member_without_a_stream() -> None:
    cluster = incremental_shard()
    unary = NumberedMember(cluster, "a")
    unary.join()
    first = StreamMember(cluster, "b")
    first.join()
    unary.beat()
    unary.beat(unary.owned)
    first.listen()
    assert len(first.has) == 2


def test_a_member_without_a_stream_waits_for_its_own_heartbeat() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    unary = NumberedMember(cluster, "b")
    unary.join()
    first.listen()
    first.beat(first.owned)
    assert not incremental_of(cluster).members["b"].held
    unary.beat()
    assert len(unary.has) == 2


def test_who_keeps_its_list_hears_nothing_and_is_in_no_record() -> None:
    cluster = incremental_shard(6)
    first, second, third = on_streams(cluster, "a", "b", "c")
    let_move(first, second, third)
    count, epoch = len(cluster.log), incremental_of(cluster).target_epoch
    tell_partitions(cluster, 7)
    let_move(first, second, third)
    heard = [member for member in (first, second, third) if len(member.has) == 3]
    assert len(heard) == 1
    named = [
        record.member_stepped.member_id
        for _, record in cluster.log[count:]
        if record.HasField("member_stepped")
    ]
    assert named == [heard[0].member_id]
    assert set(epochs(cluster).values()) == {epoch + 1}


def test_an_epoch_is_the_same_live_in_a_replay_and_from_a_snapshot() -> None:
    cluster = incremental_shard(6)
    first, second = on_streams(cluster, "a", "b")
    third = StreamMember(cluster, "c")
    third.join()
    before = epochs(cluster)
    assert before[first.member_id] < before[third.member_id]  # it has to give back
    assert epochs(reloaded(cluster, 6)) == before
    check_every_cut(cluster.log, cluster.config)
    let_move(first, second, third)
    assert len(set(epochs(cluster).values())) == 1
    assert epochs(reloaded(cluster, 6)) == epochs(cluster)


def test_who_has_to_give_back_keeps_the_epoch_that_it_had() -> None:
    plans: Iterator[dict[str, tuple[int, ...]]] = iter(
        [
            {"a": (0, 1, 2, 3)},
            {"a": (0, 1), "b": (2, 3)},
            {"a": (0, 1), "b": (2, 3, 4)},  # nothing is written for the first
            {"a": (0,), "b": (2, 3, 4), "c": (1,)},
        ]
    )

    def planned(_: Question) -> dict[str, list[TopicPartition]]:
        return {name: [("t", number) for number in numbers] for name, numbers in next(plans).items()}

    cluster = incremental_shard(assignors={"planned": planned})
    first, second = on_streams(cluster, "a", "b")
    tell_partitions(cluster, 5)
    let_move(first, second)
    had = epochs(cluster)["a"]
    StreamMember(cluster, "c").join()
    assert epochs(cluster) == {"a": had, "b": had + 1, "c": had + 1}


def test_who_is_told_in_an_answer_hears_no_news_of_it() -> None:
    cluster = incremental_shard()
    on_streams(cluster, "a")
    assert not [push for push in cluster.pushes if isinstance(push.message, session_pb2.MemberNews)]


def test_news_are_told_when_they_are_stored() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    second = StreamMember(cluster, "b")
    cluster.auto_ack = False
    second.seq = 1
    request = second.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    cluster.send(request, place=second.place)
    assert not first.listen()
    cluster.acknowledge()
    assert first.listen()


def test_topics_that_change_concern_stream_members_at_once() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    tell_partitions(cluster, 6)
    first.listen()
    assert len(first.has) == 6


def test_what_was_given_of_a_deleted_topic_is_taken_at_once() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    before = first.owned | second.owned
    remade(cluster)
    let_move(first, second)
    after = first.owned | second.owned
    assert after.keys() == before.keys()
    assert all(after[partition] > before[partition] for partition in after)


def test_a_commit_without_a_token_touches_nothing_of_a_stream_member() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    partition, token = min(first.owned.items())
    assert commit(first, {partition: None}, member_epoch=first.epoch) == [error_code.STALE_MEMBER_EPOCH]
    assert commit(first, {partition: token}) == [error_code.NONE]


def test_a_target_that_is_due_is_computed_by_whoever_loads() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    other = reloaded(cluster, 6)  # the topic has grown meanwhile
    first.move(other)
    second.move(other)
    first.beat(first.owned)
    second.beat(second.owned)
    let_move(first, second)
    assert len(first.has | second.has) == 6


# --- streams


def test_a_call_puts_its_member_onto_the_stream_once() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    first.beat(first.owned)
    first.listen()
    assert first.attached == 1


def test_a_member_that_resumes_is_told_its_list_and_nothing_is_written() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    first.lose_stream()
    second.leave()
    before = dict(first.owned)
    first.connect()
    count = len(cluster.log)
    answer = first.beat(before)
    assert answer.HasField("assignment")
    assert len(first.has) == 4
    assert before.items() <= first.owned.items()
    assert len(cluster.log) == count


def test_an_older_connection_attaches_nobody_and_ends_nothing() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    old = first.place
    first.connect()
    first.beat(first.owned)
    request = first.request(first.epoch)
    now_on, first.stream_id, first.connection = first.stream_id, old.stream_id, old.connection
    answer = first.ask(request)
    first.stream_id = now_on
    assert answer.error_code == error_code.INVALID_REQUEST
    cluster.feed(Detach(old.stream_id, session_pb2.Detach(group_id="g", member_id="a")))
    tell_partitions(cluster, 6)
    assert first.listen()


def test_the_break_of_a_stream_that_was_left_makes_nobody_suspect() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    old = first.stream_id
    first.connect()
    first.beat(first.owned)
    now_on, first.stream_id = first.stream_id, old
    first.lose_stream()
    first.stream_id = now_on
    cluster.advance(GRACE_MS + 1_000)
    assert "a" in incremental_of(cluster).members


def test_connections_are_numbered_anew_in_a_new_life() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    first.connect()
    first.beat(first.owned)
    first.connection = 0
    first.connect()
    assert not first.join().error_code
    tell_partitions(cluster, 6)
    assert first.listen()


def test_beats_keep_all_members_of_a_stream_alive() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    second.connect(first.stream_id)
    second.beat(second.owned)
    for _ in range(4):
        cluster.advance(SESSION_MS // 2)
        first.live()
    assert set(incremental_of(cluster).members) == {"a", "b"}
    cluster.advance(SESSION_MS + 1)
    assert not incremental_of(cluster).members


def test_a_stream_that_breaks_costs_its_members_their_partitions_after_the_grace() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    cluster.advance(SESSION_MS // 2)
    first.live()
    second.live()
    second.lose_stream()
    cluster.advance(GRACE_MS - 1)
    assert not first.listen()
    cluster.advance(1)
    first.listen()
    assert len(first.has) == 4
    cause = next(
        record.member_removed.cause for _, record in cluster.log if record.HasField("member_removed")
    )
    assert cause.kind == common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
    assert cause.silence_ms == GRACE_MS


def test_a_stream_that_the_server_ended_makes_nobody_suspect() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    first.lose_stream(suspect=False)
    cluster.advance(GRACE_MS + 1_000)
    assert "a" in incremental_of(cluster).members


def test_a_suspect_that_comes_back_keeps_what_it_has() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    cluster.advance(SESSION_MS // 2)
    first.live()
    second.live()
    before = dict(second.owned)
    second.lose_stream()
    cluster.advance(GRACE_MS - 1)
    second.connect()
    second.beat(second.owned)
    cluster.advance(SESSION_MS - 1)
    assert second.owned == before
    assert "b" in incremental_of(cluster).members


def test_a_grace_does_not_cut_short_what_a_call_without_a_stream_promised() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    NumberedMember.ask(first, first.request(first.epoch))
    first.lose_stream()
    cluster.advance(SESSION_MS - 1)
    assert "a" in incremental_of(cluster).members
    cluster.advance(1)
    assert not incremental_of(cluster).members


def test_after_a_load_a_broken_stream_costs_nothing_before_the_session() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    other = reloaded(cluster)
    first.move(other)
    other.advance(GRACE_MS + 1)
    assert "a" in incremental_of(other).members
    assert not first.beat(first.owned).error_code


def test_who_is_on_a_stream_hears_where_the_group_has_gone() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    cluster.feed(Unload(common_pb2.Coordinator(node_id="n2")))
    (moved,) = [push for push in cluster.pushes if isinstance(push.message, session_pb2.CoordinatorMoved)]
    assert moved.stream_id == first.stream_id


# --- places


def test_a_newcomer_takes_over_from_a_suspect_at_once() -> None:
    cluster = incremental_shard()
    holder = StreamMember(cluster, "a", instance="i", process="one")
    holder.join()
    newcomer = StreamMember(cluster, "b", instance="i", process="two")
    refused = newcomer.join()
    assert refused.error_code == TAKEN
    named = Position.from_proto(refused.holder)
    assert newcomer.join(again=True, replaces=named).error_code == TAKEN
    before = dict(holder.owned)
    holder.lose_stream()
    assert not newcomer.join(again=True, replaces=named).error_code
    assert newcomer.has == before.keys()
    assert all(newcomer.owned[partition] > before[partition] for partition in before)


def test_the_one_that_was_replaced_is_told_to_stop() -> None:
    cluster = incremental_shard()
    holder = StreamMember(cluster, "a", instance="i", process="one")
    holder.join()
    newcomer = StreamMember(cluster, "b", instance="i", process="two")
    named = Position.from_proto(newcomer.join().holder)
    assert NumberedMember.ask(holder, holder.request(AWAY)).member_epoch == AWAY
    assert not newcomer.join(again=True, replaces=named).error_code
    holder.listen()
    assert holder.fenced is not None
    assert holder.fenced.error_code == error_code.FENCED_INSTANCE_ID


def test_after_a_load_a_holder_is_suspect_when_its_grace_is_over() -> None:
    cluster = incremental_shard()
    holder = StreamMember(cluster, "a", instance="i", process="one")
    holder.join()
    other = reloaded(cluster)
    newcomer = StreamMember(other, "b", instance="i", process="two")
    named = Position.from_proto(newcomer.join().holder)
    other.advance(GRACE_MS - 1)
    assert newcomer.join(again=True, replaces=named).error_code == TAKEN
    other.advance(1)
    assert not newcomer.join(again=True, replaces=named).error_code


def test_a_member_without_a_stream_is_no_suspect_after_a_load() -> None:
    cluster = incremental_shard()
    NumberedMember(cluster, "a", instance="i", process="one").join()
    other = reloaded(cluster)
    newcomer = StreamMember(other, "b", instance="i", process="two")
    named = Position.from_proto(newcomer.join().holder)
    other.advance(GRACE_MS + 1)
    assert newcomer.join(again=True, replaces=named).error_code == TAKEN


def test_who_is_removed_hears_why() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    second = StreamMember(cluster, "b")
    second.join()
    cluster.advance(29_999)
    first.live()
    second.live()
    cluster.advance(1)
    first.listen()
    assert first.fenced is not None
    assert first.fenced.error_code == error_code.UNKNOWN_MEMBER_ID
    assert first.fenced.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT


def test_who_was_not_told_has_at_least_its_life_to_give_back() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    first.lose_stream(suspect=False)
    second = StreamMember(cluster, "b")
    second.join()
    cluster.advance(31_000)
    second.live()
    assert "a" in incremental_of(cluster).members


# --- on a stream and without one


def test_a_member_without_a_stream_becomes_a_stream_member_by_a_record() -> None:
    cluster = incremental_shard()
    first = StreamMember(cluster, "a")
    first.seq = 1
    request = first.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    first.hear(NumberedMember.ask(first, request))
    assert not incremental_of(cluster).members["a"].told.on_session
    count = len(cluster.log)
    first.beat(first.owned)
    assert [record.WhichOneof("kind") for _, record in cluster.log[count:]] == ["member_subscribed"]
    assert incremental_of(reloaded(cluster)).members["a"].told.on_session


def test_a_stream_member_that_makes_a_call_is_one_still() -> None:
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    NumberedMember.ask(first, first.request(first.epoch))
    assert incremental_of(cluster).members["a"].told.on_session
    tell_partitions(cluster, 6)
    assert first.listen()


def test_what_a_call_without_the_stream_has_changed_is_news_on_it() -> None:
    """INC-20: the answer may be lost, and until its next question the member would work on what it lost."""
    cluster = incremental_shard()
    (first,) = on_streams(cluster, "a")
    request = first.request(first.epoch)
    request.topics.names.append("u")
    NumberedMember.ask(first, request)  # whose answer nobody hears
    (news,) = first.listen()
    assert news.HasField("assignment")
    assert not first.has


def test_a_new_life_by_a_call_has_no_stream() -> None:
    cluster = incremental_shard()
    first, _ = on_streams(cluster, "a", "b")
    first.seq += 1
    request = first.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    request.ClearField("version")
    assert not NumberedMember.ask(first, request).error_code
    member = incremental_of(cluster).members["a"]
    assert not member.told.on_session
    assert member.epoch == incremental_of(cluster).target_epoch
    fenced = [push.message for push in cluster.pushes if isinstance(push.message, session_pb2.Fenced)]
    assert [one.member_seq for one in fenced] == [1]


@pytest.mark.parametrize("missing", ["member_seq", "connection"])
def test_a_call_on_a_stream_names_its_join_and_its_connection(missing: str) -> None:
    cluster = incremental_shard()
    first = StreamMember(cluster, "a")
    if missing == "connection":
        first.connection = 0
    request = first.request(0)
    request.member_seq = 0 if missing == "member_seq" else 1
    answer = first.ask(request)
    assert answer.error_code == error_code.INVALID_REQUEST


def test_who_has_heard_of_more_than_the_log_has_is_refused_on_a_stream_too() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    cut = cluster.log[:-3]
    other = incremental_shard(4, cut, cluster.config)
    second.move(other)
    first.move(other)
    answers = [member.beat(member.owned).error_code for member in (first, second)]
    assert FENCED in answers
