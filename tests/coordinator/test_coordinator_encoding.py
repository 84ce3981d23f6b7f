"""Large answers, encoded some at a time."""

from typing import Any

import pytest
from coordinator.coordinator_cluster import MemoryCluster, owns
from google.protobuf.message import Message
from muster_coordinator.api import calls
from muster_coordinator.api.encoding import PIECE_PARTS, in_pieces, is_large
from muster_core import error_code
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2
from muster_runtime.loop_share import LoopShare

MIB = 1 << 20


def fetched(partitions: int, metadata: str = "m") -> coordinator_pb2.OffsetFetchResponse:
    answer = coordinator_pb2.OffsetFetchResponse()
    topic = answer.groups.add(group_id="g").topics.add(name="t")
    for number in range(partitions):
        topic.partitions.add(partition=number, offset=1, metadata=metadata)
    return answer


class _Clock:
    """The loop's time in a share: each look at it finds that half a millisecond more was taken."""

    def __init__(self) -> None:
        self.rests = self.looks = 0

    def taken_s(self, _: LoopShare) -> float:
        self.looks += 1
        return self.looks * 0.0005

    async def rest(self, _: LoopShare) -> None:
        self.rests += 1
        self.looks = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(LoopShare, "taken_s", property(clock.taken_s))
    monkeypatch.setattr(LoopShare, "rest", lambda share: clock.rest(share))
    return clock


@pytest.mark.parametrize("partitions", [0, 1, PIECE_PARTS, PIECE_PARTS + 1, 10_000])
async def test_an_answer_in_pieces_has_all_of_it(partitions: int) -> None:
    answer = fetched(partitions)
    answer.groups[0].topics.add(name="empty")
    answer.groups[0].shard_epoch = 7
    answer.groups[0].more = True
    answer.groups.add(
        group_id="moved",
        error_code=error_code.NOT_COORDINATOR,
        error_message="another coordinator owns the group",
        coordinator=common_pb2.Coordinator(host="b", port=1),
    )
    answer.groups.extend(fetched(3).groups)
    if partitions:
        answer.groups[0].topics[0].partitions[0].end = 0
    assert (
        coordinator_pb2.OffsetFetchResponse.FromString(b"".join(await in_pieces(answer, LoopShare())))
        == answer
    )
    assert is_large(answer) == (partitions > 10)


@pytest.mark.parametrize(
    ("partitions", "metadata", "rests"), [(10, "", 1), (20_000, "", 79), (3_600, "m" * 4_000, 29)]
)
async def test_a_large_answer_is_encoded_some_at_a_time(
    partitions: int, metadata: str, rests: int, clock: _Clock
) -> None:
    """LIM-48: 14 MB in one piece held the loop for up to 40 ms."""
    answer = fetched(partitions, metadata)
    pieces = await in_pieces(answer, LoopShare())
    assert max(map(len, pieces)) < PIECE_PARTS * 4_200
    assert coordinator_pb2.OffsetFetchResponse.FromString(b"".join(pieces)) == answer
    assert clock.rests == rests  # after each fourth piece


async def test_of_many_members_several_are_encoded_together() -> None:
    """LIM-48: one at a time, 10,000 took the loop for 160 ms, and 4,000 of them for 37 ms in one turn."""
    answer = coordinator_pb2.DescribeGroupsResponse()
    group = answer.groups.add(group_id="g")
    for number in range(2_500):
        member = group.members.add(member_id=f"m{number:04}", protocols=["range"])
        if number % 500 == 499:  # these have more than goes with others
            for partition in range(100):
                member.kept_tokens.add(topic="t", partition=partition, token="1-1")
    pieces = await in_pieces(answer, LoopShare())
    assert coordinator_pb2.DescribeGroupsResponse.FromString(b"".join(pieces)) == answer
    assert len(pieces) < 150


def kept() -> coordinator_pb2.SyncGroupResponse:
    answer = coordinator_pb2.SyncGroupResponse(error_code=error_code.NONE, assignment=b"a", token="1-1")
    for number in range(20_000):
        answer.kept_tokens.add(topic="t" * 249, partition=number, token="1-1")
    return answer


def joined() -> coordinator_pb2.JoinGroupResponse:
    member = coordinator_pb2.JoinGroupResponse.Member
    members = [member(member_id=f"m{number}", metadata=bytes(MIB >> 1)) for number in range(30)]
    return coordinator_pb2.JoinGroupResponse(generation=3, leader="m0", member_id="m0", members=members)


def described() -> coordinator_pb2.DescribeGroupsResponse:
    answer = coordinator_pb2.DescribeGroupsResponse()
    for number in range(20):
        group = answer.groups.add(group_id=f"g{number}", state=coordinator_pb2.GROUP_STATE_STABLE)
        group.cause.SetInParent()
        member = group.members.add(member_id="m", metadata=bytes(MIB >> 1), assignment=bytes(MIB >> 1))
        member.kept_tokens.add(topic="t", partition=1, token="1-1")
    return answer


def described_incremental() -> incremental_pb2.ConsumerGroupDescribeResponse:
    answer = incremental_pb2.ConsumerGroupDescribeResponse()
    group = answer.groups.add(group_id="g", group_epoch=3)
    for number in range(9_000):
        group.members.add(member_id=f"m{number}", member_epoch=3, topics=["t", "u"])
    return answer


def listed() -> coordinator_pb2.ListGroupsResponse:
    groups = [coordinator_pb2.ListGroupsResponse.Group(group_id=f"g{number}") for number in range(9_000)]
    return coordinator_pb2.ListGroupsResponse(groups=groups, next_page_token="7/g")


@pytest.mark.parametrize("answer", [kept(), joined(), described(), described_incremental(), listed()])
async def test_each_answer_that_may_be_large_is_encoded_some_at_a_time(
    answer: Message, clock: _Clock
) -> None:
    """LIM-48."""
    assert is_large(answer)
    pieces = await in_pieces(answer, LoopShare())
    assert type(answer).FromString(b"".join(pieces)) == answer
    assert clock.rests >= 2
    assert max(map(len, pieces)) < 9 * (MIB >> 1)


def joined_after_small() -> coordinator_pb2.JoinGroupResponse:
    answer = coordinator_pb2.JoinGroupResponse()
    _fill(answer.members)
    return answer


def described_after_small() -> coordinator_pb2.DescribeGroupsResponse:
    answer = coordinator_pb2.DescribeGroupsResponse()
    _fill(answer.groups.add(group_id="g").members)
    return answer


def _fill(members: Any) -> None:
    for number in range(2 * PIECE_PARTS):
        members.add(member_id=f"a{number:03}", metadata=b"m")
    for number in range(20):
        members.add(member_id=f"b{number}", metadata=bytes(MIB >> 1))


def names_after_small() -> incremental_pb2.ConsumerGroupDescribeResponse:
    answer = incremental_pb2.ConsumerGroupDescribeResponse()
    group = answer.groups.add(group_id="g")
    for number in range(3 * PIECE_PARTS):
        topics = ["t" * 249] * (1 if number < 2 * PIECE_PARTS else 2_000)
        group.members.add(member_id=f"m{number:03}", topics=topics)
    return answer


@pytest.mark.parametrize(
    "answer",
    [
        joined_after_small(),
        described_after_small(),
        names_after_small(),
    ],
)
async def test_large_members_after_small_ones_are_not_encoded_together(answer: Message) -> None:
    """LIM-48: 14 MB of them were one piece, and held the loop for 45 ms."""
    pieces = await in_pieces(answer, LoopShare())
    assert type(answer).FromString(b"".join(pieces)) == answer
    assert max(map(len, pieces)) < MIB
    assert len(pieces) < 200


@pytest.mark.parametrize(
    "answer",
    [
        coordinator_pb2.HeartbeatResponse(),
        coordinator_pb2.SyncGroupResponse(assignment=b"a" * 1_000),
        coordinator_pb2.JoinGroupResponse(members=[coordinator_pb2.JoinGroupResponse.Member()] * 3),
        fetched(PIECE_PARTS - 2),
    ],
)
def test_small_answers_wait_for_no_others(answer: Message) -> None:
    assert not is_large(answer)


@pytest.mark.cluster
async def test_a_unary_call_has_its_large_answer_encoded_some_at_a_time(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-48."""
    coordinator = await cluster.add("a", join_delay_ms=0)
    await owns(coordinator, 4)
    caller = cluster.caller(coordinator)
    request = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1)
    topic = request.topics.add(name="t")
    for number in range(PIECE_PARTS + 1):
        topic.partitions.add(partition=number, offset=number, metadata="m" * 4_000)
    await caller.stub.OffsetCommit(request, timeout=60)
    sizes: list[list[int]] = []

    async def noted(answer: Message, share: LoopShare) -> list[bytes]:
        pieces = await in_pieces(answer, share)
        sizes.append(list(map(len, pieces)))
        return pieces

    monkeypatch.setattr(calls, "in_pieces", noted)
    fetch = coordinator_pb2.OffsetFetchRequest()
    fetch.groups.add(group_id="g")
    answer = await caller.stub.OffsetFetch(fetch, timeout=60)
    found = answer.groups[0].topics[0].partitions
    assert [(one.partition, one.offset) for one in found] == [(n, n) for n in range(PIECE_PARTS + 1)]
    assert [sum(some) for some in sizes] == [answer.ByteSize()]
    assert 2 * max(sizes[0]) < sum(sizes[0])
