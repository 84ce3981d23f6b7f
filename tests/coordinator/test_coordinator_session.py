"""Session streams over gRPC, on the real metadata service and log."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from abuse.caller import connection
from coordinator.coordinator_cluster import Caller, group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from coordinator.session_client import Session, attach, call, detach, stable
from kit.waiting import until, until_equal
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import SessionSettings
from muster_core import error_code
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

GRACE_MS = 300
NEVER_MS = 3_600_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(tmp_path, nodes=1, instances=1)
    await cluster.start()
    yield cluster
    await cluster.stop()


def group(number: int) -> str:
    return group_of(number % SHARDS, number // SHARDS, SHARDS)


def fetch_of(group_id: str) -> coordinator_pb2.OffsetFetchRequest:
    return coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)]
    )


async def one(cluster: RealCluster, **session: Any) -> tuple[Coordinator, Caller]:
    """A coordinator that owns everything, and a caller of it."""
    coordinator = await cluster.add("a", settle_ms=NEVER_MS, session=SessionSettings(**session))
    await owns(coordinator, SHARDS)
    return coordinator, cluster.caller(coordinator)


async def on_stream(
    caller: Caller, group_id: str, **fields: Any
) -> tuple[coordinator_pb2.JoinGroupResponse, Session]:
    """A group of one member, on a stream of its own."""
    joined = await stable(caller, group_id, **fields)
    session = await Session(caller.channel).hello()
    assert (await session.attach(group_id, joined)).error_code == error_code.NONE
    return joined, session


async def members(caller: Caller, group_id: str) -> set[str]:
    answer = await caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id]))
    return {member.member_id for member in answer.groups[0].members}


async def causes(caller: Caller, group_id: str) -> list[int]:
    """Why the generations of a group began."""
    history = await caller.stub.GroupHistory(coordinator_pb2.GroupHistoryRequest(group_id=group_id))
    return [generation.cause.kind for generation in history.generations]


async def is_heard(session: Session) -> bool:
    """Whether a beat counts for all members on the stream."""
    return not (await session.beat()).unheard


async def emptied(caller: Caller, group_id: str) -> None:
    async with asyncio.timeout(60):
        while await members(caller, group_id):
            pass


async def a_grace_later(caller: Caller, group_id: str) -> None:
    """Returns when a member whose stream breaks now has been removed after `GRACE_MS`."""
    _, session = await on_stream(caller, group_id, disconnect_grace_ms=GRACE_MS)
    await session.close()
    await emptied(caller, group_id)


def streamless(coordinator: Coordinator, group_id: str) -> bool:
    """Whether the core knows that nobody of a group is on a stream."""
    for shard in coordinator.shards.values():
        found = shard.core.groups.get(group_id) if shard.core is not None else None
        if found is not None:
            return all(member.stream_id is None for member in found.members.values())
    return False


# --- members


async def test_beats_keep_members_alive_and_a_detached_one_expires(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    groups = [group(0), group(1)]
    joined = [await stable(caller, group_id, session_timeout_ms=6_000) for group_id in groups]
    session = await Session(caller.channel).hello()
    await session.send(*(attach(g, j.member_id, j.generation) for g, j in zip(groups, joined, strict=True)))
    await session.until(lambda: len(session.said("attach_result")) == 2)
    await session.send(detach(groups[1], joined[1].member_id))
    async with asyncio.timeout(60):
        while await members(caller, groups[1]):
            ack = await session.beat()
            assert not ack.unheard
            await asyncio.sleep(0.1)
    assert await members(caller, groups[0]) == {joined[0].member_id}
    await session.close()


async def test_strangers_are_not_attached(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined = await stable(caller, group(0))
    session = await Session(caller.channel).hello()
    session_code = [
        (
            await session.attach(
                group(0), coordinator_pb2.JoinGroupResponse(member_id="nobody", generation=1)
            )
        ).error_code,
        (
            await session.attach(group(0), coordinator_pb2.JoinGroupResponse(member_id=joined.member_id))
        ).error_code,
        (await session.attach("", joined)).error_code,
        (await session.attach("x" * 256, joined)).error_code,
    ]
    assert session_code == [
        error_code.UNKNOWN_MEMBER_ID,
        error_code.ILLEGAL_GENERATION,
        error_code.INVALID_GROUP_ID,
        error_code.INVALID_REQUEST,
    ]
    await session.close()


async def test_a_rebalance_is_pushed_with_its_cause(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0))
    second = asyncio.ensure_future(caller.join(group(0)))
    news = (await session.until(lambda: session.said("rebalance_started")))[0]
    assert (news.group_id, news.member_id, news.generation) == (group(0), joined.member_id, 1)
    assert news.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
    assert news.shard_epoch == joined.shard_epoch
    assert not second.done()
    assert (await caller.join(group(0), joined.member_id)).generation == 2
    assert (await second).generation == 2
    await session.close()


async def test_a_removed_member_is_told(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0))
    leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)
    await caller.stub.LeaveGroup(coordinator_pb2.LeaveGroupRequest(group_id=group(0), members=[leaving]))
    news = (await session.until(lambda: session.said("fenced")))[0]
    assert (news.group_id, news.member_id, news.error_code) == (
        group(0),
        joined.member_id,
        error_code.UNKNOWN_MEMBER_ID,
    )
    assert not (await session.beat()).unheard
    await session.close()


async def test_a_member_that_attaches_elsewhere_is_off_the_first_stream(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined, first = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    second = await Session(caller.channel).hello()
    assert (await second.attach(group(0), joined)).error_code == error_code.NONE
    await first.close()
    await a_grace_later(caller, group(1))
    assert await members(caller, group(0)) == {joined.member_id}
    await second.close()


async def test_whose_member_a_stranger_takes_onto_a_stream_of_its_own_hears_it(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined, first = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    stranger = await Session(caller.channel).hello()
    assert (await stranger.attach(group(0), joined)).error_code == error_code.NONE
    [fenced] = await first.until(lambda: first.said("fenced"))
    assert (fenced.member_id, fenced.error_code) == (joined.member_id, error_code.UNKNOWN_MEMBER_ID)
    assert stranger.said("fenced") == []
    assert (await first.attach(group(0), joined)).error_code == error_code.NONE
    await stranger.until(lambda: stranger.said("fenced"))
    await first.close()
    await stranger.close()


# --- where the group lives


async def test_a_drain_sends_members_on_says_goodbye_and_suspects_nobody(cluster: RealCluster) -> None:
    first, caller = await one(cluster)
    second = await cluster.add("b", settle_ms=NEVER_MS)
    assert first._parts is not None
    ownership = first._parts.ownership
    await until(
        lambda: (
            len(ownership.outlook._live) == 2 and ownership._now_ms() - ownership.outlook._live_since_ms > 500
        )
    )
    joined, session = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    parked = asyncio.ensure_future(session.ask(join_group=await joining(caller, group(0))))
    await session.until(lambda: session.said("rebalance_started"))
    await first.drain_and_stop()
    assert await session.end() == grpc.StatusCode.OK
    moved = session.said("coordinator_moved")[0]
    assert (moved.group_id, moved.member_id) == (group(0), joined.member_id)
    assert (moved.coordinator.node_id, moved.coordinator.port) == ("b", second.port)
    assert session.frames[-1].goodbye.reason == session_pb2.GOODBYE_REASON_DRAINING
    answer = session.said("reply")[0].join_group
    assert (answer.error_code, answer.coordinator.node_id) == (error_code.NOT_COORDINATOR, "b")
    parked.cancel()
    await owns(second, SHARDS)
    other = cluster.caller(second)
    await a_grace_later(other, group(1))
    assert await members(other, group(0)) == {joined.member_id}


async def joining(caller: Caller, group_id: str) -> coordinator_pb2.JoinGroupRequest:
    """The second join of a new member, which brings its id."""
    request = coordinator_pb2.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
    )
    request.member_id = (await caller.stub.JoinGroup(request)).member_id
    return request


async def test_a_member_of_a_group_elsewhere_is_told_where(cluster: RealCluster) -> None:
    first, caller = await one(cluster)
    second = await cluster.add("b", settle_ms=NEVER_MS)
    joined = await stable(caller, group(0))
    session = await Session(cluster.caller(second).channel).hello()
    async with asyncio.timeout(60):
        result = await session.attach(group(0), joined)
        while result.error_code != error_code.NOT_COORDINATOR:
            result = await session.attach(group(0), joined)
    assert (result.coordinator.node_id, result.coordinator.port) == ("a", first.port)
    assert not (await session.beat()).unheard
    await session.close()


# --- calls


async def test_calls_as_frames_are_answered_as_unary_calls_are(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined = await stable(caller, group(0))
    session = await Session(caller.channel).hello()
    identity: dict[str, Any] = {
        "group_id": group(0),
        "member_id": joined.member_id,
        "generation": joined.generation,
    }
    assert await caller.commit(group(0), 7, joined) == error_code.NONE
    topics = [
        coordinator_pb2.OffsetCommitRequest.Topic(
            name="t", partitions=[coordinator_pb2.OffsetCommitRequest.Partition(partition=0, offset=8)]
        )
    ]
    asked: list[tuple[str, str, Any]] = [
        ("Heartbeat", "heartbeat", coordinator_pb2.HeartbeatRequest(**identity)),
        ("Heartbeat", "heartbeat", coordinator_pb2.HeartbeatRequest(**identity | {"member_id": "nobody"})),
        ("Heartbeat", "heartbeat", coordinator_pb2.HeartbeatRequest()),
        ("SyncGroup", "sync_group", coordinator_pb2.SyncGroupRequest(**identity)),
        ("OffsetCommit", "offset_commit", coordinator_pb2.OffsetCommitRequest(**identity, topics=topics)),
        ("OffsetFetch", "offset_fetch", fetch_of(group(0))),
        (
            "JoinGroup",
            "join_group",
            coordinator_pb2.JoinGroupRequest(group_id=group(0), session_timeout_ms=1),
        ),
        (
            "LeaveGroup",
            "leave_group",
            coordinator_pb2.LeaveGroupRequest(
                group_id=group(0), members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="x")]
            ),
        ),
    ]
    for method, kind, request in asked:
        unary = await getattr(caller.stub, method)(request)
        framed = await session.ask(**{kind: request})
        assert framed.WhichOneof("response") == kind
        assert getattr(framed, kind) == unary, method
    assert await caller.fetch(group(0)) == [(error_code.NONE, 8)]
    await session.close()


@pytest.mark.parametrize(
    ("request_", "status", "field", "words"),
    [
        ({"heartbeat": coordinator_pb2.HeartbeatRequest(group_id="x" * 256)}, 3, "group_id", "255"),
        ({"heartbeat": coordinator_pb2.HeartbeatRequest(group_id="g" * (2 << 20))}, 3, "", "larger than"),
        ({"offset_fetch": coordinator_pb2.OffsetFetchRequest()}, 3, "groups", "1 to 1,000"),
        (
            {"join_group": coordinator_pb2.JoinGroupRequest(group_id="g", server_assignor="range")},
            12,
            "",
            "assign",
        ),
        ({}, 12, "", "none is set"),
    ],
)
async def test_bad_calls_are_refused_as_unary_calls_are(
    cluster: RealCluster, request_: dict[str, Any], status: int, field: str, words: str
) -> None:
    _, caller = await one(cluster)
    session = await Session(caller.channel).hello()
    reply = await session.ask(**request_)
    assert (reply.refused.status, reply.refused.field) == (status, field)
    assert words in reply.refused.message
    assert (await session.beat()).number == 1
    await session.close()


async def test_frames_of_one_message_are_answered_in_one_and_a_parked_join_blocks_none(
    cluster: RealCluster,
) -> None:
    _, caller = await one(cluster)
    joined = await stable(caller, group(0))
    heartbeat = coordinator_pb2.HeartbeatRequest(group_id=group(0), member_id=joined.member_id, generation=1)
    join = await joining(caller, group(0))
    session = Session(caller.channel)
    await session.send(
        session_pb2.ClientFrame(hello=session_pb2.Hello(beat_interval_ms=500)),
        call(1, join_group=join),
        attach(group(0), joined.member_id, 1),
        *(call(number, heartbeat=heartbeat) for number in range(2, 12)),
        session_pb2.ClientFrame(beat=session_pb2.Beat(number=1)),
    )
    await session.until(lambda: session.said("beat_ack"))
    assert sum(session.messages) == 12
    assert len(session.messages) <= 3, "one, or some more where other work takes its turn in between"
    assert session.said("attach_result")[0].error_code == error_code.REBALANCE_IN_PROGRESS
    assert [reply.call_id for reply in session.said("reply")] == list(range(2, 12))
    assert {r.heartbeat.error_code for r in session.said("reply")} == {error_code.REBALANCE_IN_PROGRESS}
    await caller.join(group(0), joined.member_id)
    reply = (await session.until(lambda: session.said("reply")[10:]))[0]
    assert (reply.call_id, reply.join_group.generation) == (1, 2)
    await session.close()


async def test_members_that_share_a_stream_are_all_answered(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joins = [await joining(caller, group(0)) for _ in range(4)]
    session = await Session(caller.channel).hello()
    await session.send(*(call(number, join_group=join) for number, join in enumerate(joins, 1)))
    replies = await session.until(lambda: session.said("reply")[3:] and session.said("reply"))
    assert sorted(reply.call_id for reply in replies) == [1, 2, 3, 4]
    assert {reply.join_group.error_code for reply in replies} == {error_code.NONE}
    assert {reply.join_group.member_id for reply in replies} == {join.member_id for join in joins}
    await session.close()


async def test_a_call_of_a_client_that_is_gone_is_unparked(cluster: RealCluster) -> None:
    coordinator, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0))
    await session.send(call(1, join_group=await joining(caller, group(0))))
    await session.until(lambda: session.said("rebalance_started"))
    shard = next(s for s in coordinator.shards.values() if s.open_calls)
    await session.close()
    await until_equal(lambda: shard.open_calls, 0)
    assert joined.member_id in await members(caller, group(0))


async def test_what_a_client_asked_before_it_closed_is_answered(cluster: RealCluster) -> None:
    _, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0))
    leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)
    await session.send(
        call(1, leave_group=coordinator_pb2.LeaveGroupRequest(group_id=group(0), members=[leaving]))
    )
    await session.call.done_writing()
    assert await session.end() == grpc.StatusCode.OK
    assert session.said("reply")[0].leave_group.members[0].error_code == error_code.NONE


# --- the end of a stream


@pytest.mark.parametrize("others", [0, 3])
async def test_a_member_whose_stream_broke_is_removed_after_its_grace(
    cluster: RealCluster, others: int
) -> None:
    _, caller = await one(cluster)
    kept = [
        (await on_stream(caller, group(number), disconnect_grace_ms=GRACE_MS))[1]
        for number in range(1, 1 + others)
    ]
    _, session = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    await session.close()
    await emptied(caller, group(0))
    async with asyncio.timeout(60):
        while common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED not in await causes(caller, group(0)):
            pass
    for number in range(1, 1 + others):
        assert len(await members(caller, group(number))) == 1
    for session in kept:
        await session.close()


async def test_a_member_that_comes_back_within_its_grace_stays(cluster: RealCluster) -> None:
    coordinator, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    await session.close()
    await until(lambda: streamless(coordinator, group(0)))
    again = await Session(caller.channel).hello()
    assert (await again.attach(group(0), joined)).error_code == error_code.NONE
    await a_grace_later(caller, group(1))
    assert await members(caller, group(0)) == {joined.member_id}
    await again.close()


async def test_nobody_is_suspect_when_most_streams_break(cluster: RealCluster) -> None:
    coordinator, caller = await one(cluster, break_hold_ms=0)
    sessions = [
        (await on_stream(caller, group(number), disconnect_grace_ms=GRACE_MS))[1] for number in range(5)
    ]
    await asyncio.gather(*(session.close() for session in sessions[:4]))
    await until(lambda: all(streamless(coordinator, group(number)) for number in range(4)))
    await a_grace_later(caller, group(5))
    for number in range(5):
        assert len(await members(caller, group(number))) == 1


async def test_an_old_stream_is_ended_and_nobody_is_suspect(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_age_ms=1_000)
    _, session = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    assert await session.end() == grpc.StatusCode.OK
    assert session.frames[-1].goodbye.reason == session_pb2.GOODBYE_REASON_AGE
    await a_grace_later(caller, group(1))
    assert len(await members(caller, group(0))) == 1


# --- limits


async def refused(session: Session) -> str:
    """Waits for the end of a stream that broke a rule; returns the reason that was given."""
    assert await session.end() == grpc.StatusCode.OK
    assert session.frames[-1].goodbye.reason == session_pb2.GOODBYE_REASON_REFUSED
    return str(session.frames[-1].goodbye.message)


async def test_a_stream_that_its_client_half_closed_counts_until_it_has_ended(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_streams=1)
    _, first = await on_stream(caller, group(0))
    await first.send(
        call(1, join_group=await joining(caller, group(0)))
    )  # parked: the member does not rejoin
    await first.until(lambda: first.said("rebalance_started"))
    await first.call.done_writing()
    await asyncio.sleep(0.2)
    second = Session(caller.channel)
    assert await second.end() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert first.ended is None
    await first.close()


async def test_there_are_only_so_many_streams(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_streams=1)
    first = await Session(caller.channel).hello()
    await first.beat()
    second = Session(caller.channel)
    assert await second.end() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await first.close()
    async with asyncio.timeout(60):
        third = Session(caller.channel)
        while third.ended is None and not third.frames:
            await third.hello()
            await third.beat()
    await third.close()


async def test_there_are_only_so_many_members_on_a_stream(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_members=1)
    first, session = await on_stream(caller, group(0))
    second = await stable(caller, group(1))
    assert (await session.attach(group(1), second)).error_code == error_code.INVALID_REQUEST
    assert (await session.attach(group(0), first)).error_code == error_code.NONE
    await session.send(detach(group(0), first.member_id))
    assert (await session.attach(group(1), second)).error_code == error_code.NONE
    await session.close()


async def test_there_are_only_so_many_open_calls(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_open_calls=1)
    joined, session = await on_stream(caller, group(0))
    await session.send(call(1000, join_group=await joining(caller, group(0))))
    await session.until(lambda: session.said("rebalance_started"))
    request = coordinator_pb2.HeartbeatRequest(group_id=group(0), member_id=joined.member_id, generation=1)
    reply = await session.ask(heartbeat=request)
    assert reply.refused.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert reply.refused.retry_after_ms > 0
    await session.close()


def _beat(number: int) -> session_pb2.ClientFrame:
    return session_pb2.ClientFrame(beat=session_pb2.Beat(number=number))


def _hello(**fields: Any) -> session_pb2.ClientFrame:
    return session_pb2.ClientFrame(hello=session_pb2.Hello(**{"beat_interval_ms": 500} | fields))


def _parked(number: int) -> session_pb2.ClientFrame:
    return call(number, offset_fetch=fetch_of("g"))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([_beat(1)], "first frame must be a Hello"),
        ([_hello(), _hello()], "Hello already"),
        ([_hello(beat_interval_ms=99)], "100 to 60,000"),
        ([_hello(beat_interval_ms=60_001)], "100 to 60,000"),
        ([_hello(client_id="ü" * 128)], "255"),
        ([_hello(), session_pb2.ClientFrame()], "no kind"),
        ([_hello(), _beat(0)], "must grow"),
        ([_hello(), _beat(2), _beat(2)], "must grow"),
        ([_hello(), call(0, heartbeat=coordinator_pb2.HeartbeatRequest())], "call_id"),
        ([_hello(), _parked(5), _parked(5)], "call_id"),
        ([_hello(), *(_beat(number) for number in range(1, 11))], "at most 10"),
    ],
)
async def test_who_breaks_the_protocol_is_told_and_cut_off(
    cluster: RealCluster, frames: list[session_pb2.ClientFrame], words: str
) -> None:
    _, caller = await one(cluster, max_frames=10)
    session = Session(caller.channel)
    await session.send(*frames)
    assert words in await refused(session)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"\xff\xff", "not a valid"), (bytes(9 << 20), "larger than")],
    ids=["no message", "too large"],  # pytest hands the id on in the environment of what the test starts
)
async def test_garbage_is_refused(cluster: RealCluster, body: bytes, words: str) -> None:
    _, caller = await one(cluster)
    method: Any = caller.channel.stream_stream(
        "/muster.v1.GroupSessionService/Session",
        response_deserializer=session_pb2.SessionResponse.FromString,
    )
    garbage = method()
    await garbage.write(body)
    answer = await garbage.read()
    assert answer.frames[0].goodbye.reason == session_pb2.GOODBYE_REASON_REFUSED
    assert words in answer.frames[0].goodbye.message
    assert await garbage.read() is grpc.aio.EOF


async def test_a_stream_without_hello_is_ended(cluster: RealCluster) -> None:
    _, caller = await one(cluster, hello_timeout_ms=100)
    assert "no Hello" in await refused(Session(caller.channel))


async def test_a_silent_stream_is_ended_and_its_members_live_on(cluster: RealCluster) -> None:
    _, caller = await one(cluster, max_silence_ms=1_600)
    _, session = await on_stream(caller, group(0), disconnect_grace_ms=GRACE_MS)
    assert "silent" in await refused(session)
    await a_grace_later(caller, group(1))
    assert len(await members(caller, group(0))) == 1


@pytest.mark.parametrize(
    ("calls", "limits"),
    [
        (40, {"max_queued_bytes": 1 << 20}),
        (40, {"write_timeout_ms": 500}),
        (8, {"max_total_queued_bytes": 1 << 20, "write_timeout_ms": 600_000}),
    ],
)
async def test_a_client_that_does_not_read_is_cut_off_and_no_other(
    cluster: RealCluster, calls: int, limits: dict[str, int]
) -> None:
    coordinator, caller = await one(cluster, **limits)
    topics = [
        coordinator_pb2.OffsetCommitRequest.Topic(
            name="t",
            partitions=[
                coordinator_pb2.OffsetCommitRequest.Partition(
                    partition=number, offset=1, metadata="m" * 4_000
                )
                for number in range(200)
            ],
        )
    ]
    await caller.stub.OffsetCommit(
        coordinator_pb2.OffsetCommitRequest(group_id=group(0), generation=-1, topics=topics)
    )
    async with connection(str(coordinator.address)) as channel:
        other = await Session(channel).hello()
        session = await Session(caller.channel, read=False).hello()
        fetch = fetch_of(group(0))
        with capture_logs() as logs:
            await session.send(*(call(number, offset_fetch=fetch) for number in range(1, calls + 1)))
            await until(lambda: any(entry["event"] == "session_refused" for entry in logs))
            sessions = coordinator._sessions
            assert sessions is not None
            await until(lambda: len(sessions) == 1)
        refusal = next(entry for entry in logs if entry["event"] == "session_refused")
        assert "read" in refusal["reason"]
        assert refusal["client_id"] == "test"
        assert not (await other.beat()).unheard
        await until(lambda: sessions.queued_bytes == 0)
        await session.close()
        await other.close()


async def test_large_attaches_that_are_refused_and_not_read_are_bounded(cluster: RealCluster) -> None:
    coordinator, caller = await one(cluster, max_queued_bytes=1 << 20)
    session = await Session(caller.channel, read=False).hello()
    with capture_logs() as logs:
        await session.send(*(attach(group(0), "m" * 100_000, 1) for _ in range(40)))
        await until(lambda: any(entry["event"] == "session_refused" for entry in logs))
    assert "unread" in next(entry for entry in logs if entry["event"] == "session_refused")["reason"]
    sessions = coordinator._sessions
    assert sessions is not None
    await until(lambda: len(sessions) == 0)
    assert sessions.queued_bytes == 0
    await session.close()


# --- what is not certain


@pytest.mark.brief_lease
async def test_nobody_is_heard_while_the_lease_is_lapsed(cluster: RealCluster) -> None:
    coordinator, caller = await one(cluster)
    joined, session = await on_stream(caller, group(0))
    assert not (await session.beat()).unheard
    for node in cluster.nodes:
        node.pause()
    await until(lambda: all(shard.suspended for shard in coordinator.shards.values()))
    unheard = (await session.beat()).unheard
    assert [(u.group_id, u.member_id, u.error_code, u.unsure) for u in unheard] == [
        (group(0), joined.member_id, error_code.COORDINATOR_NOT_AVAILABLE, False)
    ]
    result = await session.attach(group(0), joined)
    assert (result.error_code, result.unsure) == (error_code.COORDINATOR_NOT_AVAILABLE, False)
    for node in cluster.nodes:
        node.resume()
    await until(partial(is_heard, session), "the lease is held again; on a busy machine it lapses once more")
    await session.close()


@pytest.mark.brief_lease
async def test_who_knows_the_word_is_told_that_the_coordinator_is_not_sure(cluster: RealCluster) -> None:
    """Its member outlives its grace afterwards, until it says that it heard an acknowledgement."""
    coordinator, caller = await one(cluster)
    joined = await stable(caller, group(0), disconnect_grace_ms=GRACE_MS)
    session = await Session(caller.channel).hello(knows_unsure=True)
    assert (await session.attach(group(0), joined)).error_code == error_code.NONE
    for node in cluster.nodes:
        node.pause()
    await until(lambda: all(shard.suspended for shard in coordinator.shards.values()))
    (missed,) = (await session.beat()).unheard
    epoch = coordinator.shards[0].epoch
    assert (missed.unsure, missed.shard_epoch) == (True, epoch)
    result = await session.attach(group(0), joined)
    assert (result.error_code, result.unsure, result.shard_epoch) == (
        error_code.COORDINATOR_NOT_AVAILABLE,
        True,
        epoch,
    )
    for node in cluster.nodes:
        node.resume()
    await until(partial(is_heard, session), "the lease is held again; on a busy machine it lapses once more")
    await session.close()
    await a_grace_later(caller, group(1))
    assert await members(caller, group(0)) == {joined.member_id}
