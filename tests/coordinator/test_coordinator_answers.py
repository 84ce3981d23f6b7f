"""Answers that may be large: in pages, bounded, and in steps between which others have their turn."""

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, MemoryCluster, group_of, owns
from google.rpc import error_details_pb2, status_pb2
from kit.waiting import until
from muster_coordinator.answers import STEP_PARTITIONS, Answers
from muster_core import error_code
from muster_core.events import GroupRequest
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb

MIB = 1 << 20
FETCH = pb.OffsetFetchRequest


@pytest.fixture
async def caller(cluster: MemoryCluster) -> Caller:
    """Calls to a coordinator that owns all shards and answers with a MiB at most."""
    coordinator = await cluster.add("a", max_answer_bytes=MIB, join_delay_ms=0)
    await owns(coordinator, 4)
    return cluster.caller(coordinator)


async def commit(caller: Caller, group_id: str, topic: str, numbers: range, metadata: str = "") -> None:
    partitions = [
        pb.OffsetCommitRequest.Partition(partition=number, offset=number, metadata=metadata)
        for number in numbers
    ]
    request = pb.OffsetCommitRequest(
        group_id=group_id,
        generation=-1,
        topics=[pb.OffsetCommitRequest.Topic(name=topic, partitions=partitions)],
    )
    answer = await caller.stub.OffsetCommit(request, timeout=20)
    assert {entry.error_code for entry in answer.topics[0].partitions} == {error_code.NONE}


def partitions(group: pb.OffsetFetchResponse.Group) -> list[tuple[str, int]]:
    return [(topic.name, entry.partition) for topic in group.topics for entry in topic.partitions]


async def refused(call: Any) -> tuple[str, str]:
    """Field and text of the violation that a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(caught.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    status.details[0].Unpack(bad)
    return bad.field_violations[0].field, bad.field_violations[0].description


# --- OffsetFetch


async def test_all_offsets_come_at_once_in_order_also_where_that_takes_several_steps(caller: Caller) -> None:
    group = group_of(0)
    await commit(caller, group, "b", range(STEP_PARTITIONS + 500))
    await commit(caller, group, "a", range(700))
    answer = await caller.stub.OffsetFetch(FETCH(groups=[FETCH.Group(group_id=group)]), timeout=20)
    wanted = [("a", number) for number in range(700)]
    wanted += [("b", number) for number in range(STEP_PARTITIONS + 500)]
    assert partitions(answer.groups[0]) == wanted
    assert [topic.name for topic in answer.groups[0].topics] == ["a", "b"]
    assert not answer.groups[0].more


@pytest.mark.parametrize(("limit", "metadata"), [(7, ""), (1_400, ""), (10_000, "m" * 4_000)])
async def test_pages_of_offsets_have_everything_once(caller: Caller, limit: int, metadata: str) -> None:
    group, number = group_of(0), 40 if limit == 7 else 1_500
    for begin in range(0, number, 500):
        await commit(caller, group, "t", range(begin, min(begin + 500, number)), metadata)
    asked = FETCH.Group(group_id=group, limit=limit)
    found: list[tuple[str, int]] = []
    while True:
        [page] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=20)).groups
        assert page.error_code == error_code.NONE
        assert 0 < len(partitions(page)) <= limit
        assert page.ByteSize() <= MIB
        found += partitions(page)
        if not page.more:
            break
        asked.after_topic, asked.after_partition = found[-1]
    assert found == [("t", index) for index in range(number)]


async def test_partitions_stored_or_removed_between_pages_do_not_disturb_the_others(caller: Caller) -> None:
    group = group_of(0)
    await commit(caller, group, "t", range(10))
    asked = FETCH.Group(group_id=group, limit=4)
    [first] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=20)).groups
    await commit(caller, group, "t", range(10, 12))
    await commit(caller, group, "a", range(1))
    gone = common_pb2.TopicPartitions(topic="t", partitions=[1, 5])
    await caller.stub.OffsetDelete(pb.OffsetDeleteRequest(group_id=group, topics=[gone]), timeout=20)
    asked.after_topic, asked.after_partition = partitions(first)[-1]
    asked.limit = 100
    [rest] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=20)).groups
    assert partitions(rest) == [("t", number) for number in (4, 6, 7, 8, 9, 10, 11)]


async def test_named_partitions_that_take_several_steps_come_in_the_order_of_the_request(
    caller: Caller,
) -> None:
    names = [group_of(shard, number) for number in range(2) for shard in (1, 0)]
    for name in names:
        await commit(caller, name, "t", range(0, 1_800, 2))
    asked = [
        FETCH.Group(
            group_id=name,
            topics=[common_pb2.TopicPartitions(topic="t", partitions=range(1_799, -1, -1))],
        )
        for name in names
    ]
    answer = await caller.stub.OffsetFetch(FETCH(groups=asked), timeout=20)
    assert [group.group_id for group in answer.groups] == names
    for group in answer.groups:
        [topic] = group.topics
        assert [(entry.partition, entry.offset) for entry in topic.partitions] == [
            (number, -1 if number % 2 else number) for number in range(1_799, -1, -1)
        ]


async def test_whole_groups_of_several_shards_come_in_the_order_of_the_request(caller: Caller) -> None:
    names = [group_of(shard, number) for number in range(12) for shard in (2, 0)]
    for index, name in enumerate(names):
        await commit(caller, name, "t", range(1 if index % 5 else 300))
    asked = [FETCH.Group(group_id=name) for name in names]
    answer = await caller.stub.OffsetFetch(FETCH(groups=[*asked, FETCH.Group(group_id="none")]), timeout=20)
    assert [group.group_id for group in answer.groups] == [*names, "none"]
    sizes = [len(partitions(group)) for group in answer.groups]
    assert sizes == [1 if index % 5 else 300 for index in range(len(names))] + [0]


async def test_offsets_that_are_too_many_are_refused_with_field_and_limit(caller: Caller) -> None:
    group = group_of(0)
    await commit(caller, group, "t", range(400), "m" * 4_000)
    call = caller.stub.OffsetFetch(FETCH(groups=[FETCH.Group(group_id=group)]), timeout=20)
    field, text = await refused(call)
    assert field == "groups"
    assert "1,048,576 bytes" in text


# --- DescribeGroups


async def test_groups_that_are_too_large_together_are_refused_and_come_one_by_one(caller: Caller) -> None:
    names = [group_of(0), group_of(1)]
    for name in names:
        joined = await caller.join(name)
        request = pb.SyncGroupRequest(group_id=name, member_id=joined.member_id, generation=joined.generation)
        request.assignments.add(member_id=joined.member_id, assignment=bytes(600_000))
        assert (await caller.stub.SyncGroup(request, timeout=20)).error_code == error_code.NONE
        described = await caller.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[name]), timeout=20)
        assert len(described.groups[0].members[0].assignment) == 600_000
    field, text = await refused(
        caller.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=names), timeout=20)
    )
    assert field == "group_ids"
    assert "1,048,576 bytes" in text


# --- ListGroups


async def test_pages_of_groups_have_each_group_once(caller: Caller) -> None:
    names = [group_of(shard, number) for shard in range(4) for number in range(5)]
    for name in names:
        await commit(caller, name, "t", range(1))
    whole = await caller.stub.ListGroups(pb.ListGroupsRequest(), timeout=20)
    assert [group.group_id for group in whole.groups] == sorted(names)
    for limit in (1, 3, 5, 1_000):
        request = pb.ListGroupsRequest(limit=limit)
        found: list[str] = []
        while True:
            page = await caller.stub.ListGroups(request, timeout=20)
            assert len(page.groups) <= limit
            found += [group.group_id for group in page.groups]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert sorted(found) == sorted(names)


async def test_a_list_that_is_too_long_is_refused_and_comes_in_pages(caller: Caller) -> None:
    long = "x" * 240
    names = [f"{long}{number}" for number in range(4_500)]
    await asyncio.gather(*(commit(caller, name, "t", range(1)) for name in names))
    field, text = await refused(caller.stub.ListGroups(pb.ListGroupsRequest(), timeout=20))
    assert field == "limit"
    assert "1,048,576 bytes" in text
    page = await caller.stub.ListGroups(pb.ListGroupsRequest(limit=2_000), timeout=20)
    assert len(page.groups) == 2_000
    assert page.next_page_token


# --- steps


def endless(turns: list[int]) -> Answers:
    """Answers where each step of a fetch has a further page; notes each step."""

    async def at_shard(number: int, request: GroupRequest, host: str) -> Any:
        assert isinstance(request, pb.OffsetFetchRequest)
        turns.append(number)
        answer = pb.OffsetFetchResponse()
        group = answer.groups.add(group_id=request.groups[0].group_id, more=True)
        group.topics.add(name="t").partitions.add(partition=len(turns))
        return answer

    return Answers(at_shard, {}, MIB)


async def test_the_loop_turns_after_each_step() -> None:
    steps: list[int] = []
    answers = endless(steps)
    task = asyncio.create_task(answers.fetch(FETCH(groups=[FETCH.Group(group_id="g")]), 1, ""))
    seen = [0]
    while len(steps) < 10:
        await asyncio.sleep(0)
        seen.append(len(steps))
    assert all(after - before <= 1 for before, after in pairwise(seen)), "several steps in one turn"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_built_for_a_caller_who_is_gone_ends_at_the_next_step() -> None:
    steps: list[int] = []
    answers = endless(steps)
    task = asyncio.create_task(answers.fetch(FETCH(groups=[FETCH.Group(group_id="g")]), 1, ""))
    await until(lambda: len(steps) > 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = len(steps)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(steps) == before


async def test_large_answers_are_built_one_at_a_time() -> None:
    open_now: set[str] = set()
    most = 0

    async def at_shard(number: int, request: GroupRequest, host: str) -> Any:
        assert isinstance(request, pb.DescribeGroupsRequest)
        nonlocal most
        open_now.add(host)
        most = max(most, len(open_now))
        await asyncio.sleep(0)
        if request.group_ids[0] == "last":
            open_now.discard(host)
        return pb.DescribeGroupsResponse(groups=[pb.DescribeGroupsResponse.Group()])

    answers = Answers(at_shard, {}, MIB)
    request = pb.DescribeGroupsRequest(group_ids=["a", "b", "last"])
    await asyncio.gather(*(answers.describe(request, 1, str(caller)) for caller in range(5)))
    assert most == 1
