"""Whole stories of a group, in virtual time: what the log, the members and the timers say."""

from collections.abc import Iterator

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched, settled
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Event, Suspend, TopicsChanged, Unload
from muster_core.state.members.member import Member
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

JOINED = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED


def published(*partitions: int) -> bytes:
    entry = common_pb2.TopicPartitions(topic="t", partitions=partitions)
    return common_pb2.Assignment(version=1, partitions=[entry]).SerializeToString()


def subscription(*, owned: tuple[int, ...] = (), keeps: bool = False) -> bytes:
    entry = [common_pb2.TopicPartitions(topic="t", partitions=owned)] if owned else []
    return common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=entry, keeps_owned=keeps
    ).SerializeToString()


def rebalance(*members: VirtualMember) -> None:
    """All rejoin, the leader assigns, all sync."""
    for member in members:
        member.join()
    for member in members:
        assert member.joined().error_code == 0
    leader = next(member for member in members if member.members)
    for member in members:
        member.sync({key: key.encode() for key in leader.members} if member is leader else None)
    for member in members:
        assert member.synced().error_code == 0


def test_the_generation_is_stored_before_join_is_answered() -> None:
    cluster = VirtualShard()
    cluster.auto_ack = False
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    assert member.is_parked
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting] == ["generation_started"]
    cause = cluster.waiting[0].records[0].generation_started.cause
    assert cause.kind == JOINED
    assert cause.sentence == f"Member {member.member_id} at 10.0.0.1 joined the group."
    cluster.acknowledge()
    assert member.joined().generation == 1


def test_the_assignment_is_stored_before_sync_is_answered() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    member.joined()
    cluster.auto_ack = False
    member.sync({member.member_id: b"everything"})
    assert member.is_parked
    assert cluster.state() == "CompletingRebalance"
    cluster.acknowledge()
    answer = member.synced()
    assert answer.assignment == b"everything"
    assert answer.token == cluster.log[-1][0].token
    assert cluster.state() == "Stable"


def test_events_of_a_group_wait_while_its_record_is_in_flight() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    cluster.auto_ack = False
    leaving = cluster.send(
        coordinator_pb2.LeaveGroupRequest(
            group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=second.member_id)]
        )
    )
    committing = cluster.send(first.commit_request(7))
    assert cluster.is_parked(leaving)
    assert cluster.is_parked(committing)
    assert first.heartbeat() == 0, "heartbeats are answered from the acknowledged state"
    assert len(cluster.describe().members) == 2
    cluster.acknowledge()
    assert not cluster.is_parked(leaving)
    cluster.acknowledge()
    assert not cluster.is_parked(committing)
    assert first.heartbeat() == 27


def test_commits_do_not_hold_a_group_up() -> None:
    cluster = VirtualShard()
    first, _ = settled(cluster, "a", "b")
    cluster.auto_ack = False
    calls = [cluster.send(first.commit_request(offset)) for offset in (1, 2, 3)]
    assert len(cluster.waiting) == 3
    assert first.heartbeat() == 0
    for _ in calls:
        cluster.acknowledge()
    assert fetched(cluster) == 3


def test_a_slow_log_is_answered_retriably_and_the_record_still_counts() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster.auto_ack = False
    call = cluster.send(member.commit_request(5, seq=1))
    cluster.advance(4_999)
    assert cluster.is_parked(call)
    cluster.advance(1)
    response = cluster.answer(call)
    assert isinstance(response, coordinator_pb2.OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == error_code.COORDINATOR_NOT_AVAILABLE
    retry = cluster.send(member.commit_request(5, seq=1))
    assert len(cluster.waiting) == 1, "the retry must not be written a second time"
    cluster.acknowledge()
    assert not cluster.is_parked(retry)
    assert fetched(cluster) == 5


def test_calls_in_line_do_not_wait_for_ever_for_a_slow_log() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    cluster.auto_ack = False
    leave = coordinator_pb2.LeaveGroupRequest(
        group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=first.member_id)]
    )
    calls = [cluster.send(leave)]
    cluster.advance(1_000)
    calls.append(cluster.send(second.commit_request(1)))
    cluster.advance(4_000)
    assert not any(cluster.is_parked(call) for call in calls)
    late = cluster.send(second.commit_request(2))
    cluster.advance(5_000)
    assert not cluster.is_parked(late)


def test_a_deletion_of_groups_in_line_does_not_wait_for_ever_and_what_was_refused_is_not_done() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    cluster.auto_ack = False
    leave = coordinator_pb2.LeaveGroupRequest(
        group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)]
    )
    left = cluster.send(leave)
    deletion = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g", "other"]))
    cluster.advance(5_000)
    assert not cluster.is_parked(left)
    refused = cluster.answer(deletion)
    assert isinstance(refused, coordinator_pb2.DeleteGroupsResponse)
    assert {result.error_code for result in refused.results} == {error_code.COORDINATOR_NOT_AVAILABLE}
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    assert cluster.state() == "Empty"


def test_a_retried_commit_is_stored_once_and_a_late_one_not_at_all() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    assert member.commit(10, seq=2) == 0
    before = len(cluster.log)
    assert member.commit(10, seq=2) == 0
    assert member.commit(3, seq=1) == 42
    assert len(cluster.log) == before
    assert fetched(cluster) == 10
    after = cluster.reloaded()
    member.cluster = after
    assert member.commit(3, seq=1) == 42, "the sequence survives a load"
    assert fetched(after) == 10


def test_a_retried_first_join_meets_its_own_id() -> None:
    cluster = VirtualShard()
    request = VirtualMember(cluster, "a").join_request(request_id="r-1")
    first = cluster.ask(request)
    assert isinstance(first, coordinator_pb2.JoinGroupResponse)
    assert first.error_code == error_code.MEMBER_ID_REQUIRED
    assert cluster.ask(request) == first
    assert list(cluster.shard.groups["g"].pending_members) == [first.member_id]


def test_a_retried_static_join_meets_its_own_id_at_another_coordinator() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a", instance="i").join(request_id="r-1")
    cluster.advance(3_000)
    first = member.joined()
    after = cluster.reloaded()
    again = VirtualMember(after, "a", instance="i").join(request_id="r-1").joined()
    assert (again.member_id, again.generation) == (first.member_id, first.generation)
    assert after.kinds() == cluster.kinds(), "the retry takes nobody's place"


def test_a_leaders_retried_join_does_not_start_another_rebalance() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join(member_seq=1)
    cluster.advance(3_000)
    member.joined()
    member.sync({member.member_id: b"x"}).synced()
    answer = cluster.ask(member.join_request(member_seq=1))
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    assert (answer.error_code, answer.generation, answer.skip_assignment) == (error_code.NONE, 1, True)
    assert member.join(member_seq=2).joined().generation == 2
    stale = cluster.ask(member.join_request(member_seq=1))
    assert isinstance(stale, coordinator_pb2.JoinGroupResponse)
    assert stale.error_code == error_code.INVALID_REQUEST


def test_after_a_load_members_keep_generation_assignment_and_a_full_session() -> None:
    cluster = VirtualShard()
    members = settled(cluster, "a", "b")
    members[0].commit(42)
    cluster.advance(9_000)
    for member in members:
        member.heartbeat()
    after = cluster.reloaded()
    after.advance(9_999)
    for member in members:
        member.cluster = after
        assert member.heartbeat() == 0
        assert member.sync().synced().assignment == f"for {member.member_id}".encode()
    assert after.state() == "Stable"
    assert fetched(after) == 42
    assert after.kinds() == cluster.kinds(), "a load writes nothing when nothing was begun"


@pytest.mark.row("SE-01")
def test_after_a_load_a_member_that_stays_silent_expires_one_session_later() -> None:
    cluster = VirtualShard()
    settled(cluster, "a")
    after = cluster.reloaded()
    after.advance(9_999)
    assert after.state() == "Stable"
    assert not after.describe().members[0].confirmed
    after.advance(1)
    assert after.state() == "Empty"


def test_a_load_finishes_a_join_phase_that_was_answered() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    member.joined()
    after = cluster.reloaded()
    assert after.state() == "CompletingRebalance"
    member.cluster = after
    assert member.sync({member.member_id: b"x"}).synced().assignment == b"x"


def test_a_load_without_the_assignment_waits_for_syncs_only_so_long() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    member.joined()
    after = cluster.reloaded()
    member.cluster = after
    for _ in range(6):
        after.advance(5_000)
        member.heartbeat()
    assert after.state() == "Empty", "nobody synced within the rebalance time-out"


def test_a_load_after_a_member_left_goes_on_with_the_rebalance_and_its_cause() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    second.leave("deploy")
    assert cluster.kinds()[-1] == "member_left"
    after = cluster.reloaded()
    description = after.describe()
    assert after.state() == "PreparingRebalance"
    assert description.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
    assert description.cause.sentence.endswith("left the group: deploy.")
    first.cluster = after
    assert first.heartbeat() == 27
    assert first.join().joined().generation == 2


def test_a_load_after_the_last_member_left_ends_empty() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    member.leave()
    upto = [record.WhichOneof("kind") for _, record in cluster.log].index("member_left") + 1
    after = cluster.reloaded(upto)
    assert after.state() == "Empty"
    assert after.describe().generation == 2


def test_generations_grow_over_loads() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    seen = [1]
    for _ in range(3):
        cluster = cluster.reloaded()
        member.cluster = cluster
        rebalance(member)
        seen.append(member.generation)
    assert seen == [1, 2, 3, 4]


def test_suspension_ends_parked_calls_and_resumption_gives_full_sessions() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    joining = second.join()
    assert not joining.is_parked, "an unchanged follower is answered at once"
    first.join()
    assert first.is_parked
    cluster.suspend()
    assert first.joined().error_code == error_code.COORDINATOR_NOT_AVAILABLE
    refused = cluster.ask(first.join_request())
    assert isinstance(refused, coordinator_pb2.JoinGroupResponse)
    assert refused.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.advance(60_000)
    cluster.resume()
    cluster.advance(9_999)
    assert len(cluster.describe().members) == 2, "nobody expires for silence that could not be heard"
    cluster.advance(30_000)
    assert cluster.state() == "Empty"


@pytest.mark.parametrize("last", [Suspend(), Unload(None)], ids=["suspended", "unloaded"])
def test_a_process_that_wakes_after_its_lease_puts_nobody_out(last: Event) -> None:
    """It hears of the end of its lease first; that members were silent while it was stopped means nothing."""
    cluster = VirtualShard()
    settled(cluster, "a", "b")
    cluster.now_ms += 60_000
    effects = cluster.shard.handle(last, cluster.now)
    assert (effects.appends, effects.pushes) == ([], [])
    if isinstance(last, Suspend):
        cluster.resume()
        cluster.advance(9_999)
        assert len(cluster.describe().members) == 2


def test_unload_answers_everything_with_the_new_owner() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    first.join()
    owner = common_pb2.Coordinator(node_id="other", host="h", port=1, shard=0, shard_epoch=9)
    cluster.feed(Unload(owner))
    answer = first.joined()
    assert answer.error_code == error_code.NOT_COORDINATOR
    assert answer.coordinator == owner
    assert second.heartbeat() == 16
    assert cluster.deadline_ms is None


def test_a_cancelled_join_is_unparked_and_the_session_runs() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    first.join()
    cluster.cancel(first.call_id)
    assert cluster.shard.open_calls == 0
    second.join()
    assert second.is_parked, "the phase still waits for the first"
    cluster.advance(10_000)
    assert second.joined().generation == 2


@pytest.mark.parametrize("instance", ["", "i"], ids=["dynamic", "static"])
def test_a_call_that_is_cancelled_costs_its_own_member_only(instance: str) -> None:
    class NeverWalked(dict[str, Member]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all members are looked at")

        values = items = __iter__  # type: ignore[assignment]  # they only raise

    cluster = VirtualShard()
    settled(cluster, "a", "b")
    joining = VirtualMember(cluster, "c", instance=instance).join()
    group = cluster.shard.groups["g"]
    group.members = NeverWalked(group.members)
    cluster.cancel(joining.call_id)
    group.members = dict(dict.copy(group.members))
    assert cluster.shard.open_calls == 0
    assert group.parked_joins == 0
    cluster.advance(10_000)
    assert [member.client_id for member in cluster.describe().members] == []


def test_kept_partitions_keep_their_token_and_others_get_a_new_one() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a")
    member.protocols = [("cooperative", subscription())]
    member.join()
    cluster.advance(3_000)
    member.joined()
    first = member.sync({member.member_id: published(0, 1)}).synced()
    assert not first.kept_tokens
    member.protocols = [("cooperative", subscription(owned=(0, 1), keeps=True))]
    member.join().joined()
    second = member.sync({member.member_id: published(0, 2)}).synced()
    assert second.token > first.token
    assert [(kept.partition, kept.token) for kept in second.kept_tokens] == [(0, first.token)]
    member.protocols = [("cooperative", subscription(owned=(0, 2)))]
    member.join().joined()
    third = member.sync({member.member_id: published(0, 2)}).synced()
    assert not third.kept_tokens, "what was given up gets a new token"


def test_history_names_cause_and_moves() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a")
    member.protocols = [("range", subscription())]
    member.join()
    cluster.advance(3_000)
    member.joined()
    member.sync({member.member_id: published(0, 1)}).synced()
    cluster = cluster.reloaded()
    response = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
    assert isinstance(response, coordinator_pb2.GroupHistoryResponse)
    (entry,) = response.generations
    assert entry.generation == 1
    assert entry.cause.kind == JOINED
    assert [(move.partition, move.to_member_id) for move in entry.moves] == [
        (0, member.member_id),
        (1, member.member_id),
    ]


@pytest.mark.parametrize(("assignment", "unknown"), [(b"foreign", True), (published(), False), (b"", False)])
def test_history_says_where_it_does_not_know_what_moved(assignment: bytes, unknown: bool) -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join()
    cluster.advance(3_000)
    member.joined()
    member.sync({member.member_id: assignment}).synced()
    history = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
    assert isinstance(history, coordinator_pb2.GroupHistoryResponse)
    assert [generation.moves_unknown for generation in history.generations] == [unknown]


def test_a_changed_topic_rebalances_its_subscribers_only() -> None:
    cluster = VirtualShard()
    members = {}
    for group, topic in (("g", "t"), ("h", "u")):
        member = VirtualMember(cluster, "a", group)
        member.protocols = [("range", common_pb2.Subscription(version=1, topics=[topic]).SerializeToString())]
        member.join()
        cluster.advance(3_000)
        member.joined()
        member.sync({}).synced()
        members[group] = member
    cluster.feed(TopicsChanged(frozenset({"t"})))
    assert members["g"].heartbeat() == 27
    assert members["h"].heartbeat() == 0
    assert cluster.describe("g").cause.kind == common_pb2.REBALANCE_CAUSE_KIND_TOPIC_CHANGED


def test_a_topic_that_changes_while_the_last_member_leaves_starts_nothing() -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a")
    member.protocols = [("range", common_pb2.Subscription(version=1, topics=["t"]).SerializeToString())]
    member.join()
    cluster.advance(3_000)
    member.joined()
    member.sync({}).synced()
    cluster.auto_ack = False
    leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)
    cluster.send(coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver]))
    cluster.feed(TopicsChanged(frozenset({"t"})))
    cluster.auto_ack = True
    cluster.acknowledge()
    while cluster.waiting:
        cluster.acknowledge()
    before = cluster.kinds()
    assert before[-2:] == ["member_left", "generation_started"]
    cluster.advance(60_000)
    assert cluster.kinds() == before
    assert cluster.state() == "Empty"


def test_refused_calls_write_nothing_and_make_no_group() -> None:
    cluster = VirtualShard()
    stranger = VirtualMember(cluster, "a")
    refusals = {
        "unknown id": (stranger.join_request(member_id="nobody"), 25),
        "empty group": (stranger.join_request(group_id=""), 24),
        "negative session": (stranger.join_request(session_timeout_ms=-1), 26),
        "long session": (stranger.join_request(session_timeout_ms=1_800_001), 26),
        "no protocol type": (stranger.join_request(protocol_type=""), 23),
    }
    for name, (request, code) in refusals.items():
        answer = cluster.ask(request)
        assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
        assert answer.error_code == code, name
    assert cluster.kinds() == []
    assert cluster.shard.groups == {}


def test_pending_ids_are_bounded() -> None:
    cluster = VirtualShard(GroupConfig(max_pending_members=3))
    codes = []
    for _ in range(5):
        answer = cluster.ask(VirtualMember(cluster, "a").join_request())
        assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
        codes.append(answer.error_code)
    assert codes == [
        error_code.MEMBER_ID_REQUIRED,
        error_code.MEMBER_ID_REQUIRED,
        error_code.MEMBER_ID_REQUIRED,
        error_code.MEMBER_ID_REQUIRED,
        error_code.MEMBER_ID_REQUIRED,
    ]
    assert len(cluster.shard.groups["g"].pending_members) == 3


def test_a_group_never_outgrows_the_record_of_its_generation() -> None:
    cluster = VirtualShard(GroupConfig(max_group_bytes=300_000))
    codes = []
    for number in range(6):
        member = VirtualMember(cluster, f"m{number}")
        member.protocols = [("range", bytes(65_536))]
        member.join()
        codes.append(0 if member.is_parked else member.joined().error_code)
    assert codes == [
        error_code.NONE,
        error_code.NONE,
        error_code.NONE,
        error_code.NONE,
        error_code.GROUP_MAX_SIZE_REACHED,
        error_code.GROUP_MAX_SIZE_REACHED,
    ]
    cluster.advance(30_000)
    record = next(record for _, record in cluster.log if record.WhichOneof("kind") == "generation_started")
    assert len(record.SerializeToString()) <= 300_000
    assert len(record.generation_started.members) == 4


@pytest.mark.parametrize("instance", ["", "i"])
def test_a_first_join_that_is_too_large_makes_no_group(instance: str) -> None:
    cluster = VirtualShard(GroupConfig(max_group_bytes=60_000))
    member = VirtualMember(cluster, "a", instance=instance)
    member.protocols = [("range", bytes(65_536))]
    member.join()
    assert member.joined().error_code == error_code.GROUP_MAX_SIZE_REACHED
    assert cluster.shard.groups == {}
    member.protocols = [("range", bytes(50_000))]
    member.join()
    assert member.is_parked
    assert list(cluster.shard.groups) == ["g"]
