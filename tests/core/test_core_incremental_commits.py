"""Commits of incremental members, by token and without, and topics that are deleted and made again."""

from typing import Any

import pytest
from kit.lives.incremental_shard import (
    GROUP,
    NumberedMember,
    incremental_of,
    incremental_shard,
    joined,
    settle,
)
from kit.lives.virtual_shard import VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.error_code import ErrorCode
from muster_core.events import TopicsChanged
from muster_core.incremental.decisions.reconciliation import Report, next_step
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Held, Member, Told
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position
from muster_protos.limits import PARKED_PREFIX
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

NONE, STALE = error_code.NONE, error_code.STALE_MEMBER_EPOCH
UNKNOWN = error_code.UNKNOWN_TOPIC_OR_PARTITION


def commit(
    member: NumberedMember, tokens: dict[TopicPartition, Position | None], offset: int = 7, **fields: Any
) -> list[ErrorCode]:
    """Commits partitions with tokens, or without; returns what became of each."""
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=member.member_id, **fields)
    for (topic, number), token in tokens.items():
        place = request.topics.add(name=topic).partitions.add(partition=number, offset=offset)
        if token is not None:
            place.token.CopyFrom(token.to_proto())
    answer = member.cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


def remade(cluster: VirtualShard, partitions: int = 4, offset: int = 50) -> None:
    """Topic `t` was deleted and made again, and the shard hears of both at once."""
    catalog = Catalog(offset, {"t": partitions}, {"t": offset - 1}, {"t": offset})
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=catalog))


def one_of(member: NumberedMember) -> tuple[TopicPartition, Position]:
    partition = min(member.owned)
    return partition, member.owned[partition]


def commits(cluster: VirtualShard) -> list[Any]:
    return [r.offset_committed for _, r in cluster.log if r.WhichOneof("kind") == "offset_committed"]


def test_a_commit_by_token_is_judged_by_it_and_not_by_its_epoch() -> None:
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    partition, token = one_of(member)
    assert commit(member, {partition: token}, member_epoch=99) == [NONE]
    assert commit(member, {partition: token}) == [NONE]
    assert [record.by_token for record in commits(cluster)] == [True, True]
    assert commit(member, {partition: None}, member_epoch=99) == [STALE]
    assert commit(member, {partition: None}, member_epoch=member.epoch) == [NONE]
    assert not commits(cluster)[-1].by_token


def test_each_partition_of_a_commit_has_its_own_outcome() -> None:
    cluster = incremental_shard()
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    (mine, token), (theirs, their_token) = one_of(first), one_of(second)
    higher = Position(token.epoch, token.offset + 1_000)
    outcomes = commit(first, {mine: token, theirs: their_token, ("t", 99): token})
    assert outcomes == [NONE, STALE, UNKNOWN]
    assert [(entry.topic, entry.partition) for entry in commits(cluster)[-1].offsets] == [mine]
    assert commit(first, {mine: higher}) == [STALE]
    other = max(first.has)
    assert commit(first, {mine: token, other: None}) == [NONE, error_code.INVALID_REQUEST]
    stranger = NumberedMember(cluster, "nobody")
    assert commit(stranger, {mine: token}) == [error_code.UNKNOWN_MEMBER_ID]


def test_an_owner_commits_until_it_gave_back_and_not_after_that() -> None:
    cluster = incremental_shard()
    (first,) = joined(cluster, "a")
    before = dict(first.owned)
    second = NumberedMember(cluster, "b")
    second.join()
    first.beat(before)  # is told what goes
    moved = min(before.keys() - first.has)
    assert commit(first, {moved: before[moved]}) == [NONE]
    first.beat(first.has)
    assert commit(first, {moved: before[moved]}) == [STALE]
    second.beat(())
    assert commit(second, {moved: second.owned[moved]}) == [NONE]


def test_no_commit_by_token_stands_after_the_record_that_gave_the_partition_away() -> None:
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    partition, token = one_of(member)
    cluster.auto_ack = False
    again = member.request(0)
    again.member_seq += 1
    again.topics.names.append("t")
    again.rebalance_timeout_ms = 30_000
    again.owned.SetInParent()
    cluster.send(again)
    late = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=member.member_id)
    late.topics.add(name="t").partitions.add(partition=partition[1], offset=9, token=token.to_proto())
    call_id = cluster.send(late)
    while cluster.waiting:
        cluster.acknowledge()
    answer = cluster.answer(call_id)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == STALE
    assert not commits(cluster)


def unsent(name: str, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=name,
        member_epoch=epoch,
        member_seq=1,
        process_id=name.encode().ljust(16, b"."),
    )


def joining(name: str) -> ConsumerGroupHeartbeatRequest:
    request = unsent(name)
    request.rebalance_timeout_ms = 30_000
    request.topics.names.append("u")
    request.owned.SetInParent()
    return request


def committing(member: NumberedMember, offset: int, seq: int = 0) -> coordinator_pb2.OffsetCommitRequest:
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=member.member_id, member_seq=seq)
    (topic, number), token = one_of(member)
    request.topics.add(name=topic).partitions.add(partition=number, offset=offset, token=token.to_proto())
    return request


def code_of(cluster: VirtualShard, call_id: int) -> ErrorCode:
    answer = cluster.answer(call_id)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def test_a_commit_of_a_member_waits_for_one_record_however_many_strangers_are_in_line() -> None:
    """GRP-38."""
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    cluster.auto_ack = False
    strangers = [cluster.send(joining(f"s{number}")) for number in range(20)]
    calls = [cluster.send(committing(member, 10 + seq, seq)) for seq in (1, 2)]
    assert len(cluster.waiting) == 1, "nobody acts on what the log may not have"
    cluster.acknowledge()
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting][:2] == [
        "offset_committed"
    ] * 2
    cluster.acknowledge()
    cluster.acknowledge()
    assert [code_of(cluster, call) for call in calls] == [NONE] * 2
    assert [record.member_seq for record in commits(cluster)] == [1, 2], "in their order"
    assert sum(map(cluster.is_parked, strangers)) >= 19
    while cluster.waiting:
        cluster.acknowledge()
    assert not any(map(cluster.is_parked, strangers))
    check_every_cut(cluster.log, cluster.config)


def test_a_commit_from_outside_keeps_its_place_in_line() -> None:
    """GRP-38: what a member has left is committed by who comes after it, in the order of the calls."""
    cluster = incremental_shard()
    joined(cluster, "a")
    cluster.auto_ack = False
    cluster.send(joining("b"))
    for name in ("a", "b"):
        cluster.send(unsent(name, epoch=-1))
    outside = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=-1)
    outside.topics.add(name="t").partitions.add(partition=0, offset=99)
    call_id = cluster.send(outside)
    while cluster.waiting:
        cluster.acknowledge()
    assert code_of(cluster, call_id) == NONE
    assert incremental_of(cluster).members == {}


def test_commits_that_wait_for_a_slow_log_are_refused_and_not_kept() -> None:
    """GRP-38."""
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    cluster.auto_ack = False
    cluster.send(joining("b"))
    call_id = cluster.send(committing(member, 10))
    cluster.advance(cluster.config.append_timeout_ms)
    assert code_of(cluster, call_id) == error_code.COORDINATOR_NOT_AVAILABLE
    assert not cluster.shard.groups[GROUP].line.commits
    cluster.acknowledge()
    assert not commits(cluster)


def test_a_new_life_counts_its_commits_from_the_beginning() -> None:
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    partition, token = one_of(member)
    assert commit(member, {partition: token}, member_seq=5) == [NONE]
    member.join()
    assert commit(member, {partition: member.owned[partition]}, 8, member_seq=1) == [NONE]
    assert cluster.shard.groups[GROUP].offsets.table[partition][0] == 8


def test_owners_say_that_their_partitions_are_parked_and_nobody_else_does() -> None:
    cluster = incremental_shard()
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    (mine, token), (theirs, their_token) = one_of(first), one_of(second)
    mark = PARKED_PREFIX + "t"
    marks: dict[TopicPartition, Position | None] = {
        (mark, mine[1]): token,
        (mark, theirs[1]): their_token,
        (mark, 99): token,
    }
    assert commit(first, marks) == [NONE, STALE, UNKNOWN]
    assert commit(first, {(PARKED_PREFIX + "unknown", 0): token}) == [UNKNOWN]
    for each in (cluster, cluster.reloaded()):
        assert list(each.shard.groups[GROUP].offsets.table) == [(mark, mine[1])]


def test_a_commit_without_a_token_touches_nothing_that_a_stream_member_owns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = incremental_shard()
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    monkeypatch.setattr(Member, "on_stream", property(lambda member: member.member_id == "b"))
    theirs, token = one_of(second)
    assert commit(first, {theirs: None}, member_epoch=first.epoch) == [STALE]
    assert commit(second, {theirs: None}, member_epoch=second.epoch) == [STALE]
    assert commit(second, {theirs: token}) == [NONE]


# --- topics that are deleted and made again


def test_what_was_given_of_a_deleted_topic_is_given_back_before_the_next_topic_of_its_name() -> None:
    cluster = incremental_shard()
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    before = first.owned | second.owned
    remade(cluster)
    assert first.beat(first.has).HasField("assignment")
    assert not first.has  # it is to stop what it has of the topic before
    assert not incremental_of(cluster).members["a"].assigned
    settle(first, second)
    after = first.owned | second.owned
    assert after.keys() == before.keys()
    assert all(after[partition] > before[partition] for partition in after)
    assert not incremental_of(cluster).members["a"].stale(incremental_of(cluster).renewed)
    check_every_cut([*cluster.log], cluster.config)


def test_a_commit_of_a_deleted_topic_is_nothing_of_the_next_topic_of_its_name() -> None:
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    partition, token = one_of(member)
    assert commit(member, {partition: token}) == [NONE]
    cluster.auto_ack = False
    remade(cluster)
    assert cluster.waiting  # the deletion is on its way to the log
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id="a", member_epoch=member.epoch)
    request.topics.add(name="t").partitions.add(partition=partition[1], offset=9)
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == UNKNOWN
    while cluster.waiting:
        cluster.acknowledge()
    cluster.auto_ack = True
    assert commit(member, {partition: token}) == [UNKNOWN]
    assert partition not in cluster.shard.groups[GROUP].offsets.table
    settle(member)
    assert commit(member, {partition: member.owned[partition]}) == [NONE]


def test_a_new_owner_of_the_shard_knows_what_is_of_the_topic_before() -> None:
    cluster = incremental_shard()
    (member,) = joined(cluster, "a")
    before = dict(member.owned)
    remade(cluster)
    after = incremental_shard(4, cluster.log, cluster.config)
    remade(after)
    member.cluster = after
    settle(member)
    assert member.owned.keys() == before.keys()
    assert all(member.owned[partition] > before[partition] for partition in before)


def test_a_member_by_kafkas_rules_gives_back_what_is_of_the_topic_before() -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.process_id = b""

    def beat(epoch: int, *, full: bool = False) -> Any:
        request = member.request(epoch)
        request.ClearField("version")
        request.owned.SetInParent()
        if full:
            request.topics.names.append("t")
            request.rebalance_timeout_ms = 30_000
        else:
            for name, number in sorted(member.owned):
                request.owned.topics.add(topic=name, partitions=[number])
        answer = member.hear(member.ask(request))
        assert not answer.error_code
        return answer

    beat(0, full=True)
    before = dict(member.owned)
    remade(cluster)
    for _ in range(4):
        beat(member.epoch)
    assert member.owned.keys() == before.keys()
    assert all(member.owned[partition] > before[partition] for partition in before)


def test_who_gives_back_what_is_of_deleted_topics_is_brought_to_no_epoch_before_its_target() -> None:
    group = IncrementalGroup(epoch=8)
    group.target_epoch = 7
    given, taken = Position(1, 5), Position(1, 9)
    held = {("u", 0): Held(given, taken), ("t", 0): Held(given)}
    member = Member(Told("a"), epoch=7, held=held, target=frozenset(held))
    group.put(member)
    group.renew(["t"], Position(1, 10))
    step = next_step(group, member, Report(frozenset({("t", 0)}).intersection, None), {})
    assert step is not None
    assert (step.epoch, step.released, step.taken) == (7, frozenset({("u", 0)}), frozenset({("t", 0)}))
