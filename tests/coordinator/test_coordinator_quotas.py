"""Quotas at a coordinator: unary calls and streams share them, what is refused leaves nothing (LIM-39)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, group_of, owns
from coordinator.real_cluster import on_one_node
from coordinator.session_client import Session, call, stable
from kit.callers_by_header import NamedCallers
from kit.waiting import until
from muster_coordinator import validation
from muster_coordinator.api import named as named_by
from muster_core import error_code
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    group_conversion_pb2,
    group_settings_pb2,
    session_pb2,
)
from muster_runtime.rpc.quotas import Quota, QuotaSettings
from muster_runtime.rpc.quotas.party import BURST_S, CREATION_BURST_S

pytestmark = pytest.mark.cluster

SHARDS = 4
GROUP = group_of(0)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
OFF = dict.fromkeys((quota.value for quota in Quota), 0)


@pytest.fixture
async def caller(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Caller]:
    limits: dict[str, Any] = dict(request.param)
    if rules := limits.pop("rules", ""):
        limits["file"] = tmp_path / "quotas.toml"
        limits["file"].write_text(rules)
    async with on_one_node(SHARDS) as coordinators:
        quotas = QuotaSettings.model_validate({**OFF, **limits})
        coordinator = await coordinators.add("a", quotas=quotas)
        await owns(coordinator, SHARDS)
        yield coordinators.caller(coordinator)


def commit(group_id: str, offset: int) -> coordinator_pb2.OffsetCommitRequest:
    partition = coordinator_pb2.OffsetCommitRequest.Partition(offset=offset)
    topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=[partition])
    return coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1, topics=[topic])


async def status(answering: Any) -> grpc.StatusCode:
    try:
        await answering
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("caller", [{"commits_per_s": 1}], indirect=True)
async def test_commits_of_a_caller_count_on_streams_and_beside_them(caller: Caller) -> None:
    for offset in range(1, BURST_S):
        assert await caller.commit(GROUP, offset) == error_code.NONE
    session = await Session(caller.channel).hello()
    assert not (await session.ask(offset_commit=commit(GROUP, BURST_S))).HasField("refused")
    reply = await session.ask(offset_commit=commit(GROUP, 100))
    assert reply.refused.status == EXHAUSTED.value[0]
    assert 0 < reply.refused.retry_after_ms <= 2_000
    assert "MUSTER_QUOTA_COMMITS_PER_S" in reply.refused.message
    assert await status(caller.commit(GROUP, 101)) is EXHAUSTED
    assert await caller.fetch(GROUP) == [(error_code.NONE, BURST_S)], "calls of other kinds are served"
    await session.close()


@pytest.mark.parametrize("caller", [{"new_groups_per_s": 1}], indirect=True)
async def test_who_begins_many_groups_is_refused_and_goes_on_in_those_there_are(caller: Caller) -> None:
    names: list[str] = []
    code = grpc.StatusCode.OK
    while code is grpc.StatusCode.OK and len(names) < 10 * CREATION_BURST_S:  # the quota grows meanwhile
        names.append(group_of(0, len(names)))
        code = await status(caller.commit(names[-1], 1))
    assert code is EXHAUSTED
    assert len(names) > CREATION_BURST_S
    assert [await caller.commit(name, 2) for name in names[:CREATION_BURST_S]] == [
        error_code.NONE
    ] * CREATION_BURST_S
    assert (await stable(caller, names[0])).error_code == error_code.NONE


@pytest.mark.parametrize("caller", [{"new_groups_per_s": 1}], indirect=True)
async def test_settings_of_groups_that_are_not_there_count_as_groups_that_begin(caller: Caller) -> None:
    answers: list[grpc.StatusCode] = []
    while grpc.StatusCode.OK in (answers[-1:] or [grpc.StatusCode.OK]) and len(answers) < 1_000:
        wanted = group_settings_pb2.AlterGroupSettingsRequest(
            group_id=group_of(0, len(answers)), set=group_settings_pb2.GroupSettings(hold=True)
        )
        answers.append(await status(caller.stub.AlterGroupSettings(wanted, timeout=60)))
    assert answers[-1] is EXHAUSTED
    assert len(answers) > CREATION_BURST_S
    known = group_settings_pb2.AlterGroupSettingsRequest(
        group_id=group_of(0, 0), set=group_settings_pb2.GroupSettings(hold=False)
    )
    assert await status(caller.stub.AlterGroupSettings(known, timeout=60)) is grpc.StatusCode.OK


@pytest.mark.parametrize("caller", [{"streams": 1}], indirect=True)
async def test_streams_of_a_caller_end_at_their_limit(caller: Caller) -> None:
    first = await Session(caller.channel).hello()
    await first.beat()
    # It writes nothing: gRPC says INTERNAL in place of a refusal that arrives while it writes.
    assert await Session(caller.channel).end() is EXHAUSTED
    await first.close()
    third = await until(lambda: _served(caller), "the place of the stream that was closed")
    await third.close()


async def _served(caller: Caller) -> Session | None:
    session = Session(caller.channel)
    with suppress(AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await session.hello()
        await session.beat()
        return session
    await session.close()
    return None


@pytest.mark.parametrize("caller", [{"connection_calls_per_s": 4}], indirect=True)
async def test_a_stream_above_its_quota_is_refused_call_by_call_and_beats_on(caller: Caller) -> None:
    joined = await stable(caller, GROUP)
    session = await Session(caller.channel).hello()
    assert (await session.attach(GROUP, joined)).error_code == error_code.NONE
    heartbeat = coordinator_pb2.HeartbeatRequest(group_id="g")
    await session.send(*(call(100 + number, heartbeat=heartbeat) for number in range(500)))
    replies = await session.until(lambda: [r for r in session.said("reply") if r.call_id >= 100][499:])
    assert replies
    refused = [reply for reply in session.said("reply") if reply.HasField("refused")]
    assert len(refused) >= 470
    assert not (await session.beat()).unheard
    await session.close()


@pytest.mark.parametrize("caller", [{"connection_calls_per_s": 1}], indirect=True)
async def test_frames_above_the_quota_count_and_take_reading_time(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_coordinator.session.calls._FRAME_S", 0.5)
    session = await Session(caller.channel).hello()
    beats = [session_pb2.ClientFrame(beat=session_pb2.Beat(number=number)) for number in range(1, 21)]
    await session.send(*beats[:9])
    began_s = time.monotonic()
    await session.send(*beats[9:19])
    await session.send(beats[19])
    await session.until(lambda: len(session.said("beat_ack")) == len(beats))
    assert time.monotonic() - began_s >= 10 * 0.5
    await session.close()


@pytest.mark.parametrize("caller", [{"calls_per_s": 50, "commits_per_s": 20}], indirect=True)
async def test_a_calm_member_beats_and_commits_whatever_others_of_its_host_ask_for(caller: Caller) -> None:
    joined = await stable(caller, GROUP)
    over = asyncio.Event()
    refused = 0

    async def ask(stub: Any) -> None:
        nonlocal refused
        while not over.is_set():
            asked = await asyncio.gather(*(status(stub.OffsetCommit(commit("other", 1))) for _ in range(10)))
            refused += asked.count(EXHAUSTED)
            await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        broken = []
        for _ in range(3):
            channel = grpc.aio.insecure_channel(caller.address, [("grpc.use_local_subchannel_pool", 1)])
            stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(
                await stack.enter_async_context(channel)
            )
            broken.append(asyncio.create_task(ask(stub)))
        await until(lambda: refused > 100, "the others are refused")
        for offset in range(10):
            await asyncio.sleep(0.5)
            assert (await caller.heartbeat(GROUP, joined)).error_code == error_code.NONE
            assert await caller.commit(GROUP, offset, joined) == error_code.NONE
        over.set()
        await asyncio.gather(*broken)


def named(number: int, group_id: str = GROUP) -> dict[str, Any]:
    """Calls that name so many partitions, by kind."""
    numbers = range(number)
    topics = [common_pb2.TopicPartitions(topic="t", partitions=numbers)]
    wanted = commit(group_id, 1)
    del wanted.topics[0].partitions[:]
    for partition in numbers:
        wanted.topics[0].partitions.add(partition=partition, offset=1)
    fetched = coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id, topics=topics)
    return {
        "offset_commit": wanted,
        "offset_delete": coordinator_pb2.OffsetDeleteRequest(group_id=group_id, topics=topics),
        "offset_fetch": coordinator_pb2.OffsetFetchRequest(groups=[fetched]),
    }


@pytest.mark.parametrize("kind", ["offset_commit", "offset_delete", "offset_fetch"])
@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 100}], indirect=True)
async def test_a_call_costs_what_it_names(caller: Caller, kind: str) -> None:
    session = await Session(caller.channel).hello()
    method = "".join(word.capitalize() for word in kind.split("_"))
    ask = getattr(caller.stub, method)
    assert await status(ask(named(BURST_S * 100 + 998)[kind], timeout=60)) is grpc.StatusCode.OK
    if kind != "offset_delete":  # which is no call of a stream
        reply = await session.ask(**{kind: named(11)[kind]})
        assert reply.refused.status == EXHAUSTED.value[0]
        assert "MUSTER_QUOTA_CONNECTION_PARTITIONS_PER_S" in reply.refused.message
        assert 5_000 < reply.refused.retry_after_ms <= 10_010, "what was too much is paid back first"
    assert await status(ask(named(11)[kind], timeout=60)) is EXHAUSTED
    assert await status(ask(named(8)[kind], timeout=60)) is grpc.StatusCode.OK, "few are a call like others"
    assert (await stable(caller, group_of(1))).error_code == error_code.NONE
    await session.close()


@pytest.mark.parametrize("kind", ["SyncGroup", "LeaveGroup", "DescribeGroups", "DeleteGroups"])
@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 5}], indirect=True)
async def test_members_and_groups_that_calls_name_count_as_partitions(caller: Caller, kind: str) -> None:
    names = [f"n{number}" for number in range(BURST_S * 5 + 600)]  # two minutes' worth too many
    member, given = coordinator_pb2.LeaveGroupRequest.Member, coordinator_pb2.SyncGroupRequest.Assignment
    wanted = {
        "SyncGroup": coordinator_pb2.SyncGroupRequest(
            group_id=GROUP, assignments=[given(member_id=name) for name in names]
        ),
        "LeaveGroup": coordinator_pb2.LeaveGroupRequest(
            group_id=GROUP, members=[member(member_id=name) for name in names]
        ),
        "DescribeGroups": coordinator_pb2.DescribeGroupsRequest(group_ids=names),
        "DeleteGroups": coordinator_pb2.DeleteGroupsRequest(group_ids=names),
    }[kind]
    assert await status(getattr(caller.stub, kind)(wanted, timeout=60)) is grpc.StatusCode.OK
    assert await status(caller.stub.OffsetCommit(named(11)["offset_commit"], timeout=60)) is EXHAUSTED


OPEN = {
    "OffsetFetch": coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=GROUP)]
    ),
    "ListGroups": coordinator_pb2.ListGroupsRequest(),
    "DescribeGroups": coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]),
    "GroupHistory": coordinator_pb2.GroupHistoryRequest(group_id=GROUP),
}


@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 20}], indirect=True)
async def test_all_offsets_of_a_group_count_when_they_are_answered(caller: Caller) -> None:
    """A few bytes fetch ten thousand, again and again: only the group that they name counted."""
    session = await Session(caller.channel).hello()
    assert (
        await status(caller.stub.OffsetCommit(named(90)["offset_commit"], timeout=60)) is grpc.StatusCode.OK
    )
    assert await status(caller.stub.OffsetFetch(OPEN["OffsetFetch"], timeout=60)) is grpc.StatusCode.OK
    reply = await session.ask(offset_fetch=OPEN["OffsetFetch"])
    assert reply.refused.status == EXHAUSTED.value[0]
    assert 3_000 < reply.refused.retry_after_ms <= 5_050, "what was answered is paid back first"
    for kind, request in OPEN.items():
        assert await status(getattr(caller.stub, kind)(request, timeout=60)) is EXHAUSTED, kind
    assert await status(caller.stub.OffsetFetch(named(8)["offset_fetch"], timeout=60)) is grpc.StatusCode.OK
    assert (await stable(caller, group_of(1))).error_code == error_code.NONE
    await session.close()


@pytest.mark.parametrize("kind", ["ListGroups", "DescribeGroups", "GroupHistory"])
@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 1}], indirect=True)
async def test_groups_and_members_count_when_they_are_answered(caller: Caller, kind: str) -> None:
    if kind == "ListGroups":
        for number in range(60):
            await caller.commit(f"{GROUP}-{number}", 1)
    else:
        await stable(caller, GROUP)
    ask = getattr(caller.stub, kind)
    answered = [await status(ask(OPEN[kind], timeout=60)) for _ in range(2 if kind == "ListGroups" else 30)]
    assert answered[0] is grpc.StatusCode.OK
    assert EXHAUSTED in answered


EMPTY_PARTS = {
    "OffsetCommit": coordinator_pb2.OffsetCommitRequest.TOPICS_FIELD_NUMBER,
    "OffsetDelete": coordinator_pb2.OffsetDeleteRequest.TOPICS_FIELD_NUMBER,
    "OffsetFetch": coordinator_pb2.OffsetFetchRequest.GROUPS_FIELD_NUMBER,
    "SyncGroup": coordinator_pb2.SyncGroupRequest.ASSIGNMENTS_FIELD_NUMBER,
    "JoinGroup": coordinator_pb2.JoinGroupRequest.PROTOCOLS_FIELD_NUMBER,
    "LeaveGroup": coordinator_pb2.LeaveGroupRequest.MEMBERS_FIELD_NUMBER,
}
OF_CALL = "/muster.v1.GroupCoordinatorService/"


async def said(caller: Caller, method: str, body: bytes) -> tuple[grpc.StatusCode, str]:
    """The answer to a call of these bytes: its status and the text of that."""
    call: Any = caller.channel.unary_unary(OF_CALL + method)
    try:
        await call(body, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def empty_parts(field: int, number: int) -> bytes:
    """So many empty messages in a field: two bytes each, and hundreds in memory and time."""
    return bytes([field << 3 | 2, 0]) * number


@pytest.mark.parametrize("method", EMPTY_PARTS)
@pytest.mark.parametrize(
    "caller", [{"connection_partitions_per_s": 1_000}, {"partitions_per_s": 1_000}], indirect=True
)
async def test_no_large_message_is_decoded_of_who_sent_more_parts_than_any_call_may_have(
    caller: Caller, method: str
) -> None:
    no_message = b"\xff" * (300 << 10)
    assert (await said(caller, method, no_message[:1_000]))[0] is grpc.StatusCode.INVALID_ARGUMENT
    code, text = await said(caller, method, empty_parts(EMPTY_PARTS[method], 200_000))
    assert code is grpc.StatusCode.INVALID_ARGUMENT, "it is told which limit it breaks"
    assert "must have" in text
    code, text = await said(caller, method, no_message)
    assert code is EXHAUSTED, "it is not even decoded"
    assert "PARTITIONS_PER_S" in text
    assert await caller.commit(GROUP, 2) == error_code.NONE, "small calls go on"
    session = await Session(caller.channel).hello()
    await session.call.write(session_pb2.SessionRequest(frames=[session_pb2.ClientFrame()] * 200_000))
    await session.until(lambda: session.ended)
    assert "PARTITIONS_PER_S" in session.frames[-1].goodbye.message


@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 1_000}], indirect=True)
async def test_large_messages_that_are_none_are_owed(caller: Caller) -> None:
    """It may take as long to find that out as to decode four hundred thousand parts."""
    no_message = b"\xff" * (300 << 10)
    assert (await said(caller, "OffsetCommit", no_message))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert (await said(caller, "OffsetCommit", no_message))[0] is EXHAUSTED
    assert await caller.commit(GROUP, 2) == error_code.NONE, "small calls go on"


@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 1_000}], indirect=True)
async def test_frames_of_a_message_that_has_too_many_are_owed(caller: Caller) -> None:
    session = await Session(caller.channel).hello()
    await session.call.write(session_pb2.SessionRequest(frames=[session_pb2.ClientFrame()] * 200_000))
    await session.until(lambda: session.ended)
    assert "frames" in session.frames[-1].goodbye.message
    assert (await said(caller, "OffsetCommit", b"\xff" * (300 << 10)))[0] is EXHAUSTED


def part(field: int, body: bytes) -> bytes:
    """A field of bytes, or of a message that is encoded."""
    size, length = b"", len(body)
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([field << 3 | 2]) + size + bytes([length]) + body


CALL_ID = b"\x08\x01"
ASSIGNMENTS = coordinator_pb2.SyncGroupRequest.DESCRIPTOR.fields_by_name["assignments"].number
GROUPS = coordinator_pb2.OffsetFetchRequest.DESCRIPTOR.fields_by_name["groups"].number
PARTS = part(3, empty_parts(ASSIGNMENTS, 300_000))
HEARTBEAT = part(4, part(1, GROUP.encode()))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(part(5, CALL_ID + PARTS + HEARTBEAT), id="another request of the call"),
        pytest.param(part(5, CALL_ID + PARTS) + part(4, b"\x08\x01"), id="another kind of frame"),
        pytest.param(part(5, CALL_ID + part(7, part(GROUPS, part(1, b"g" * 30)) * 135_000)), id="oversized"),
    ],
)
@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 1_000}], indirect=True)
async def test_no_large_message_is_decoded_of_who_sent_parts_that_a_stream_does_not_show(
    caller: Caller, frame: bytes
) -> None:
    send: Any = caller.channel.stream_stream("/muster.v1.GroupSessionService/Session")
    stream = send()
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(beat_interval_ms=1_000))
    await stream.write(session_pb2.SessionRequest(frames=[hello]).SerializeToString())
    await stream.write(part(1, frame))
    answer = session_pb2.SessionResponse.FromString(await stream.read())
    assert answer.frames[0].WhichOneof("kind") in {"reply", "beat_ack"}, (
        "it is answered by what is seen of it"
    )
    assert (await said(caller, "OffsetCommit", b"\xff" * (300 << 10)))[0] is EXHAUSTED
    stream.cancel()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({}, id="no request"),
        pytest.param(
            {"heartbeat": coordinator_pb2.HeartbeatRequest(group_id="g" * (2 << 20))}, id="oversized"
        ),
    ],
)
@pytest.mark.parametrize("caller", [{"connection_calls_per_s": 1}], indirect=True)
async def test_calls_of_a_stream_that_are_not_in_order_count(
    caller: Caller, request_: dict[str, Any]
) -> None:
    session = await Session(caller.channel).hello()
    refusals = [(await session.ask(**request_)).refused.status for _ in range(BURST_S + 1)]
    assert refusals[0] != EXHAUSTED.value[0]
    assert refusals[-1] == EXHAUSTED.value[0]
    await session.close()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(session_pb2.SessionRequest(), id="no frame"),
        pytest.param(
            session_pb2.SessionRequest(
                frames=[
                    session_pb2.ClientFrame(detach=session_pb2.Detach(group_id="g", member_id="m" * 90_000))
                ]
            ),
            id="large",
        ),
    ],
)
@pytest.mark.parametrize("caller", [{"connection_calls_per_s": 1}], indirect=True)
async def test_large_frames_and_empty_messages_take_reading_time(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, message: session_pb2.SessionRequest
) -> None:
    monkeypatch.setattr("muster_coordinator.session.calls._FRAME_S", 0.5)
    session = await Session(caller.channel).hello()
    began_s = time.monotonic()
    for _ in range(2 if message.frames else 10):
        await session.call.write(message)
    await session.beat()
    assert time.monotonic() - began_s >= 2
    await session.close()


@pytest.mark.parametrize("caller", [{"frames_per_s": 4}], indirect=True)
async def test_frames_of_a_caller_above_its_rate_take_reading_time(caller: Caller) -> None:
    session = await Session(caller.channel).hello()
    began_s = time.monotonic()
    for _ in range(30):
        await session.beat()
    assert time.monotonic() - began_s >= 2
    await session.close()


class Endless:
    """Far too many parts, which nobody looks at one by one."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Any:
        raise AssertionError("a look at each of them takes a second")


@pytest.mark.parametrize("number", [validation.PARTITIONS_MAX + 1, 1 << 21])
def test_far_too_many_parts_are_counted_without_a_look_at_each(number: int) -> None:
    parts = Endless(number)
    for kind, fields in (
        (coordinator_pb2.OffsetCommitRequest, {"topics": parts, "ends": ()}),
        (coordinator_pb2.OffsetCommitRequest, {"topics": (), "ends": parts}),
        (coordinator_pb2.OffsetDeleteRequest, {"topics": parts}),
        (coordinator_pb2.OffsetFetchRequest, {"groups": parts}),
        (coordinator_pb2.OffsetFetchRequest, {"groups": [SimpleNamespace(topics=parts)]}),
    ):
        assert named_by._COUNTS[kind](SimpleNamespace(**fields)) > named_by.NAMED_MAX, "it is owed"
    sync = SimpleNamespace(assignments=parts)
    assert named_by._COUNTS[coordinator_pb2.SyncGroupRequest](sync) == len(parts)
    assert validation._total(parts) == len(parts)  # type: ignore[arg-type]  # all that is asked of it is its length


RULES = """
[[quota]]
groups = "g"
commits_per_s = 1
calls_per_s = 1
"""


@pytest.mark.parametrize("caller", [{"rules": RULES}], indirect=True)
async def test_groups_of_a_prefix_share_a_quota(caller: Caller) -> None:
    other = group_of(1)
    codes = [await status(caller.commit(name, 1)) for name in (GROUP, other) * (BURST_S + 2)]
    assert codes[:BURST_S] == [grpc.StatusCode.OK] * BURST_S
    assert EXHAUSTED in codes[BURST_S:]
    assert await caller.commit("another", 1) == error_code.NONE


@pytest.mark.parametrize("caller", [{"rules": RULES}], indirect=True)
@pytest.mark.parametrize("what", ["convert", "settings"])
async def test_calls_that_change_a_group_count_for_its_prefix(caller: Caller, what: str) -> None:
    def change(group_id: str) -> Any:
        if what == "convert":
            kind = group_conversion_pb2.GROUP_KIND_CLASSIC
            request = group_conversion_pb2.ConvertGroupRequest(group_id=group_id, kind=kind)
            return caller.stub.ConvertGroup(request, timeout=60)
        hold = group_settings_pb2.GroupSettings(hold=True)
        return caller.stub.AlterGroupSettings(
            group_settings_pb2.AlterGroupSettingsRequest(group_id=group_id, set=hold), timeout=60
        )

    codes = [await status(change(GROUP)) for _ in range(BURST_S + 2)]
    assert codes[:BURST_S] == [grpc.StatusCode.OK] * BURST_S
    assert EXHAUSTED in codes[BURST_S:]
    assert await status(change("another")) is grpc.StatusCode.OK, "it has another prefix"


@pytest.mark.parametrize("caller", [{"connection_partitions_per_s": 100}], indirect=True)
async def test_a_topic_without_partitions_costs_what_one_of_them_does(caller: Caller) -> None:
    topics = [common_pb2.TopicPartitions(topic=f"t{number}") for number in range(BURST_S * 100 + 1_000)]
    wanted = coordinator_pb2.OffsetDeleteRequest(group_id=GROUP, topics=topics)
    assert await status(caller.stub.OffsetDelete(wanted, timeout=60)) is grpc.StatusCode.OK
    assert await status(caller.stub.OffsetDelete(named(11)["offset_delete"], timeout=60)) is EXHAUSTED


OF_PARTITIONS = """
[[quota]]
groups = "g"
partitions_per_s = 20
"""


@pytest.mark.parametrize("caller", [{"rules": OF_PARTITIONS}], indirect=True)
async def test_partitions_that_calls_name_count_for_the_prefix_of_their_group(caller: Caller) -> None:
    wanted = named(BURST_S * 20 + 100)["offset_delete"]
    assert await status(caller.stub.OffsetDelete(wanted, timeout=60)) is grpc.StatusCode.OK
    assert await status(caller.stub.OffsetCommit(named(11)["offset_commit"], timeout=60)) is EXHAUSTED
    other = named(11, "another")["offset_commit"]
    assert await status(caller.stub.OffsetCommit(other, timeout=60)) is grpc.StatusCode.OK


@pytest.mark.parametrize("caller", [{"rules": RULES}], indirect=True)
async def test_heartbeats_do_not_count_for_a_prefix(caller: Caller) -> None:
    joined = await stable(caller, GROUP)
    codes = [await status(caller.commit(GROUP, 1, joined)) for _ in range(BURST_S + 2)]
    assert codes[-1] is EXHAUSTED
    beats = [await caller.heartbeat(GROUP, joined) for _ in range(BURST_S + 2)]
    assert {beat.error_code for beat in beats} == {error_code.NONE}


async def test_who_may_not_ask_a_group_uses_up_nothing_of_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(RULES)
    (tmp_path / "access.toml").write_text('[[rule]]\nwho = ["worker"]\nverbs = ["commit"]\ngroups = ["g*"]\n')
    async with on_one_node(SHARDS) as coordinators:
        quotas = QuotaSettings.model_validate({**OFF, "file": tmp_path / "quotas.toml"})
        trust = NamedCallers.with_rules(tmp_path / "access.toml")
        coordinator = await coordinators.add("a", quotas=quotas, trust=trust)
        await owns(coordinator, SHARDS)
        stranger, worker = (coordinators.caller(coordinator, who) for who in ("stranger", "worker"))
        for _ in range(3 * BURST_S):
            assert await stranger.commit(GROUP, 1) == error_code.GROUP_AUTHORIZATION_FAILED
        assert await status(worker.commit(GROUP, 1)) is grpc.StatusCode.OK


@pytest.mark.parametrize("trusted", [True, False])
async def test_who_comes_through_a_trusted_proxy_has_the_quotas_of_its_own_host(trusted: bool) -> None:
    async with on_one_node(SHARDS) as coordinators:
        quotas = QuotaSettings.model_validate({**OFF, "commits_per_s": 1})
        proxies = (ip_network("127.0.0.0/8"),) if trusted else ()
        coordinator = await coordinators.add("a", quotas=quotas, trusted_proxies=proxies)
        await owns(coordinator, SHARDS)
        caller = coordinators.caller(coordinator)

        async def code(host: str) -> grpc.StatusCode:
            return await status(
                caller.stub.OffsetCommit(commit(GROUP, 1), timeout=60, metadata=[("x-forwarded-for", host)])
            )

        codes = [await code("10.0.0.1") for _ in range(BURST_S + 2)]
        assert EXHAUSTED in codes
        assert await code("10.0.0.1, 10.0.0.2") is (grpc.StatusCode.OK if trusted else EXHAUSTED)


def large_commit() -> coordinator_pb2.OffsetCommitRequest:
    """Some 800 KB."""
    partitions = [
        coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=1, metadata="m" * 4_096)
        for number in range(200)
    ]
    topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=partitions)
    return coordinator_pb2.OffsetCommitRequest(group_id=group_of(1), generation=-1, topics=[topic])


@pytest.mark.parametrize("caller", [{"work_bytes": 8 << 20}], indirect=True)
async def test_large_requests_that_are_worked_on_are_bounded_and_count_until_they_are_answered(
    caller: Caller,
) -> None:
    """LIM-58: a caller may have 4 MiB of them."""
    groups = [group_of(0, number) for number in range(3)]  # one may not have so much
    for group_id in groups:
        await stable(caller, group_id)
    session = await Session(caller.channel).hello()
    for _ in range(10):
        assert await status(caller.stub.OffsetCommit(large_commit(), timeout=60)) is grpc.StatusCode.OK
        assert not (await session.ask(offset_commit=large_commit())).HasField("refused")
    protocols = [coordinator_pb2.GroupProtocol(name="range", metadata=bytes(1 << 19))]
    parked = [
        asyncio.create_task(
            status(
                caller.stub.JoinGroup(
                    coordinator_pb2.JoinGroupRequest(
                        group_id=groups[number % len(groups)],
                        group_instance_id=f"i{number}",
                        protocol_type="consumer",
                        protocols=protocols,
                        session_timeout_ms=60_000,
                        rebalance_timeout_ms=60_000,
                    ),
                    timeout=60,
                )
            )
        )
        for number in range(8)
    ]
    refused = await until(lambda: [one for one in parked if one.done()], "a join that is refused")
    assert [one.result() for one in refused] == [EXHAUSTED], "seven and one of half a MiB are above 4 MiB"
    reply = await session.ask(offset_commit=large_commit())
    assert reply.refused.status == EXHAUSTED.value[0]
    assert reply.refused.retry_after_ms
    assert await caller.commit(group_of(1), 5) == error_code.NONE, "small ones do not count"
    for one in parked:
        one.cancel()

    async def is_taken() -> bool:
        return not (await session.ask(offset_commit=large_commit())).HasField("refused")

    await until(is_taken, "room after the parked calls were given up")
    await session.close()
