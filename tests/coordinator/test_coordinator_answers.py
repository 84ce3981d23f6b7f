"""Answers that may be large: in pages, bounded, and in steps between which others have their turn."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from abuse.caller import join, keeping
from conformance import acts
from coordinator.coordinator_cluster import Caller, MemoryCluster, group_of, owns
from google.rpc import error_details_pb2, status_pb2
from kit.waiting import until
from muster_coordinator.api.answers import STEP_GROUPS, Answers
from muster_coordinator.api.calls import LARGE_BYTES
from muster_coordinator.api.fetches import STEP_PARTITIONS, Fetch, is_small
from muster_coordinator.api.rights import Rights
from muster_coordinator.api.steps import Ask, Budget
from muster_core import error_code
from muster_core.events import GroupRequest, MemberRange, Request
from muster_core.protocol.responses import refusal
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access

pytestmark = pytest.mark.cluster

MIB = 1 << 20
FETCH = coordinator_pb2.OffsetFetchRequest


@pytest.fixture
async def caller(cluster: MemoryCluster) -> Caller:
    """Calls to a coordinator that owns all shards and answers with a MiB at most."""
    coordinator = await cluster.add("a", max_answer_bytes=MIB, join_delay_ms=0)
    await owns(coordinator, 4)
    return cluster.caller(coordinator)


async def commit(caller: Caller, group_id: str, topic: str, numbers: range, metadata: str = "") -> None:
    partitions = [
        coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=number, metadata=metadata)
        for number in numbers
    ]
    request = coordinator_pb2.OffsetCommitRequest(
        group_id=group_id,
        generation=-1,
        topics=[coordinator_pb2.OffsetCommitRequest.Topic(name=topic, partitions=partitions)],
    )
    answer = await caller.stub.OffsetCommit(request, timeout=60)
    assert {entry.error_code for entry in answer.topics[0].partitions} == {error_code.NONE}


def partitions(group: coordinator_pb2.OffsetFetchResponse.Group) -> list[tuple[str, int]]:
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
    answer = await caller.stub.OffsetFetch(FETCH(groups=[FETCH.Group(group_id=group)]), timeout=60)
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
        [page] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=60)).groups
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
    [first] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=60)).groups
    await commit(caller, group, "t", range(10, 12))
    await commit(caller, group, "a", range(1))
    gone = common_pb2.TopicPartitions(topic="t", partitions=[1, 5])
    await caller.stub.OffsetDelete(
        coordinator_pb2.OffsetDeleteRequest(group_id=group, topics=[gone]), timeout=60
    )
    asked.after_topic, asked.after_partition = partitions(first)[-1]
    asked.limit = 100
    [rest] = (await caller.stub.OffsetFetch(FETCH(groups=[asked]), timeout=60)).groups
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
    answer = await caller.stub.OffsetFetch(FETCH(groups=asked), timeout=60)
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
    answer = await caller.stub.OffsetFetch(FETCH(groups=[*asked, FETCH.Group(group_id="none")]), timeout=60)
    assert [group.group_id for group in answer.groups] == [*names, "none"]
    sizes = [len(partitions(group)) for group in answer.groups]
    assert sizes == [1 if index % 5 else 300 for index in range(len(names))] + [0]


async def test_offsets_that_are_too_many_are_refused_with_field_and_limit(caller: Caller) -> None:
    group = group_of(0)
    await commit(caller, group, "t", range(400), "m" * 4_000)
    call = caller.stub.OffsetFetch(FETCH(groups=[FETCH.Group(group_id=group)]), timeout=60)
    field, text = await refused(call)
    assert field == "groups"
    assert "1,048,576 bytes" in text


# --- DescribeGroups


async def test_groups_that_are_too_large_together_are_refused_and_come_one_by_one(caller: Caller) -> None:
    names = [group_of(0), group_of(1)]
    for name in names:
        joined = await caller.join(name)
        request = coordinator_pb2.SyncGroupRequest(
            group_id=name, member_id=joined.member_id, generation=joined.generation
        )
        request.assignments.add(member_id=joined.member_id, assignment=bytes(600_000))
        assert (await caller.stub.SyncGroup(request, timeout=60)).error_code == error_code.NONE
        described = await caller.stub.DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[name]), timeout=60
        )
        assert len(described.groups[0].members[0].assignment) == 600_000
    field, text = await refused(
        caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=names), timeout=60)
    )
    assert field == "group_ids"
    assert "1,048,576 bytes" in text


# --- ListGroups


async def test_pages_of_groups_have_each_group_once(caller: Caller) -> None:
    names = [group_of(shard, number) for shard in range(4) for number in range(5)]
    for name in names:
        await commit(caller, name, "t", range(1))
    whole = await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest(), timeout=60)
    assert [group.group_id for group in whole.groups] == sorted(names)
    for limit in (1, 3, 5, 1_000):
        request = coordinator_pb2.ListGroupsRequest(limit=limit)
        found: list[str] = []
        while True:
            page = await caller.stub.ListGroups(request, timeout=60)
            assert len(page.groups) <= limit
            found += [group.group_id for group in page.groups]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert sorted(found) == sorted(names)


async def test_a_list_that_is_too_long_is_refused_and_comes_in_pages(caller: Caller) -> None:
    long = "x" * 240
    names = [f"{long}{number}" for number in range(4_500)]
    for start in range(0, len(names), 100):
        await asyncio.gather(*(commit(caller, name, "t", range(1)) for name in names[start : start + 100]))
    field, text = await refused(caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest(), timeout=60))
    assert field == "limit"
    assert "1,048,576 bytes" in text
    page = await caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest(limit=2_000), timeout=60)
    assert len(page.groups) == 2_000
    assert page.next_page_token


# --- steps


class Scripted:
    """Shards that answer by a script; those in `stuck` never become ready."""

    def __init__(self, answer: Callable[..., Any], stuck: Collection[int] = ()) -> None:
        self._answer = answer
        self._stuck = stuck
        self.reached: list[int] = []

    async def call(self, number: int, request: GroupRequest, host: str) -> Any:
        return (await self.reach(number, barrier=True))(request, host)

    async def reach(self, number: int, *, barrier: bool) -> Ask:
        self.reached.append(number)
        if number in self._stuck:
            await asyncio.Event().wait()
        return self._answer


def endless(turns: list[int]) -> Answers:
    """Answers where each step of a fetch has a further page; notes each step."""

    def at_shard(request: GroupRequest, host: str) -> Any:
        assert isinstance(request, coordinator_pb2.OffsetFetchRequest)
        turns.append(len(turns))
        answer = coordinator_pb2.OffsetFetchResponse()
        group = answer.groups.add(group_id=request.groups[0].group_id, more=True)
        group.topics.add(name="t").partitions.add(partition=len(turns))
        return answer

    return Answers(Scripted(at_shard), {}, MIB, Rights(Access()))


def all_of_one(groups: int, host: list[str]) -> Callable[..., Any]:
    """A shard with so many groups; notes who asks it."""
    names = [f"g{number:05}" for number in range(groups)]

    def at_shard(request: GroupRequest, caller: str) -> Any:
        assert isinstance(request, coordinator_pb2.ListGroupsRequest)
        host.append(caller)
        later = [name for name in names if name > request.page_token]
        page = later[: request.limit]
        return coordinator_pb2.ListGroupsResponse(
            groups=[coordinator_pb2.ListGroupsResponse.Group(group_id=name) for name in page],
            next_page_token=page[-1] if len(later) > len(page) else "",
        )

    return at_shard


class Here:
    """A shard that is served here, with parts of its groups that are to be put in order yet."""

    elsewhere = False

    def __init__(self, parts: int = 0) -> None:
        self.core = self
        self.parts = parts

    def put_groups_in_order(self) -> bool:
        self.parts -= 1
        return self.parts <= 0


@pytest.mark.parametrize("limit", [0, 7])
async def test_groups_that_a_filter_leaves_out_of_a_list_count_in_quotas(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-39: to look at a hundred thousand takes long, though none of them is shown."""
    for place in ("muster_core.protocol.queries", "muster_coordinator.api.answers"):
        monkeypatch.setattr(f"{place}.LOOKED_AT_MAX", 10)
    cluster = acts.shard()
    for number in range(35):
        request = coordinator_pb2.OffsetCommitRequest(group_id=f"g{number:02}", generation=-1)
        request.topics.add(name="t").partitions.add(offset=1)
        cluster.ask(request)
    paid: list[int] = []
    connection = SimpleNamespace(pay_partitions=paid.append)
    monkeypatch.setattr("muster_coordinator.api.answers.current_connection", lambda: connection)

    def at_shard(request: GroupRequest, host: str) -> Any:
        (reply,) = cluster.shard.handle(Request(99, request, host), cluster.now).replies
        return reply.message

    here: Any = {0: Here()}
    answers = Answers(Scripted(at_shard), here, MIB, Rights(Access()))
    none = await answers.list(coordinator_pb2.ListGroupsRequest(states=["Stable"], limit=limit), "")
    assert not none.groups
    assert sum(paid) == 30
    paid.clear()
    some = await answers.list(coordinator_pb2.ListGroupsRequest(states=["Empty"], limit=limit), "")
    assert sum(paid) == len(some.groups) == (limit or 35)


async def test_a_long_list_is_put_in_order_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    number = 20 * STEP_GROUPS
    shards: Any = {0: Here(), 1: Here(7)}
    answers = Answers(Scripted(all_of_one(number, asked)), shards, 64 * MIB, Rights(Access()))
    rests = 0

    async def rest(_: LoopShare) -> None:
        nonlocal rests
        rests += 1

    monkeypatch.setattr(LoopShare, "rest", rest)
    answer = await answers.list(coordinator_pb2.ListGroupsRequest(), "")
    ids = [group.group_id for group in answer.groups]
    assert ids == sorted(ids)
    assert len(ids) == 2 * number
    assert rests == 6 + len(asked) + 2 * number // STEP_GROUPS


async def test_groups_are_put_in_order_in_steps_before_a_page_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To sort fifty thousand took 35 ms for each page, however short."""
    asked: list[str] = []
    here: Any = Here(7)
    answers = Answers(Scripted(all_of_one(5, asked)), {0: here}, MIB, Rights(Access()))
    rested_with: list[int] = []

    async def rest(_: LoopShare) -> None:
        rested_with.append(here.parts)

    monkeypatch.setattr(LoopShare, "rest", rest)
    answer = await answers.list(coordinator_pb2.ListGroupsRequest(limit=1), "")
    assert len(answer.groups) == 1
    assert rested_with == [6, 5, 4, 3, 2, 1, 0]


async def test_a_shard_that_is_stuck_holds_up_no_large_answer_of_others() -> None:
    shards = Scripted(all_of_one(5, []), stuck={1})
    owned: Any = {0: Here(), 1: Here()}
    answers = Answers(shards, owned, MIB, Rights(Access()))
    stuck = asyncio.create_task(answers.list(coordinator_pb2.ListGroupsRequest(), ""))
    await until(lambda: 1 in shards.reached)
    del owned[1]
    answer = await asyncio.wait_for(answers.list(coordinator_pb2.ListGroupsRequest(), ""), 60)
    assert len(answer.groups) == 5
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck


async def test_a_fetch_of_many_topics_is_cut_into_steps_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    async def rest(_: LoopShare) -> None:
        happened.append("rest")

    def at_shard(request: Any, _: str) -> coordinator_pb2.OffsetFetchResponse:
        happened.append("asked")
        return coordinator_pb2.OffsetFetchResponse(
            groups=[coordinator_pb2.OffsetFetchResponse.Group() for _ in request.groups]
        )

    monkeypatch.setattr(LoopShare, "rest", rest)
    monkeypatch.setattr(LoopShare, "taken_s", 1.0)
    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))
    topics = [
        common_pb2.TopicPartitions(topic=f"t{number}", partitions=[0])
        for number in range(5 * STEP_PARTITIONS)
    ]
    await answers.fetch(FETCH(groups=[FETCH.Group(group_id="g", topics=topics)]), 1, "")
    assert happened == ["rest"] * 5 + ["asked", "rest"] * 5


async def test_the_loop_turns_after_each_step() -> None:
    steps: list[int] = []
    answers = endless(steps)
    task = asyncio.create_task(answers.fetch(FETCH(groups=[FETCH.Group(group_id="g")]), 1, ""))
    seen = [0]
    while len(steps) < 10:
        assert not task.done()
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


@pytest.fixture
def turns_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts whose calls took a turn to be answered."""
    taken: list[str] = []
    turn = Answers.turn

    def counted(answers: Answers, host: str) -> AbstractAsyncContextManager[None]:
        taken.append(host)
        return turn(answers, host)

    monkeypatch.setattr(Answers, "turn", counted)
    return taken


async def test_assignments_with_many_tokens_take_turns(caller: Caller, turns_taken: list[str]) -> None:
    sync, kept = await keeping(caller.stub, "g", "t", STEP_PARTITIONS + 1)
    assert (turns_taken, kept) == ([], STEP_PARTITIONS + 1)
    answers = await asyncio.gather(*(caller.stub.SyncGroup(sync, timeout=60) for _ in range(5)))
    assert len(turns_taken) == 5
    assert {len(answer.kept_tokens) for answer in answers} == {STEP_PARTITIONS + 1}


async def test_leaders_that_ask_again_for_much_metadata_take_turns(
    caller: Caller, turns_taken: list[str]
) -> None:
    request = join("g", member_seq=1)
    request.member_id = (await caller.stub.JoinGroup(request, timeout=30)).member_id
    request.protocols[0].metadata = b"m" * LARGE_BYTES
    await caller.stub.JoinGroup(request, timeout=60)
    assert turns_taken == []
    request.protocols[0].metadata = b""
    answers = await asyncio.gather(*(caller.stub.JoinGroup(request, timeout=60) for _ in range(5)))
    assert len(turns_taken) == 5
    assert {answer.ByteSize() > LARGE_BYTES for answer in answers} == {True}


async def test_leaders_that_ask_again_for_many_members_take_turns(
    caller: Caller, turns_taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-70."""
    request = join("g", member_seq=1)
    request.member_id = (await caller.stub.JoinGroup(request, timeout=30)).member_id
    await caller.stub.JoinGroup(request, timeout=60)
    await caller.stub.JoinGroup(request, timeout=60)
    assert turns_taken == [], "few members are few"
    monkeypatch.setattr("muster_coordinator.api.calls._LARGE_MEMBERS", 0)
    await asyncio.gather(*(caller.stub.JoinGroup(request, timeout=60) for _ in range(5)))
    assert len(turns_taken) == 5


async def test_large_answers_are_built_one_at_a_time() -> None:
    asked: list[str] = []

    def at_shard(request: GroupRequest, host: str, _: object) -> Any:
        asked.append(host)
        return coordinator_pb2.DescribeGroupsResponse(groups=[coordinator_pb2.DescribeGroupsResponse.Group()])

    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))
    request = coordinator_pb2.DescribeGroupsRequest(group_ids=["a", "b", "last"])
    await asyncio.gather(*(answers.describe(request, 1, str(caller)) for caller in range(5)))
    assert asked == sorted(asked), "a second answer was begun before the first was there"
    assert len(asked) == 15


async def test_hosts_have_their_large_answers_in_turn() -> None:
    """Who asks for many delays others by one each; a caller of the host who went away has no turn."""
    asked: list[str] = []

    def at_shard(request: GroupRequest, host: str, _: object) -> Any:
        assert isinstance(request, coordinator_pb2.GroupHistoryRequest)
        if not asked:
            tasks[2].cancel()
        asked.append(f"{host}{request.group_id}")
        return coordinator_pb2.GroupHistoryResponse()

    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))

    def ask(host: str, group_id: str) -> asyncio.Task[Any]:
        request = coordinator_pb2.GroupHistoryRequest(group_id=group_id)
        return asyncio.create_task(answers.history(request, 1, host))

    tasks = [ask("a", str(number)) for number in range(5)] + [ask("b", "0"), ask("c", "0"), ask("b", "1")]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert asked == ["a0", "a1", "b0", "c0", "a3", "b1", "a4"]


@pytest.mark.parametrize(("limit", "steps"), [(0, 5), (3, 2), (1, 1), (100, 5)])
async def test_a_history_is_put_together_of_some_generations_at_a_time(
    limit: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fourteen generations with two thousand members all at a stretch held the loop for 83 ms."""
    monkeypatch.setattr("muster_coordinator.api.answers._STEP_MEMBERS", 4)
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    for _ in range(7):
        acts.rejoined(*members)
        acts.assigned(members)
    asked: list[int] = []

    def at_shard(request: GroupRequest, host: str, shown: MemberRange) -> Any:
        effects = cluster.shard.handle(Request(99, request, host, shown=shown), cluster.now)
        (reply,) = effects.replies
        assert isinstance(reply.message, coordinator_pb2.GroupHistoryResponse)
        asked.append(len(reply.message.generations))
        return reply.message

    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))
    request = coordinator_pb2.GroupHistoryRequest(group_id="g", limit=limit)
    whole: Any = cluster.ask(request)
    answer = await answers.history(request, 1, "")
    assert answer == whole
    assert len(asked) == steps
    assert max(asked) <= 2
    at_most = sum(generation.ByteSize() for generation in answer.generations[-3:])
    monkeypatch.setattr("muster_coordinator.api.answers.HISTORY_MAX_BYTES", at_most)
    fitting = await answers.history(request, 1, "")
    assert fitting.generations == whole.generations[-3:]
    request.group_id = "unknown"
    assert (await answers.history(request, 1, "")).error_code == error_code.GROUP_ID_NOT_FOUND


async def test_what_moved_in_a_history_counts_in_its_steps_and_in_quotas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-12, LIM-39: 45 generations with a thousand moves each were one step of 36 ms."""
    monkeypatch.setattr("muster_coordinator.api.answers._STEP_MEMBERS", 12)
    cluster = acts.shard()
    (who,) = acts.joined(cluster, "a")
    for number in range(6):
        names = [f"{number}-{place}" for place in range(20)]
        who.sync({who.member_id: entries_of(names)}).synced()
        acts.rejoined(who)
    asked: list[int] = []
    paid: list[int] = []

    def at_shard(request: GroupRequest, host: str, shown: MemberRange) -> Any:
        (reply,) = cluster.shard.handle(Request(99, request, host, shown=shown), cluster.now).replies
        assert isinstance(reply.message, coordinator_pb2.GroupHistoryResponse)
        asked.append(len(reply.message.generations))
        return reply.message

    monkeypatch.setattr(
        "muster_coordinator.api.answers.current_connection",
        lambda: SimpleNamespace(pay_partitions=paid.append),
    )
    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))
    answer = await answers.history(coordinator_pb2.GroupHistoryRequest(group_id="g"), 1, "")
    moves = [len(one.moves) for one in answer.generations]
    assert moves == [20, 40, 40, 40, 40, 40, 0]
    assert max(asked) <= 2, "the last one has none yet"
    assert asked[1:-1] == [1] * 5
    assert sum(paid) == sum(moves) + len(moves)


def entries_of(topics: Sequence[str]) -> bytes:
    """An assignment of the first partition of each topic."""
    entries = [common_pb2.TopicPartitions(topic=topic, partitions=[0]) for topic in topics]
    return common_pb2.Assignment(version=1, partitions=entries).SerializeToString()


async def test_descriptions_and_histories_of_one_group_are_built_one_at_a_time_and_give_way() -> None:
    """Also where hundreds come in one turn, and fetches of more than a few partitions."""
    built = 0

    def at_shard(request: GroupRequest, *_: object) -> Any:
        nonlocal built
        built += 1
        if isinstance(request, coordinator_pb2.GroupHistoryRequest):
            return coordinator_pb2.GroupHistoryResponse()
        if isinstance(request, coordinator_pb2.OffsetFetchRequest):
            return coordinator_pb2.OffsetFetchResponse(groups=[coordinator_pb2.OffsetFetchResponse.Group()])
        return coordinator_pb2.DescribeGroupsResponse(groups=[coordinator_pb2.DescribeGroupsResponse.Group()])

    answers = Answers(Scripted(at_shard), {}, MIB, Rights(Access()))
    named = common_pb2.TopicPartitions(topic="t", partitions=range(101))
    fetch = FETCH(groups=[FETCH.Group(group_id="g", topics=[named])])
    describe, history = (
        coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]),
        coordinator_pb2.GroupHistoryRequest(group_id="g"),
    )
    tasks = [
        asyncio.create_task(work)
        for _ in range(100)
        for work in (
            answers.describe(describe, 1, ""),
            answers.history(history, 1, ""),
            answers.fetch(fetch, 1, ""),
        )
    ]
    seen = [0]
    while seen[-1] < 30:
        assert not all(task.done() for task in tasks)
        await asyncio.sleep(0)
        seen.append(built)
    assert all(after - before <= 1 for before, after in pairwise(seen)), "several answers in one turn"
    await asyncio.gather(*tasks)
    assert built == len(tasks)


@pytest.mark.parametrize("topics", [1, 2_000])
async def test_groups_of_which_no_partition_is_asked_are_answered_by_their_shards_too(topics: int) -> None:
    """They were answered without an error, by whatever coordinator was asked."""
    request, asked = FETCH(), list[FETCH]()
    for group_id in "ab":
        group = request.groups.add(group_id=group_id)
        group.topics.extend([common_pb2.TopicPartitions(topic=f"t{number}") for number in range(topics)])

    def elsewhere(part: GroupRequest, _host: str, _shown: MemberRange | None = None) -> Any:
        assert isinstance(part, FETCH)
        asked.append(part)
        return refusal(part, error_code.NOT_COORDINATOR, 3, "it is elsewhere")

    fetch = Fetch(request, 4, Budget(MIB, "groups", lambda _: None), None)
    answer = await fetch.run(dict.fromkeys(range(4), elsewhere), "h")
    assert [group.error_code for group in answer.groups] == [error_code.NOT_COORDINATOR] * 2
    assert all(group.topics for part in asked for group in part.groups), "without topics it asks for all"
    assert is_small(request) == (topics == 1)
