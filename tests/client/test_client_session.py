"""Members on session streams, against coordinators that answer as the test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import muster
import pytest
import pytest_asyncio
from client.client_scripted import Break, ScriptedCluster
from client.client_streams import StreamingCoordinator
from kit.waiting import until, until_equal
from muster import MemberState, TopicPartition
from muster._clock import boot_ms
from muster._session.calls import PendingCalls
from muster._session.frames import MOST_BYTES, MOST_FRAMES, call_frame, fits, messages, response_of
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

pytestmark = pytest.mark.cluster

FAST: muster.MemberSettings = {
    "protocol": "classic",
    "session_timeout_ms": 10_000,
    "beat_interval_ms": 100,
    "disconnect_grace_ms": 3_000,
    "heartbeat_interval_ms": 30,
    "rebalance_timeout_ms": 5_000,
    "request_timeout_ms": 2_000,
}
ALL = tuple(TopicPartition("t", n) for n in range(3))


class World:
    """Two coordinators, one connection, and members on it."""

    def __init__(self, cluster: ScriptedCluster, a: StreamingCoordinator, b: StreamingCoordinator) -> None:
        self.cluster, self.a, self.b = cluster, a, b
        self.connection = muster.Cluster(cluster.address)
        self.told: list[str] = []
        self.members: list[muster.Member] = []

    async def join(self, group: str = "g", **settings: Any) -> muster.Member:
        member = muster.Member(
            self.connection,
            group_id=group,
            topics="t",
            on_partitions_assigned=lambda _: self.told.append("assigned"),
            on_partitions_revoked=lambda _: self.told.append("revoked"),
            on_partitions_lost=lambda _: self.told.append("lost"),
            **{**FAST, **settings},
        )
        self.members.append(member)
        await member.start()
        await until(lambda: member.state is MemberState.STABLE and bool(member.partitions))
        return member

    async def told_so(self, *words: str) -> None:
        await until_equal(lambda: self.told[: len(words)], list(words))


@asynccontextmanager
async def worlds() -> AsyncIterator[World]:
    a, b = StreamingCoordinator("a"), StreamingCoordinator("b")
    cluster = ScriptedCluster([a, b])
    await cluster.start()
    world = World(cluster, a, b)
    try:
        yield world
    finally:
        await asyncio.gather(*(member.close() for member in world.members))
        await world.connection.close()
        await cluster.stop()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with worlds() as made:
        yield made


def on(member: muster.Member, generation: int = 1) -> session_pb2.RebalanceStarted:
    cause = common_pb2.RebalanceCause(
        kind=common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED, sentence="a member joined"
    )
    return session_pb2.RebalanceStarted(
        group_id="g", member_id=member.member_id, generation=generation, cause=cause, shard_epoch=1
    )


async def test_a_life_on_one_stream(world: World) -> None:
    a = world.a
    member = await world.join()
    await member.commit({ALL[0]: 5})
    assert await member.committed(ALL) == {ALL[0]: muster.Committed(5)}
    await a.until("Beat", 3)
    assert len(a.streams) == 1
    [stream] = a.streams
    first = stream.messages[0].frames
    assert first[0].hello.client_id == "muster-python"
    [attach] = stream.frames("attach")
    assert (attach.group_id, attach.member_id, attach.generation) == ("g", "m-1", 1)
    numbers = [beat.number for beat in stream.frames("beat")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert a.requests("JoinGroup")[0].disconnect_grace_ms == 3_000
    assert a.requests("Heartbeat") == []
    await member.close()
    await world.connection.close()
    assert len(stream.frames("detach")) == 1
    await until(lambda: stream.half_closed)
    assert world.told == ["assigned", "revoked"]


async def test_a_member_closes_though_its_cluster_is_gone_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster._member.member.LEAVE_TIMEOUT_MS", 200)
    member = await world.join(disconnect_grace_ms=300)
    await world.cluster.stop()
    commit = asyncio.create_task(member.commit({ALL[0]: 5}))
    await until(lambda: not member.partitions, "its life is over")
    await asyncio.wait_for(member.close(), 30)
    with pytest.raises(muster.CommitFailed):
        await commit
    assert world.told == ["assigned", "lost"]


async def test_members_of_a_process_share_a_stream_and_its_beats(world: World) -> None:
    a = world.a
    for number in range(5):
        await world.join(f"g{number}")
    [stream] = a.streams
    before = len(stream.frames("beat"))
    await until(lambda: len(stream.frames("beat")) >= before + 3)
    assert {attach.group_id for attach in stream.frames("attach")} == {f"g{n}" for n in range(5)}
    assert len(a.streams) == 1
    assert a.requests("Heartbeat") == []


async def test_what_one_loop_turn_produces_goes_out_together(world: World) -> None:
    members = [await world.join(f"g{number}") for number in range(8)]
    [stream] = world.a.streams
    before = len(stream.messages)
    await asyncio.gather(*(member.commit({ALL[0]: 1}) for member in members))
    calls = [
        sum(frame.WhichOneof("kind") == "call" for frame in message.frames)
        for message in stream.messages[before:]
    ]
    assert max(calls) == len(members)


async def test_a_message_stays_below_the_limits() -> None:
    frames = [
        call_frame(n, coordinator_pb2.HeartbeatRequest(group_id="g")) for n in range(1, MOST_FRAMES + 2)
    ]
    assert [len(message.frames) for message in messages(frames)] == [MOST_FRAMES, 1]
    large = [
        call_frame(n, coordinator_pb2.LeaveGroupRequest(group_id="g" * (MOST_BYTES // 2))) for n in (1, 2, 3)
    ]
    assert [len(message.frames) for message in messages(large)] == [1, 1, 1]
    assert not fits(coordinator_pb2.SyncGroupRequest(group_id="g" * (MOST_BYTES + 1)))
    assert not fits(coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]))


async def test_a_pushed_rebalance_makes_the_member_rejoin_at_once(world: World) -> None:
    member = await world.join()
    [stream] = world.a.streams
    await stream.say(rebalance_started=on(member))
    await world.told_so("assigned", "revoked", "assigned")
    assert member.generation == 2
    assert member.last_cause is not None
    assert member.last_cause.sentence == "a member joined"
    assert world.a.requests("JoinGroup")[-1].reason == "a member joined"
    assert [attach.generation for attach in stream.frames("attach")] == [1, 2]


async def test_a_rebalance_of_another_generation_is_no_news(world: World) -> None:
    member = await world.join()
    [stream] = world.a.streams
    await stream.say(rebalance_started=on(member, generation=0))
    await world.a.until("Beat", len(world.a.requests("Beat")) + 3)
    assert world.told == ["assigned"]


@pytest.mark.parametrize(
    ("code", "keeps_id"),
    [(common_pb2.ERROR_CODE_ILLEGAL_GENERATION, True), (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, False)],
)
@pytest.mark.parametrize("how", ["fenced", "unheard", "attach"])
async def test_a_membership_that_is_gone_starts_over(
    world: World, how: str, code: common_pb2.ErrorCode.ValueType, keeps_id: bool
) -> None:
    a = world.a
    member = await world.join()
    [stream], before = a.streams, member.member_id
    if how == "fenced":
        news = session_pb2.Fenced(group_id="g", member_id=before, error_code=code, shard_epoch=1)
        await stream.say(fenced=news)
    elif how == "unheard":
        unheard = session_pb2.UnheardMember(group_id="g", member_id=before, error_code=code)
        a.script["Beat"].append(session_pb2.BeatAck(unheard=[unheard]))
    else:
        a.script["Attach"].append(session_pb2.AttachResult(error_code=code, shard_epoch=1))
        stream.end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned", "lost", "assigned")
    assert (member.member_id == before) is keeps_id
    assert member.generation == 2


async def test_a_fenced_instance_stops(world: World) -> None:
    member = await world.join(group_instance_id="blue")
    news = session_pb2.Fenced(
        group_id="g",
        member_id=member.member_id,
        error_code=common_pb2.ERROR_CODE_FENCED_INSTANCE_ID,
        shard_epoch=1,
    )
    await world.a.streams[0].say(fenced=news)
    with pytest.raises(muster.FencedInstance):
        await asyncio.wait_for(member.wait(), 60)
    assert world.told == ["assigned", "lost"]


async def test_a_broken_stream_is_opened_again_and_costs_nothing(world: World) -> None:
    a = world.a
    members = [await world.join(f"g{number}") for number in range(3)]
    lookups = len(world.cluster.asked)
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await a.until("Session", 2)
    await until(lambda: len(a.streams[1].frames("beat")) >= 2)
    first = [frame.WhichOneof("kind") for frame in a.streams[1].messages[0].frames]
    assert first == ["hello", "attach", "attach", "attach", "beat"]
    assert len(world.cluster.asked) == lookups
    assert world.told == ["assigned"] * 3
    assert len(a.requests("JoinGroup")) == 2 * len(members)


async def test_a_call_in_flight_is_repeated_on_the_next_stream(world: World) -> None:
    a = world.a
    member = await world.join(request_timeout_ms=60_000)

    async def parked(_request: Any) -> Any:
        await asyncio.Event().wait()

    a.script["OffsetCommit"].append(parked)
    commit = asyncio.create_task(member.commit({ALL[0]: 7}))
    await a.until("OffsetCommit")
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await asyncio.wait_for(commit, 60)
    first, second = a.requests("OffsetCommit")
    assert first == second
    assert len(a.streams) == 2


async def test_a_call_that_ends_while_others_are_written_is_not_sent() -> None:
    calls = PendingCalls("a", lambda: None, lambda: None)
    request = coordinator_pb2.OffsetFetchRequest()
    tasks = [asyncio.create_task(calls.call(request, 60_000)) for _ in range(3)]
    await asyncio.sleep(0)
    frames = calls.frames()
    first = next(frames)
    tasks[1].cancel()
    await asyncio.wait((tasks[1],))
    assert [frame.call.call_id for frame in (first, *frames)] == [1, 3]
    for task in tasks:
        task.cancel()


async def test_a_stream_that_cannot_be_written_to_any_more_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that nobody writes is never acknowledged, and no call is answered."""
    a = world.a
    member = await world.join()

    frames, failures = PendingCalls.frames, iter([RuntimeError("unforeseen")])

    def fails_once(calls: PendingCalls) -> Any:
        for failure in failures:
            raise failure
        return frames(calls)

    monkeypatch.setattr(PendingCalls, "frames", fails_once)
    await until(lambda: len(a.streams) > 1 and bool(a.streams[-1].frames("beat")))
    await member.commit({ALL[0]: 7})
    assert world.told == ["assigned"]


async def test_a_killed_coordinator_is_left_for_the_next_one(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch, b.generation = 2, 1
    member = await world.join()
    world.cluster.owner = 1
    await a.stop()
    attach = await b.until("Attach")
    assert (attach.member_id, attach.generation) == (member.member_id, 1)
    await member.commit({ALL[0]: 5})
    assert b.offsets == {("t", 0): 5}
    assert b.requests("JoinGroup") == []
    assert world.told == ["assigned"]


async def test_a_moved_group_is_followed_without_a_lookup(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 2
    member = await world.join()
    lookups = len(world.cluster.asked)
    moved = session_pb2.CoordinatorMoved(group_id="g", member_id=member.member_id, coordinator=b.where())
    await a.streams[0].say(coordinator_moved=moved)
    await b.until("Attach")
    await until(lambda: len(b.streams[0].frames("beat")) >= 3)
    assert len(world.cluster.asked) == lookups
    assert world.told == ["assigned"]
    assert a.streams[0].frames("detach") == []


async def test_a_moved_group_whose_owner_is_not_known_is_looked_up(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 2
    member = await world.join()
    world.cluster.owner = 1
    await a.streams[0].say(
        coordinator_moved=session_pb2.CoordinatorMoved(group_id="g", member_id=member.member_id)
    )
    await b.until("Attach")
    assert world.told == ["assigned"]


@pytest.mark.parametrize(
    "code",
    [
        common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
        common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
        common_pb2.ERROR_CODE_NOT_COORDINATOR,
    ],
)
async def test_an_attach_is_repeated_until_the_group_is_there(
    world: World, code: common_pb2.ErrorCode.ValueType
) -> None:
    a = world.a
    await world.join()
    refused = session_pb2.AttachResult(error_code=code, shard_epoch=1)
    a.script["Attach"] += [refused, refused]
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await a.until("Attach", 4)
    await until(lambda: len(a.streams[-1].frames("beat")) >= 3)
    assert world.told == ["assigned"]


async def test_a_member_that_a_beat_did_not_count_for_attaches_again(world: World) -> None:
    a = world.a
    member = await world.join()
    unheard = session_pb2.UnheardMember(
        group_id="g",
        member_id=member.member_id,
        error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    )
    a.script["Beat"].append(session_pb2.BeatAck(unheard=[unheard]))
    await a.until("Attach", 2)
    assert len(a.streams) == 1
    assert world.told == ["assigned"]


async def test_a_life_ends_with_the_grace_and_partitions_come_back(world: World) -> None:
    a = world.a
    member = await world.join(disconnect_grace_ms=400)
    a.refuses = grpc.StatusCode.UNAVAILABLE
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned", "lost")
    assert member.partitions == ()
    a.refuses = None
    await world.told_so("assigned", "lost", "assigned")
    assert member.partitions == ALL
    assert (member.generation, len(a.requests("JoinGroup"))) == (1, 2)
    attaches = a.requests("Attach")
    assert {(x.member_id, x.generation) for x in attaches} == {("m-1", 1)}


async def test_beats_that_are_not_acknowledged_end_the_life(world: World) -> None:
    a = world.a
    await world.join(disconnect_grace_ms=400)
    a.mute = True
    await world.told_so("assigned", "lost")
    a.mute = False
    await world.told_so("assigned", "lost", "assigned")


async def test_a_beat_does_not_count_for_one_that_it_left_out(world: World) -> None:
    a = world.a
    one = await world.join("g", disconnect_grace_ms=400)
    two = await world.join("h", disconnect_grace_ms=400)
    refused = session_pb2.AttachResult(
        error_code=common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, shard_epoch=1
    )
    unheard = session_pb2.UnheardMember(
        group_id="g",
        member_id=one.member_id,
        error_code=common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
    )
    a.script["Attach"] += [refused] * 50
    a.script["Beat"].append(session_pb2.BeatAck(unheard=[unheard]))
    await world.told_so("assigned", "assigned", "lost")
    assert one.partitions == ()
    assert two.partitions == ALL


async def test_a_silent_coordinator_is_left(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 2
    await world.join(disconnect_grace_ms=9_000)
    a.mute = True
    world.cluster.owner = 1
    await b.until("Attach")
    await until(lambda: len(b.streams[0].frames("beat")) >= 2)
    assert world.told == ["assigned"]


async def test_a_silent_coordinator_is_not_tried_again_while_its_successor_is_looked_for(
    world: World,
) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 2
    await world.join(disconnect_grace_ms=9_000)
    before = len(world.cluster.asked)
    a.mute = True
    await until(lambda: len(world.cluster.asked) >= before + 2)  # it is named again: its lease runs
    world.cluster.owner = 1
    await b.until("Attach")
    assert len(a.streams) == 1
    assert world.told == ["assigned"]


async def test_an_old_stream_is_replaced_calmly(world: World) -> None:
    a = world.a
    member = await world.join()

    async def parked(_request: Any) -> Any:
        await asyncio.Event().wait()

    a.script["JoinGroup"].append(parked)
    member.rejoin("the test wants it")
    await a.until("JoinGroup", 3)
    await a.streams[0].part(session_pb2.GOODBYE_REASON_AGE)
    await world.told_so("assigned", "revoked", "assigned")
    parked_join, repeated = a.requests("JoinGroup")[2:4]
    assert parked_join == repeated
    assert len(a.streams) == 2


async def test_a_draining_coordinator_is_left_for_the_next_one(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch, b.generation = 2, 1
    await world.join()
    world.cluster.owner = 1
    await a.streams[0].part(session_pb2.GOODBYE_REASON_DRAINING)
    await b.until("Attach")
    await until(lambda: len(b.streams[0].frames("beat")) >= 2)
    assert len(a.streams) == 1
    assert world.told == ["assigned"]


@pytest.mark.parametrize("status", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_server_without_a_stream_gets_unary_calls(world: World, status: grpc.StatusCode) -> None:
    a = world.a
    a.refuses = status
    member = await world.join()
    await a.until("Heartbeat", 3)
    asked = len(a.requests("Refused"))
    await member.commit({ALL[0]: 1})
    member.rejoin("the test wants it")
    await world.told_so("assigned", "revoked", "assigned")
    # gRPC says INTERNAL in place of a status that arrives while it writes: then a stream is asked for again
    assert 1 <= len(a.requests("Refused")) == asked <= 2
    assert a.streams == []


async def test_a_member_for_whom_a_stream_has_no_room_makes_heartbeats(world: World) -> None:
    a = world.a
    a.script["Attach"].append(session_pb2.AttachResult(error_code=common_pb2.ERROR_CODE_INVALID_REQUEST))
    await world.join()
    await a.until("Heartbeat", 3)
    assert world.told == ["assigned"]


async def test_a_member_changes_from_calls_to_a_stream_with_its_coordinator(world: World) -> None:
    a, b = world.a, world.b
    a.refuses, b.shard_epoch = grpc.StatusCode.UNIMPLEMENTED, 2
    await world.join()
    moved = coordinator_pb2.HeartbeatResponse(
        error_code=common_pb2.ERROR_CODE_NOT_COORDINATOR, shard_epoch=1, coordinator=b.where()
    )
    a.script["Heartbeat"].append(moved)
    await b.until("Attach")
    await until(lambda: len(b.streams[0].frames("beat")) >= 3)
    heartbeats = len(a.requests("Heartbeat")) + len(b.requests("Heartbeat"))
    await until(lambda: len(b.streams[0].frames("beat")) >= 6)
    assert len(a.requests("Heartbeat")) + len(b.requests("Heartbeat")) == heartbeats
    assert world.told == ["assigned"]


async def test_a_session_can_be_switched_off(world: World) -> None:
    a = world.a
    await world.join(session=False)
    await a.until("Heartbeat", 2)
    assert a.requests("Session") == []
    assert {join.disconnect_grace_ms for join in a.requests("JoinGroup")} == {0}


async def test_a_refused_call_is_raised_as_a_unary_one_would_be(world: World) -> None:
    a = world.a
    member = await world.join()

    def denied(_request: Any) -> Any:
        raise Break(grpc.StatusCode.INVALID_ARGUMENT)

    a.script["OffsetCommit"].append(denied)
    with pytest.raises(muster.RequestRefused, match="INVALID_ARGUMENT: as the test wants it"):
        await member.commit({ALL[0]: 1})
    assert world.told == ["assigned"]


def test_a_refused_call_names_its_field_once() -> None:
    refused = session_pb2.Reply(call_id=1)
    refused.refused.status = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    refused.refused.message = "member_id: must be at most 255 bytes long"
    refused.refused.field = "member_id"
    with pytest.raises(muster.RequestRefused) as raised:
        response_of(refused)
    assert str(raised.value).count("member_id") == 1


async def test_news_of_a_deposed_coordinator_are_dropped(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 5
    member = await world.join()
    stale = a.streams[0]
    moved = session_pb2.CoordinatorMoved(group_id="g", member_id=member.member_id, coordinator=b.where())
    await stale.say(coordinator_moved=moved)
    await b.until("Attach")
    await stale.say(
        fenced=session_pb2.Fenced(
            group_id="g",
            member_id=member.member_id,
            error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID,
            shard_epoch=1,
        )
    )
    await b.streams[0].say(rebalance_started=on(member))
    await until(lambda: len(b.streams[0].frames("beat")) >= 3)
    assert world.told == ["assigned"]


async def test_a_closed_static_member_is_taken_off_the_stream_before_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster._session.session.CLOSE_TIMEOUT_MS", 30_000)  # for a busy machine
    member = await world.join(group_instance_id="blue")
    await member.close()
    await world.connection.close()
    [stream] = world.a.streams
    await until(lambda: stream.half_closed)
    assert [detach.member_id for detach in stream.frames("detach")] == [stream.frames("attach")[0].member_id]


async def test_the_shortest_life_sets_the_pace(world: World) -> None:
    a = world.a
    await world.join(
        "g",
        beat_interval_ms=60_000,
        disconnect_grace_ms=0,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
    )
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await a.until("Attach", 2)
    stream = a.streams[1]
    assert stream.frames("hello")[0].beat_interval_ms == 60_000
    await world.join("h", session_timeout_ms=300)
    async with asyncio.timeout(10):
        await until(lambda: len(stream.frames("beat")) >= 10)


async def test_lookups_of_many_members_travel_together(world: World) -> None:
    a, b = world.a, world.b
    b.shard_epoch = 2
    for number in range(6):
        await world.join(f"g{number}")
    world.cluster.owner, lookups = 1, len(world.cluster.asked)
    await a.streams[0].part(session_pb2.GOODBYE_REASON_DRAINING)
    await b.until("Attach", 6)
    asked = world.cluster.asked[lookups]
    assert sorted(asked.group_ids) == [f"g{n}" for n in range(6)]


async def test_a_life_runs_from_when_the_acknowledged_beat_was_sent(world: World) -> None:
    a = world.a
    member = await world.join()
    seen_ms: list[int] = []

    async def slow(_beat: Any) -> session_pb2.BeatAck:
        a.mute = True
        seen_ms.append(boot_ms())
        await until(lambda: boot_ms() > seen_ms[0] + 200)
        return session_pb2.BeatAck()

    a.script["Beat"].append(slow)
    life = member._standing.life
    before = life.ends_at_ms
    await until(lambda: life.ends_at_ms > before and boot_ms() > (seen_ms or [boot_ms()])[0] + 250)
    assert life.ends_at_ms <= seen_ms[0] + life.span_ms
    a.mute = False


async def test_an_attach_that_meets_a_rebalance_asks_for_a_rejoin(world: World) -> None:
    a = world.a
    member = await world.join()
    busy = session_pb2.AttachResult(error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, shard_epoch=1)
    a.script["Attach"].append(busy)
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned", "revoked", "assigned")
    assert member.generation == 2


async def test_a_server_that_has_had_enough_of_a_young_stream_gets_unary_calls(world: World) -> None:
    a = world.a
    await world.join(heartbeat_interval_ms=9_000)
    await a.streams[0].part(session_pb2.GOODBYE_REASON_REFUSED)
    # At once: until it is answered the grace counts.
    await asyncio.wait_for(a.until("Heartbeat"), 5)
    assert len(a.streams) == 1
    assert world.told == ["assigned"]
