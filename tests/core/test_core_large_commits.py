"""Commits that are decided on, and carried out, some partitions at a time (docs/safety.md, LIM-71)."""

from dataclasses import replace
from typing import Any

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched, settled
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.events import TopicsChanged
from muster_core.protocol.offsets import commit_outcomes, commit_records, offsets
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

PORTION = 20
MANY = 10 * PORTION
PART = 60


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_outcomes, "PORTION", PORTION)
    monkeypatch.setattr(commit_records, "PART_BYTES", PART * 49)


@pytest.fixture
def cluster() -> VirtualShard:
    return VirtualShard()


def commit(
    offset: int, group: str = "g", partitions: int = MANY, topic: str = "t"
) -> coordinator_pb2.OffsetCommitRequest:
    request = coordinator_pb2.OffsetCommitRequest(group_id=group, generation=-1)
    named = request.topics.add(name=topic)
    for number in range(partitions):
        named.partitions.add(partition=number, offset=offset)
    return request


def of_member(
    member: VirtualMember, seq: int, offset: int, partitions: int = MANY
) -> coordinator_pb2.OffsetCommitRequest:
    request = commit(offset, member.group, partitions)
    request.member_id, request.generation, request.member_seq = member.member_id, member.generation, seq
    return request


def codes(answer: Any) -> set[int]:
    return {one.error_code for topic in answer.topics for one in topic.partitions}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions were looked at; the test begins another number when it likes."""
    numbers: list[int] = [0]
    code = commit_outcomes._OfTopic._code

    def counted(self: Any, entry: Any) -> Any:
        numbers[-1] += 1
        return code(self, entry)

    monkeypatch.setattr(commit_outcomes._OfTopic, "_code", counted)
    return numbers


def turn(cluster: VirtualShard) -> None:
    """The next pause ends."""
    assert cluster.deadline_ms is not None
    assert 0 < cluster.deadline_ms - cluster.now_ms <= 10
    cluster.advance(cluster.deadline_ms - cluster.now_ms)


def half_carried_out(cluster: VirtualShard, request: coordinator_pb2.OffsetCommitRequest) -> int:
    """Makes a large commit of which the log has two parts, and acknowledges no more by itself."""
    cluster.auto_ack = False
    call = cluster.send(request)
    while not cluster.waiting:
        turn(cluster)
    for _ in range(2):
        cluster.acknowledge()
    return call


def stored(cluster: VirtualShard) -> list[tuple[int, int]]:
    """Partitions and offsets of commits, in the order of the log."""
    return [
        (entry.partition, entry.offset)
        for _, record in cluster.log
        for entry in record.offset_committed.offsets
    ]


@pytest.mark.parametrize("topics", [1, MANY])
def test_a_large_commit_is_looked_at_some_partitions_at_a_time(
    cluster: VirtualShard, topics: int, looked_at: list[int]
) -> None:
    request = commit(7, partitions=MANY if topics == 1 else 1)
    for number in range(1, topics):
        request.topics.add(name=f"t{number}").partitions.add(partition=0, offset=7)
    call = cluster.send(request)
    while cluster.is_parked(call):
        assert fetched(cluster, 0, group="other") == -1, "others have their turn"
        looked_at.append(0)
        turn(cluster)
    assert sum(looked_at) == MANY
    assert max(looked_at) <= (PORTION if topics == 1 else PORTION // 3 + 1)
    answer: Any = cluster.answer(call)
    assert codes(answer) == {error_code.NONE}
    assert [topic.name for topic in answer.topics] == [topic.name for topic in request.topics]
    named = [one.partition for topic in request.topics for one in topic.partitions]
    assert [one.partition for topic in answer.topics for one in topic.partitions] == named
    assert len(stored(cluster)) == MANY


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_commits_from_outside_keep_their_order(cluster: VirtualShard, known: bool) -> None:
    if known:
        cluster.ask(commit(1, partitions=1))
    calls = [cluster.send(commit(2)), cluster.send(commit(3, partitions=2)), cluster.send(commit(4))]
    calls.append(cluster.send(commit(5, partitions=1)))
    assert all(map(cluster.is_parked, calls))
    cluster.advance(1_000)
    assert [codes(cluster.answer(call)) for call in calls] == [{error_code.NONE}] * 4
    assert [offset for number, offset in stored(cluster) if number == 0] == [1] * known + [2, 3, 4, 5]
    assert [fetched(cluster, number) for number in (0, 1, MANY - 1)] == [5, 4, 4]


def test_commits_of_a_member_keep_their_order_and_nothing_comes_between(cluster: VirtualShard) -> None:
    """GRP-38: what changes the group waits for the commit."""
    (member,) = settled(cluster, "a")
    large = cluster.send(of_member(member, 1, 1))
    small = cluster.send(of_member(member, 2, 2, partitions=1))
    again = cluster.send(of_member(member, 3, 3))
    newcomer = VirtualMember(cluster, "b", instance="i").join()
    last = cluster.send(of_member(member, 4, 4, partitions=1))
    assert cluster.state() == "Stable"
    for call in (large, small, again, last):
        assert cluster.is_parked(call)
    while cluster.is_parked(last):
        assert cluster.state() == "Stable"
        turn(cluster)
    cluster.advance(10)
    assert cluster.state() == "PreparingRebalance"
    assert newcomer.is_parked
    assert [codes(cluster.answer(call)) for call in (large, small, again, last)] == [{error_code.NONE}] * 4
    assert [offset for number, offset in stored(cluster) if number == 0] == [1, 2, 3, 4]


def test_a_large_commit_waits_for_what_has_its_turns_and_small_ones_for_the_large_one(
    cluster: VirtualShard, monkeypatch: pytest.MonkeyPatch, looked_at: list[int]
) -> None:
    monkeypatch.setattr(offsets, "LOOKED_AT", 10)
    (member,) = settled(cluster, "a")
    cluster.ask_in_turns(of_member(member, 1, 1))
    request = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    request.topics.add(topic="gone", partitions=range(50))
    removal = cluster.send(request)
    small = cluster.send(of_member(member, 2, 2, partitions=1))
    assert not cluster.is_parked(small), "it waits for no removal"
    looked_at.append(0)
    large, after = cluster.send(of_member(member, 3, 3)), cluster.send(of_member(member, 4, 4, partitions=1))
    while cluster.is_parked(removal):
        assert cluster.is_parked(large)
        turn(cluster)
        assert not looked_at[-1]
    assert cluster.is_parked(large)
    assert cluster.is_parked(after)
    cluster.advance(1_000)
    assert [codes(cluster.answer(call)) for call in (small, large, after)] == [{error_code.NONE}] * 3
    assert [offset for number, offset in stored(cluster) if number == 0] == [1, 2, 3, 4]


def test_a_large_commit_that_is_given_up_while_it_waits_for_turns_is_not_stored(
    cluster: VirtualShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "LOOKED_AT", 10)
    (member,) = settled(cluster, "a")
    request = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    request.topics.add(topic="gone", partitions=range(50))
    removal = cluster.send(request)
    large, after = cluster.send(of_member(member, 3, 3)), cluster.send(of_member(member, 4, 4, partitions=1))
    cluster.cancel(large)
    cluster.advance(1_000)
    assert not cluster.is_parked(removal)
    assert codes(cluster.answer(after)) == {error_code.NONE}
    assert stored(cluster) == [(0, 4)]


def test_nobody_sees_half_of_a_large_commit(cluster: VirtualShard) -> None:
    cluster.ask_in_turns(commit(1, partitions=MANY // 2))
    cluster.auto_ack = False
    call = cluster.send(commit(2))
    while not cluster.waiting:
        turn(cluster)
    parts = len(cluster.waiting)
    assert parts == 4
    assert [append.joined for append in cluster.waiting] == [True] * (parts - 1) + [False]
    offsets, held = cluster.shard.groups["g"].offsets, 0
    everything = coordinator_pb2.OffsetFetchRequest()
    everything.groups.add(group_id="g")
    while cluster.is_parked(call):
        before: Any = cluster.ask(everything)
        assert [one.offset for one in before.groups[0].topics[0].partitions] == [1] * (MANY // 2)
        assert [fetched(cluster, number) for number in (0, MANY // 2, MANY - 1)] == [1, -1, -1]
        held, held_before = sum(one[1][0] == 2 for one in offsets), held
        assert held - held_before <= PART + 1, "others have their turn between"
        cluster.acknowledge()
    after: Any = cluster.ask(everything)
    assert [one.offset for one in after.groups[0].topics[0].partitions] == [2] * MANY
    assert codes(cluster.answer(call)) == {error_code.NONE}
    assert cluster.reloaded().shard.groups["g"].offsets.table == offsets.table
    cluster.auto_ack = True
    cluster.ask(commit(3, partitions=1))
    assert fetched(cluster, 0) == 3


def test_a_partition_that_is_named_twice_in_parts_is_seen_as_before(cluster: VirtualShard) -> None:
    cluster.ask(commit(1, partitions=1))
    request = commit(2, partitions=MANY // 2)
    request.topics.add(name="t").partitions.add(partition=0, offset=3)
    request.topics.extend(commit(2, topic="other").topics)
    cluster.auto_ack = False
    call = cluster.send(request)
    while cluster.is_parked(call):
        assert fetched(cluster, 0) == 1
        if cluster.waiting:
            cluster.acknowledge()
        else:
            turn(cluster)
    assert fetched(cluster, 0) == 3


def test_topics_that_change_meanwhile_count(cluster: VirtualShard) -> None:
    cluster.feed(TopicsChanged(frozenset(), catalog=Catalog(5, {"t": MANY}, {"t": 5}, {}, 0)))
    call = cluster.send(commit(1))
    for _ in range(3):
        turn(cluster)
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(6, {"t": PORTION}, {"t": 6}, {"t": 6}, 0)))
    cluster.advance(1_000)
    answer: Any = cluster.answer(call)
    unknown = error_code.UNKNOWN_TOPIC_OR_PARTITION
    expected = [error_code.NONE] * PORTION + [unknown] * (MANY - PORTION)
    assert [one.error_code for one in answer.topics[0].partitions] == expected
    assert len(stored(cluster)) == PORTION


def test_a_commit_ends_though_topics_change_all_the_time(cluster: VirtualShard) -> None:
    call, turns = cluster.send(commit(1)), 0
    while cluster.is_parked(call):
        turns += 1
        assert turns < 10
        cluster.feed(TopicsChanged(frozenset(), catalog=Catalog(5 + turns, {}, {}, {}, 0)))
        turn(cluster)
    assert codes(cluster.answer(call)) == {error_code.NONE}


@pytest.mark.parametrize("how", ["given up", "suspended"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_a_large_commit_that_ends_meanwhile_stores_nothing_and_holds_up_nobody(
    cluster: VirtualShard, how: str, known: bool
) -> None:
    if known:
        cluster.ask(commit(1, partitions=1))
    large = cluster.send(commit(2))
    turn(cluster)
    if how == "given up":
        cluster.cancel(large)
        cluster.advance(100)
    else:
        cluster.suspend()
        answer: Any = cluster.answer(large)
        assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
        cluster.advance(100)
        cluster.resume()
    assert stored(cluster) == [(0, 1)] * known
    cluster.advance(100)
    if how == "given up":
        assert ("g" in cluster.shard.groups) is known
    assert codes(cluster.ask(commit(3, partitions=1))) == {error_code.NONE}


def test_a_large_commit_that_is_refused_leaves_no_group(cluster: VirtualShard) -> None:
    request = commit(1)
    for entry in request.topics[0].partitions:
        entry.metadata = "m" * 4_097
    answer: Any = cluster.ask_in_turns(request)
    assert codes(answer) == {error_code.OFFSET_METADATA_TOO_LARGE}
    assert not cluster.shard.groups
    assert cluster.kinds() == []


@pytest.mark.parametrize("partitions", [1, MANY])
def test_a_commit_that_is_refused_takes_no_group_away_that_it_did_not_make(
    cluster: VirtualShard, partitions: int
) -> None:
    """As in Kafka, a group whose only newcomer never came back is there, and empty."""
    newcomer = VirtualMember(cluster, "a")
    told: Any = cluster.ask(newcomer.join_request())
    assert told.error_code == error_code.MEMBER_ID_REQUIRED
    cluster.advance(newcomer.session_timeout_ms)
    assert cluster.state() == "Empty"
    request = commit(1, partitions=partitions)
    request.generation = 1
    assert codes(cluster.ask_in_turns(request)) == {error_code.UNKNOWN_MEMBER_ID}
    assert cluster.state() == "Empty"


@pytest.mark.parametrize("epoch", [None, 3])
def test_refusals_of_large_commits_name_every_partition(cluster: VirtualShard, epoch: int | None) -> None:
    request = commit(1)
    request.generation = 4
    if epoch is not None:
        request.member_epoch = epoch
    cluster.feed(TopicsChanged(frozenset(), catalog=Catalog(5, {"t": MANY - 1}, {"t": 5}, {}, 0)))
    answer: Any = cluster.ask_in_turns(request)
    found = [one.error_code for one in answer.topics[0].partitions]
    unknown = error_code.UNKNOWN_TOPIC_OR_PARTITION
    if epoch is None:
        assert found == [error_code.ILLEGAL_GENERATION] * MANY
        assert answer.error_code == error_code.ILLEGAL_GENERATION
        assert answer.error_message
    else:
        assert found == [error_code.GROUP_ID_NOT_FOUND] * (MANY - 1) + [unknown]
        assert answer.error_code == error_code.NONE


def test_a_retry_of_a_large_commit_is_answered_as_that_was(cluster: VirtualShard) -> None:
    (member,) = settled(cluster, "a")
    request = of_member(member, 7, 1)
    first, retry = cluster.send(request), cluster.send(request)
    cluster.advance(1_000)
    assert codes(cluster.answer(first)) == codes(cluster.answer(retry)) == {error_code.NONE}
    number = len(cluster.log)
    assert codes(cluster.ask_in_turns(request)) == {error_code.NONE}
    other = of_member(member, 7, 2)
    assert codes(cluster.ask_in_turns(other)) == {error_code.UNKNOWN_TOPIC_OR_PARTITION}
    late: Any = cluster.ask_in_turns(of_member(member, 6, 2))
    assert codes(late) == {error_code.INVALID_REQUEST}
    assert len(cluster.log) == number


def test_who_always_has_a_large_commit_open_holds_its_group_for_a_while_and_not_for_ever(
    cluster: VirtualShard,
) -> None:
    (member,) = settled(cluster, "a")
    calls = [cluster.send(of_member(member, seq, seq)) for seq in (1, 2)]
    newcomer, seq = VirtualMember(cluster, "b", instance="i").join(), 2
    while cluster.state() == "Stable":
        turn(cluster)
        for call in [one for one in calls if not cluster.is_parked(one)]:
            calls.remove(call)
            seq += 1
            calls.append(cluster.send(of_member(member, seq, seq)))
        assert seq <= 12
    assert seq > 8, "commits go first for a while"
    assert newcomer.is_parked


def test_what_of_a_large_commit_is_carried_out_counts_once(cluster: VirtualShard) -> None:
    limited = VirtualShard(replace(cluster.config, max_offsets=MANY + MANY // 2))
    call = half_carried_out(limited, commit(1))
    other = limited.send(commit(1, partitions=PORTION, topic="other"))
    assert limited.is_parked(call)
    while limited.waiting:
        limited.acknowledge()
    assert codes(limited.answer(other)) == codes(limited.answer(call)) == {error_code.NONE}
    more = limited.send(commit(1, partitions=MANY // 2, topic="more"))
    limited.advance(1_000)
    assert codes(limited.answer(more)) == {error_code.INVALID_REQUEST}


def test_a_removal_takes_no_half_of_a_large_commit(cluster: VirtualShard) -> None:
    cluster.ask(commit(1, partitions=5))
    call = half_carried_out(cluster, commit(2))
    request = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    request.topics.add(topic="t", partitions=range(MANY))
    removal = cluster.send(request)
    while cluster.waiting:
        cluster.acknowledge()
    assert not cluster.is_parked(call)
    assert not cluster.is_parked(removal)
    left = {partition for (_, partition), _ in cluster.shard.groups["g"].offsets}
    assert left == set(range(5, MANY))


def test_a_large_commit_that_waits_for_turns_does_not_wait_longer_than_the_log_may(
    cluster: VirtualShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "LOOKED_AT", 10)
    member = VirtualMember(cluster, "a")
    subscription = common_pb2.Subscription(version=1, topics=["other"])
    member.protocols = [("range", subscription.SerializeToString())]
    member.join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    member.joined()
    member.sync({member.member_id: b"x"}).synced()
    cluster.ask(of_member(member, 1, 1, partitions=5))
    cluster.auto_ack = False
    request = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    request.topics.add(topic="t", partitions=range(50))
    removal, large = cluster.send(request), cluster.send(of_member(member, 2, 2))
    cluster.advance(cluster.config.append_timeout_ms + 1_000)
    assert codes(cluster.answer(large)) == {error_code.COORDINATOR_NOT_AVAILABLE}
    assert not cluster.is_parked(removal)
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    cluster.advance(1_000)
    assert codes(cluster.ask(of_member(member, 3, 3, partitions=1))) == {error_code.NONE}
    assert (0, 2) not in stored(cluster)
