"""Commits that are on their way to the log: which count, which are retries, which are too late."""

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched, settled
from muster_core import error_code
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import coordinator_pb2


def outcome(cluster: VirtualShard, call: int) -> int:
    response = cluster.answer(call)
    assert isinstance(response, coordinator_pb2.OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


def test_a_commit_that_was_overtaken_on_its_way_is_refused() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster.auto_ack = False
    newer = cluster.send(member.commit_request(20, seq=2))
    older = cluster.send(member.commit_request(10, seq=1))
    assert outcome(cluster, older) == error_code.INVALID_REQUEST
    assert len(cluster.waiting) == 1
    cluster.acknowledge()
    assert outcome(cluster, newer) == error_code.NONE
    assert fetched(cluster) == 20


def test_retries_of_commits_on_their_way_are_answered_with_them_whatever_came_since() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    assert member.commit(5, seq=1) == 0
    cluster.auto_ack = False
    calls = [cluster.send(member.commit_request(10 * seq, seq=seq)) for seq in (2, 3, 2, 3)]
    stored = cluster.send(member.commit_request(5, seq=1))
    assert outcome(cluster, stored) == error_code.NONE, "it is stored, as it was answered before"
    assert len(cluster.waiting) == 2
    cluster.acknowledge()
    cluster.acknowledge()
    assert [outcome(cluster, call) for call in calls] == [error_code.NONE] * 4
    assert fetched(cluster) == 30


def test_what_an_older_version_stored_in_another_order_counts_as_it_stands() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    assert member.commit(20, seq=2) == 0
    assert member.commit(30, seq=3) == 0
    (position, last), (before, first) = cluster.log[-1], cluster.log[-2]
    after = VirtualShard(records=[*cluster.log[:-2], (before, last), (position, first)])
    assert fetched(after) == 20, "the later record counts, as it was acknowledged"
    member.cluster = after
    assert member.commit(20, seq=2) == error_code.INVALID_REQUEST


def test_a_process_that_takes_a_place_over_begins_to_count_again() -> None:
    cluster = VirtualShard()
    (first,) = settled(cluster, "a")
    first.leave()
    old = VirtualMember(cluster, "w", instance="i").join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    old.joined()
    old.sync({old.member_id: b"all"}).synced()
    assert old.commit(50, seq=5) == 0
    cluster.auto_ack = False
    cluster.send(old.commit_request(60, seq=6))
    cluster.auto_ack = True
    new = VirtualMember(cluster, "w", instance="i").join()
    while cluster.waiting:
        cluster.acknowledge()
    new.joined()
    assert new.commit(70, seq=1) == 0
    assert fetched(cluster) == 70
    assert fetched(cluster.reloaded()) == 70


@pytest.mark.parametrize("came_at_ms", [1_000, 5_500])
def test_the_retry_of_a_commit_on_its_way_does_not_wait_for_ever(came_at_ms: int) -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster.auto_ack = False
    first = cluster.send(member.commit_request(5, seq=1))
    cluster.advance(came_at_ms)
    retry = cluster.send(member.commit_request(5, seq=1))
    cluster.advance(cluster.config.append_timeout_ms)
    for call in (first, retry):
        assert outcome(cluster, call) == error_code.COORDINATOR_NOT_AVAILABLE
    last = cluster.send(member.commit_request(5, seq=1))
    assert len(cluster.waiting) == 1
    cluster.acknowledge()
    assert outcome(cluster, last) == error_code.NONE


def test_a_log_that_takes_nothing_is_told_of_and_not_waited_for_long() -> None:
    """LIM-52."""
    cluster = VirtualShard()
    trouble = "3 of 3 nodes of the log take no records: it is out of memory"
    cluster.shard.live_in(Room(log_trouble=lambda: trouble))
    (member,) = settled(cluster, "a")
    cluster.auto_ack = False
    call = cluster.send(member.commit_request(5, seq=1))
    cluster.advance(1_000)
    answer = cluster.answer(call)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert trouble in answer.error_message
    cluster.acknowledge()
    assert fetched(cluster) == 5, "it may have been stored all the same"


@pytest.mark.parametrize("generation", [1, -1, 2])
def test_a_member_in_its_first_join_phase_commits_nothing(generation: int) -> None:
    cluster = VirtualShard()
    settled(cluster, "a")
    new = VirtualMember(cluster, "b").join()
    assert new.is_parked
    new.generation = generation
    before = len(cluster.log)
    assert new.commit(999) == error_code.ILLEGAL_GENERATION
    assert len(cluster.log) == before
