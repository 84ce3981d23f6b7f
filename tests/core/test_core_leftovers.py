"""What a caller can leave behind in a shard: groups that come to nothing, streams, tombstones."""

import gc
import weakref

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from muster_coordinator.shard.process_room import ProcessRoom
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Attach, Beat, Detach, StreamBroken
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

DAY_MS = 86_400_000
GROUPS = 100_000


def join(group_id: str, member_id: str = "", instance_id: str = "") -> coordinator_pb2.JoinGroupRequest:
    return coordinator_pb2.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance_id,
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
    )


def commit(group_id: str) -> coordinator_pb2.OffsetCommitRequest:
    topic = coordinator_pb2.OffsetCommitRequest.Topic(
        name="t", partitions=[coordinator_pb2.OffsetCommitRequest.Partition(offset=1)]
    )
    return coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1, topics=[topic])


def code(answer: object) -> int:
    if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
        return int(answer.topics[0].partitions[0].error_code)
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    return int(answer.error_code)


@pytest.mark.slow
def test_groups_that_never_come_to_a_generation_leave_nothing() -> None:
    shard = VirtualShard()
    most = 0
    for number in range(GROUPS):
        assert code(shard.ask(join(f"g{number}"))) == error_code.MEMBER_ID_REQUIRED
        most = max(most, len(shard.shard.groups))
        if number % 1_000 == 0:
            shard.advance(10)
    assert most == shard.config.max_new_groups_per_shard
    shard.advance(10_000 + shard.config.retention_check_interval_ms)
    assert (dict(shard.shard.groups), shard.kinds()) == ({}, [])
    assert len(shard.shard._context.purgatory.wheel) == 1, "the retention alone is left"


def test_for_a_new_group_the_oldest_goes_in_which_nobody_is() -> None:
    shard = VirtualShard(GroupConfig(max_new_groups_per_shard=3))
    parked = shard.send(join("parked", instance_id="i"))
    ids = {name: shard.ask(join(name)) for name in ("a", "b", "c")}
    assert set(shard.shard.groups) == {"parked", "b", "c"}
    lost, kept = ids["a"], ids["b"]
    assert isinstance(lost, coordinator_pb2.JoinGroupResponse)
    assert isinstance(kept, coordinator_pb2.JoinGroupResponse)
    shard.advance(3_000)
    assert code(shard.answer(parked)) == error_code.NONE
    assert code(shard.ask(join("a", lost.member_id))) == error_code.UNKNOWN_MEMBER_ID
    accepted = shard.send(join("b", kept.member_id))
    shard.advance(3_000)
    assert code(shard.answer(accepted)) == error_code.NONE


def test_groups_that_all_have_members_on_their_way_are_not_dropped_for_another() -> None:
    shard = VirtualShard(GroupConfig(max_new_groups_per_shard=2))
    parked = [shard.send(join(name, instance_id="i")) for name in ("a", "b")]
    refused = shard.ask(join("c"))
    assert code(refused) == error_code.COORDINATOR_NOT_AVAILABLE
    assert isinstance(refused, coordinator_pb2.JoinGroupResponse)
    assert "MUSTER_GROUP_MAX_NEW_GROUPS_PER_SHARD" in refused.error_message
    shard.advance(3_000)
    assert [code(shard.answer(call)) for call in parked] == [error_code.NONE] * 2
    assert code(shard.ask(join("c"))) == error_code.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("request_of", [join, commit])
def test_groups_of_a_shard_and_of_a_process_are_limited(request_of: object) -> None:
    assert callable(request_of)
    shard = VirtualShard(GroupConfig(max_groups_per_shard=2))
    for name in ("a", "b"):
        assert code(shard.ask(commit(name))) == error_code.NONE
    refused = shard.ask(request_of("c"))
    assert code(refused) == error_code.COORDINATOR_NOT_AVAILABLE
    assert code(shard.ask(commit("a"))) == error_code.NONE, "those that are there go on"
    if isinstance(refused, coordinator_pb2.JoinGroupResponse):
        assert "MUSTER_GROUP_MAX_GROUPS_PER_SHARD" in refused.error_message

    shard = VirtualShard()
    groups = 0
    shard.shard.live_in(Room(groups=lambda: groups))
    assert code(shard.ask(commit("a"))) == error_code.NONE
    groups = shard.config.max_groups
    assert code(shard.ask(request_of("b"))) == error_code.COORDINATOR_NOT_AVAILABLE
    assert code(shard.ask(commit("a"))) == error_code.NONE


def test_a_group_that_the_log_does_not_know_is_deleted_without_a_record() -> None:
    shard = VirtualShard()
    shard.ask(join("g"))
    answer = shard.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    assert isinstance(answer, coordinator_pb2.DeleteGroupsResponse)
    assert [result.error_code for result in answer.results] == [error_code.NONE]
    assert (dict(shard.shard.groups), shard.kinds()) == ({}, [])
    shard.advance(20_000)
    assert code(shard.ask(join("g"))) == error_code.MEMBER_ID_REQUIRED


def test_a_group_that_a_commit_makes_known_stays_until_its_offsets_expire() -> None:
    shard = VirtualShard()
    shard.ask(join("g"))
    assert code(shard.ask(commit("g"))) == error_code.NONE
    shard.advance(2 * shard.config.retention_check_interval_ms)
    assert list(shard.shard.groups) == ["g"]
    shard.advance(shard.config.offsets_retention_ms)
    assert dict(shard.shard.groups) == {}
    assert shard.kinds() == ["offset_committed", "offset_tombstone", "group_tombstone"]


@pytest.mark.slow
def test_a_member_that_leaves_streams_behind_for_days_leaves_nothing() -> None:
    shard = VirtualShard()
    joining = shard.send(join("g", instance_id="i"))
    shard.advance(3_000)
    joined = shard.answer(joining)
    assert isinstance(joined, coordinator_pb2.JoinGroupResponse)
    plan = coordinator_pb2.SyncGroupRequest(group_id="g", member_id=joined.member_id, generation=1)
    shard.ask(plan)
    who = session_pb2.Attach(group_id="g", member_id=joined.member_id, group_instance_id="i", generation=1)
    off = session_pb2.Detach(group_id="g", member_id=joined.member_id)
    for stream_id in range(1, 3 * DAY_MS // 5_000):
        shard.feed(Attach(stream_id, who))
        shard.feed(Beat(stream_id))
        if stream_id % 3 == 0:
            shard.feed(Detach(stream_id, off))
        elif stream_id % 3 == 1:
            shard.feed(StreamBroken(stream_id))
        shard.advance(5_000)
        assert shard.shard.streams <= 1
    shard.feed(StreamBroken(stream_id))
    assert shard.shard.streams == 0
    assert shard.state("g") == "Stable"


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["left", "silent"])
def test_of_a_group_that_was_deleted_nothing_is_kept(ends: str) -> None:
    shard = VirtualShard()
    (member,) = settled(shard, "a")
    member.commit(7)
    if ends == "left":
        member.leave()
    else:
        shard.advance(member.session_timeout_ms)
    group = weakref.ref(shard.shard.groups["g"])
    deleted = shard.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    assert isinstance(deleted, coordinator_pb2.DeleteGroupsResponse)
    assert deleted.results[0].error_code == error_code.NONE
    shard.appends.clear()
    assert shard.state() == "Dead"  # another turn
    gc.collect()
    assert group() is None
    assert len(shard.shard._context.purgatory) == 0


def test_a_join_phase_that_nobody_comes_back_to_is_looked_at_once_a_second() -> None:
    shard = VirtualShard()
    first, second = (VirtualMember(shard, name, instance=name) for name in ("a", "b"))
    for member in (first, second):
        member.rebalance_timeout_ms, member.session_timeout_ms = 1, 60_000
    first.join()
    shard.advance(3_000)
    first.joined()
    first.sync({first.member_id: b"x"}).synced()
    second.join()
    shard.cancel(second.call_id)
    turns = 0
    end_ms = shard.now_ms + 20_000
    while shard.deadline_ms is not None and shard.deadline_ms <= end_ms:
        shard.advance(shard.deadline_ms - shard.now_ms)
        turns += 1
    assert turns < 200, "some turns only move a timer down the wheel"
    assert shard.state() == "PreparingRebalance"
    assert len(shard.shard._context.purgatory) == 1
    again = shard.send(second.join_request(group_instance_id="b"))
    shard.advance(1_000)
    assert code(shard.answer(again)) == error_code.NONE, "who comes back waits no longer than that"


def test_large_join_phases_whose_time_is_up_together_end_one_after_the_other() -> None:
    now_ms = 0
    room = ProcessRoom(list, lambda: now_ms, lambda _: None).room
    shards = [VirtualShard(GroupConfig(initial_rebalance_delay_ms=0)) for _ in range(3)]
    waiting: list[tuple[VirtualShard, int]] = []
    for number, shard in enumerate(shards):
        shard.shard.live_in(room)
        metadata = bytes(600_000) if number < 2 else b"little"
        first, second = (VirtualMember(shard, name, instance=name) for name in ("a", "b"))
        for member in (first, second):
            member.protocols = [("range", metadata)]
            member.rebalance_timeout_ms, member.session_timeout_ms = 10_000, 60_000
        first.join()
        first.joined()
        first.sync({first.member_id: b"x"}).synced()
        waiting.append((shard, second.join().call_id))

    def ended(ms: int) -> list[bool]:
        nonlocal now_ms
        now_ms += ms
        for shard in shards:
            shard.advance(ms)
        return [not shard.is_parked(call) for shard, call in waiting]

    assert ended(9_999) == [False, False, False]
    assert ended(1) == [True, False, True], "what is little waits for nobody"
    assert ended(40) == [True, False, True]
    assert ended(40) == [True, True, True]
    assert [code(shard.answer(call)) for shard, call in waiting] == [error_code.NONE] * 3


def test_a_large_join_phase_to_which_all_came_waits_for_no_other() -> None:
    shard = VirtualShard(GroupConfig(initial_rebalance_delay_ms=0))
    shard.shard.live_in(Room(wait_ms=lambda _: 1_000))
    member = VirtualMember(shard, "a", instance="a").join()
    assert code(member.joined()) == error_code.NONE
