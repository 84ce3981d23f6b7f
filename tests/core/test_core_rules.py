"""Rules of docs/safety.md that the core keeps, each at the place where it matters most."""

import pytest
from google.protobuf.message import Message
from kit.lives.virtual_shard import WALL_MS, VirtualMember, VirtualShard, fetched, settled
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.events import Attach, Beat, GroupRequest, StreamBroken
from muster_core.log.chain import chain_hash
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings


def published(*partitions: int) -> bytes:
    entry = common_pb2.TopicPartitions(topic="t", partitions=partitions)
    return common_pb2.Assignment(version=1, partitions=[entry]).SerializeToString()


def cooperative(*owned: int) -> list[tuple[str, bytes]]:
    """Protocols of a member that keeps what it owns through a rebalance."""
    entries = [common_pb2.TopicPartitions(topic="t", partitions=owned)] if owned else []
    subscription = common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=entries, keeps_owned=True
    )
    return [("cooperative", subscription.SerializeToString())]


def alone(cluster: VirtualShard, name: str = "a", group: str = "g") -> VirtualMember:
    """A member in the first generation of its group, before its sync."""
    member = VirtualMember(cluster, name, group)
    member.protocols = cooperative()
    member.join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert member.joined().error_code == 0
    return member


def kept(answer: coordinator_pb2.SyncGroupResponse) -> dict[int, str]:
    return {entry.partition: entry.token for entry in answer.kept_tokens}


def test_calls_wait_for_the_record_in_flight_in_their_order() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    cluster.auto_ack = False
    cluster.send(second.leave_request())
    commit = cluster.send(first.commit_request(7))
    sync = first.sync()
    join = VirtualMember(cluster, "c", instance="c").join()
    assert len(cluster.waiting) == 1, "nobody acts on what the log may not have"
    assert sync.is_parked
    cluster.acknowledge()
    assert sync.synced().error_code == error_code.REBALANCE_IN_PROGRESS, "the departure comes first"
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting] == ["offset_committed"]
    cluster.acknowledge()
    assert not cluster.is_parked(commit)
    assert join.is_parked


def test_a_commit_comes_before_what_follows_the_record_that_it_has_waited_for() -> None:
    """GRP-38: each record may begin the next one, and a commit would wait for all of them."""
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    first.join()
    cluster.auto_ack = False
    cluster.send(second.leave_request())
    commit = cluster.send(first.commit_request(7))
    cluster.acknowledge()
    kinds = [append.records[0].WhichOneof("kind") for append in cluster.waiting]
    assert kinds == ["offset_committed", "generation_started"]
    cluster.acknowledge()
    assert not cluster.is_parked(commit)
    cluster.acknowledge()
    assert first.joined().generation == 2
    assert fetched(cluster) == 7


def test_what_follows_a_record_comes_before_the_line_also_where_commits_have_waited() -> None:
    """GRP-38: everybody is back, so the generation begins with whoever is; strangers would hold it up."""
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    first.join()
    cluster.auto_ack = False
    cluster.send(second.leave_request())
    altered = cluster.send(
        AlterGroupSettingsRequest(group_id="g", set=GroupSettings(session_timeout_ms=40_000))
    )
    cluster.send(first.commit_request(7))
    cluster.acknowledge()
    kinds = [append.records[0].WhichOneof("kind") for append in cluster.waiting]
    assert kinds == ["offset_committed", "generation_started"]
    cluster.acknowledge()
    assert cluster.is_parked(altered)
    cluster.acknowledge()
    assert first.joined().generation == 2
    cluster.acknowledge()
    assert not cluster.is_parked(altered)


def test_a_session_that_ends_waits_for_the_record_in_flight() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    cluster.advance(5_000)
    first.heartbeat()
    cluster.auto_ack = False
    cluster.send(first.leave_request())
    cluster.advance(5_000)
    assert len(cluster.waiting) == 1, "the second member's session is over, and that waits its turn"
    cluster.acknowledge()
    cluster.acknowledge()
    assert cluster.kinds()[-2:] == ["member_left", "member_left"]
    assert second.member_id in cluster.log[-1][1].member_left.member_id


def test_a_generation_without_an_assignment_is_not_numbered_again() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    assert member.joined().generation == 1
    member.protocols = [("range", b"other")]
    assert member.join().joined().generation == 2
    member.cluster = cluster.reloaded()
    member.protocols = [("range", b"again")]
    assert member.join().joined().generation == 3


@pytest.mark.parametrize("step", ["sync", "heartbeat", "commit"])
def test_an_older_generation_changes_nothing(step: str) -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    assert member.join().joined().generation == 2
    member.sync({member.member_id: b"second"}).synced()
    before = len(cluster.log)
    member.generation = 1
    if step == "sync":
        assert member.sync({member.member_id: b"late"}).synced().error_code == error_code.ILLEGAL_GENERATION
    else:
        assert (member.heartbeat() if step == "heartbeat" else member.commit(3)) == 22
    member.generation = 2
    assert member.sync().synced().assignment == b"second"
    assert fetched(cluster) == -1
    assert len(cluster.log) == before


def test_a_partition_that_was_given_up_gets_a_new_token() -> None:
    cluster = VirtualShard()
    member = alone(cluster)
    first = member.sync({member.member_id: published(0, 1)}).synced()
    member.protocols = cooperative(0)
    member.join().joined()
    second = member.sync({member.member_id: published(0, 1)}).synced()
    assert kept(second) == {0: first.token}
    assert second.token > first.token


def test_a_partition_that_another_member_had_gets_a_new_token() -> None:
    cluster = VirtualShard()
    first = alone(cluster, "a")
    given = first.sync({first.member_id: published(0, 1)}).synced()
    second = VirtualMember(cluster, "b")
    second.protocols = cooperative(1)
    second.join()
    first.protocols = cooperative(0, 1)
    first.join().joined()
    second.joined()
    first.sync({first.member_id: published(0), second.member_id: published(1)})
    second.sync()
    assert kept(first.synced()) == {0: given.token}
    assert kept(second.synced()) == {}, "what it says it owned was another member's"


def test_a_deleted_group_stays_deleted_and_tokens_of_its_successor_are_higher() -> None:
    cluster = VirtualShard()
    tokens = []
    for _ in range(3):
        member = alone(cluster)
        tokens.append(member.sync({member.member_id: published(0)}).synced().token)
        assert member.commit(7) == 0
        member.leave()
        deleted = cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
        assert isinstance(deleted, coordinator_pb2.DeleteGroupsResponse)
        assert deleted.results[0].error_code == 0
        cluster = cluster.reloaded()
        assert cluster.shard.groups == {}
        assert fetched(cluster) == -1
    assert tokens == sorted(set(tokens))


def test_offsets_that_were_removed_stay_removed() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    assert member.commit(7) == 0
    member.leave()
    request = coordinator_pb2.OffsetDeleteRequest(group_id="g")
    request.topics.add(topic="t", partitions=[0])
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetDeleteResponse)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert cluster.kinds()[-1] == "offset_tombstone"
    assert fetched(cluster) == -1
    assert fetched(cluster.reloaded()) == -1


def test_tokens_sort_as_text() -> None:
    positions = [Position(epoch, offset) for epoch in (1, 9, 10, 99_999) for offset in (2, 9, 10, 10**12)]
    assert [position.token for position in positions] == sorted(position.token for position in positions)
    assert Position(12, 4711).token == "0000000012-0000000000004711"
    assert {len(position.token) for position in positions} == {27}


def test_the_session_of_a_member_starts_when_its_parked_call_is_cancelled() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    first.join()
    for _ in range(3):
        cluster.advance(5_000)
        assert second.heartbeat() == 27
    cluster.cancel(first.call_id)
    second.join()
    cluster.advance(9_999)
    assert second.is_parked, "the first one's session runs since its call was cancelled"
    cluster.advance(1)
    assert second.joined().generation == 2
    assert [member.member_id for member in cluster.describe().members] == [second.member_id]


@pytest.mark.parametrize(("after_ms", "members"), [(2_999, 1), (3_000, 0)])
def test_the_grace_runs_from_the_break_and_not_from_the_last_beat(after_ms: int, members: int) -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join(disconnect_grace_ms=3_000)
    cluster.advance(3_000)
    member.joined()
    member.sync({member.member_id: b"x"}).synced()
    attach = session_pb2.Attach(group_id="g", member_id=member.member_id, generation=member.generation)
    cluster.feed(Attach(1, attach))
    cluster.feed(Beat(1))
    cluster.advance(500)
    cluster.feed(StreamBroken(1))
    cluster.advance(after_ms)
    assert len(cluster.describe().members) == members


def test_what_has_come_due_happens_before_the_event() -> None:
    """Nobody is woken in time by a loop that was held up: the next event, whatever it is, comes after."""
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster.now_ms += member.session_timeout_ms
    member.heartbeat()
    assert member.heartbeat() == 25
    assert cluster.kinds()[-2:] == ["member_left", "generation_started"]


def epochs(message: Message) -> list[int]:
    """The epochs that an answer carries, of each group that it speaks of."""
    found = []
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                found += epochs(part)
    found += [
        getattr(message, field.name) for field in message.DESCRIPTOR.fields if field.name == "shard_epoch"
    ]
    return found


@pytest.mark.parametrize("suspended", [False, True])
def test_every_answer_carries_the_epoch(suspended: bool) -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster = cluster.reloaded()
    member.cluster = cluster
    leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)
    fetch = coordinator_pb2.OffsetFetchRequest()
    fetch.groups.add(group_id="g").topics.add(topic="t", partitions=[0])
    calls: list[GroupRequest] = [
        coordinator_pb2.HeartbeatRequest(group_id="g", member_id=member.member_id, generation=1),
        coordinator_pb2.HeartbeatRequest(group_id="nobody's"),
        coordinator_pb2.SyncGroupRequest(group_id="g", member_id=member.member_id, generation=1),
        member.commit_request(1),
        fetch,
        coordinator_pb2.OffsetDeleteRequest(group_id="g"),
        coordinator_pb2.DescribeGroupsRequest(group_ids=["g", "nobody's"]),
        coordinator_pb2.GroupHistoryRequest(group_id="g"),
        VirtualMember(cluster, "b").join_request(),
        coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaving]),
        coordinator_pb2.DeleteGroupsRequest(group_ids=["g", "nobody's"]),
    ]
    if suspended:
        cluster.suspend()
    for call in calls:
        found = epochs(cluster.ask(call))
        assert found, call
        assert set(found) == {2}, call


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    deadline_ms = cluster.deadline_ms
    for jump_ms in (3_600_000, -3_600_000, 0):
        monkeypatch.setattr("kit.lives.virtual_shard.WALL_MS", WALL_MS + jump_ms)
        first.heartbeat()
        second.heartbeat()
        assert cluster.deadline_ms == deadline_ms, "no deadline moves with the wall clock"
        cluster.advance(9_999)
        assert (first.heartbeat(), second.heartbeat()) == (0, 0)
        deadline_ms = cluster.deadline_ms


def test_the_stamps_of_a_clock_that_was_set_back_accuse_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualShard()
    first, _ = settled(cluster, "a", "b")
    monkeypatch.setattr("kit.lives.virtual_shard.WALL_MS", WALL_MS - 5_000)
    cluster.advance(9_000)
    assert first.heartbeat() == 0
    cluster.advance(2_000)
    left = [record.member_left for _, record in cluster.log if record.HasField("member_left")]
    assert [message.clock_moved for message in left] == [True]
    assert broken_promises(cluster) == []


def test_the_chain_hash_covers_everything() -> None:
    before, place, nonce, record = bytes(range(32)), Position(3, 9), bytes(16), b"record"
    other = [
        (bytes(32), place, nonce, record),
        (before, Position(4, 9), nonce, record),
        (before, Position(3, 10), nonce, record),
        (before, place, bytes(15) + b"x", record),
        (before, place, nonce, b"recorD"),
        (before, place, nonce, b""),
    ]
    hashes = {chain_hash(*parts) for parts in [(before, place, nonce, record), *other]}
    assert len(hashes) == len(other) + 1
    assert {len(found) for found in hashes} == {32}


def test_a_heartbeat_prolongs_nobody_whose_removal_is_on_its_way_to_the_log() -> None:
    """Its life is over: what it heard now would let it work on beside those who get its partitions."""
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    cluster.advance(9_999)
    first.heartbeat()
    cluster.auto_ack = False
    cluster.advance(1)
    assert [append.records[0].member_left.member_id for append in cluster.waiting] == [second.member_id]
    assert second.heartbeat() == 15, "try again: it is not known yet what becomes of it"
    assert first.heartbeat() == 0, "of others the acknowledged state counts (GRP-05)"
    cluster.acknowledge()
    assert second.heartbeat() == 25
    assert first.heartbeat() == 27


def test_a_process_whose_place_another_one_is_about_to_have_is_prolonged_no_more() -> None:
    cluster = VirtualShard()
    old = VirtualMember(cluster, "a", instance="i-1").join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    old.joined()
    old.sync({old.member_id: b"everything"}).synced()
    cluster.auto_ack = False
    new = VirtualMember(cluster, "a", instance="i-1").join()
    assert old.heartbeat() == 15
    cluster.acknowledge()
    assert new.joined().error_code == 0
    assert (new.heartbeat(), old.heartbeat()) == (0, 82)


def test_only_commits_from_outside_may_be_of_the_group_without_an_id() -> None:
    """Kafka's oldest consumers have none (conformance GV-03), so their log is in order."""
    cluster = VirtualShard()
    request = coordinator_pb2.OffsetCommitRequest(generation=-1)
    request.topics.add(name="t").partitions.add(offset=5, leader_epoch=-1)
    for _ in range(2):
        answer = cluster.ask(request)
        assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
        assert answer.topics[0].partitions[0].error_code == 0
    topics = [common_pb2.TopicPartitions(topic="t", partitions=[0])]
    cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=[""]))
    assert cluster.kinds() == ["offset_committed", "offset_committed", "group_tombstone"]
    assert broken_promises(cluster) == []

    position = cluster.log[-1][0]
    removed = records_pb2.OffsetTombstone(topics=topics)
    cluster.log.append((position.after(1), records_pb2.Record(offset_tombstone=removed)))
    assert broken_promises(cluster) == []
    commit = cluster.log[1][1].offset_committed
    of_a_member = records_pb2.OffsetCommitted(member_id="m", generation=1, offsets=commit.offsets)
    cluster.log.append((position.after(2), records_pb2.Record(offset_committed=of_a_member)))
    assert "G16" in {one.invariant for one in broken_promises(cluster)}
