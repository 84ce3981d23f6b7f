"""Requests that take long on the event loop: one after the other, and in turns."""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from abuse.http2 import DATA, Connection, frame, grpc_message
from coordinator.coordinator_cluster import Caller, MemoryCluster, group_of, owns
from coordinator.session_client import Session, attach, detach
from kit.waiting import until
from muster_coordinator.api import calls
from muster_coordinator.api.calls import LARGE_BYTES, LARGE_PARTITIONS, Calls
from muster_coordinator.api.rights import Rights, Verdict
from muster_coordinator.session import stream as session_stream
from muster_core import error_code
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    incremental_pb2,
    session_pb2,
    session_pb2_grpc,
)
from muster_runtime.loop_share import LoopShare, LoopTurn
from muster_runtime.rpc.large import read_message

pytestmark = pytest.mark.cluster


@pytest.fixture
async def caller(cluster: MemoryCluster) -> Caller:
    """Calls to a coordinator that owns all shards."""
    coordinator = await cluster.add("a", join_delay_ms=0)
    await owns(coordinator, 4)
    return cluster.caller(coordinator)


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    def stop(self) -> None:
        self._counting.cancel()


def large(number: int) -> coordinator_pb2.OffsetCommitRequest:
    """A commit above the size from which on they wait for each other."""
    partition = coordinator_pb2.OffsetCommitRequest.Partition(offset=1, metadata="m" * 3_000)
    topics = [
        coordinator_pb2.OffsetCommitRequest.Topic(name=f"t{topic}", partitions=[partition])
        for topic in range(30)
    ]
    request = coordinator_pb2.OffsetCommitRequest(group_id=group_of(0, number), generation=-1, topics=topics)
    assert request.ByteSize() > LARGE_BYTES
    return request


class NoCluster:
    """A view that has seen nothing, and an ownership without shards."""

    cluster = None
    shards: Mapping[int, Any] = MappingProxyType({})


def of_many_partitions(number: int) -> coordinator_pb2.OffsetDeleteRequest:
    """A request that is small, and takes long."""
    topics = [common_pb2.TopicPartitions(topic="t", partitions=range(LARGE_PARTITIONS + 1))]
    return coordinator_pb2.OffsetDeleteRequest(group_id=f"g{number}", topics=topics)


def of_many_topics(number: int) -> coordinator_pb2.OffsetDeleteRequest:
    """The same without a partition."""
    topics = [common_pb2.TopicPartitions(topic=f"t{topic}") for topic in range(LARGE_PARTITIONS + 1)]
    return coordinator_pb2.OffsetDeleteRequest(group_id=f"g{number}", topics=topics)


def of_many_owned(number: int) -> incremental_pb2.ConsumerGroupHeartbeatRequest:
    """A heartbeat that says where its member works: it counts for no quota, and takes as long."""
    request = incremental_pb2.ConsumerGroupHeartbeatRequest(group_id=f"g{number}", member_id="m")
    request.owned.topics.add(topic="t", partitions=range(LARGE_PARTITIONS + 1))
    return request


def of_many_groups(number: int) -> coordinator_pb2.DescribeGroupsRequest:
    """A request about groups, each of which has rights and an outcome of its own."""
    group_ids = [f"g{number}-{group}" for group in range(LARGE_PARTITIONS // 4)]
    return coordinator_pb2.DescribeGroupsRequest(group_ids=group_ids)


def fetch_of_many_groups(number: int) -> coordinator_pb2.OffsetFetchRequest:
    """The same about their offsets."""
    groups = [
        coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)
        for group_id in of_many_groups(number).group_ids
    ]
    return coordinator_pb2.OffsetFetchRequest(groups=groups)


@pytest.mark.parametrize(
    "made", [large, of_many_partitions, of_many_topics, of_many_owned, of_many_groups, fetch_of_many_groups]
)
async def test_large_requests_that_come_together_are_looked_through_in_different_turns(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[int], Any]
) -> None:
    turns = Turns()
    look_through, looked = calls.check, list[int]()

    def noted(request: Any) -> None:
        looked.append(turns.number)
        look_through(request)

    monkeypatch.setattr(calls, "check", noted)
    nothing: Any = NoCluster()
    answering = Calls(nothing, nothing, 1 << 20)
    answers: Any = await asyncio.gather(*(answering.answer(made(number), "") for number in range(5)))
    turns.stop()
    of_a_commit = coordinator_pb2.OffsetCommitResponse
    found = [one.topics[0].partitions[0] if isinstance(one, of_a_commit) else one for one in answers]
    found = [one.groups[0] if hasattr(one, "groups") else one for one in found]
    assert [one.error_code for one in found] == [error_code.COORDINATOR_NOT_AVAILABLE] * 5
    assert len(set(looked)) == 5


async def test_large_requests_begin_one_after_the_other_with_a_rest_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_through, begin, rest, happened = calls.check, Calls.answer_checked, LoopShare.rest, list[str]()

    def noted(request: Any) -> None:
        happened.append("looked through")
        look_through(request)

    async def begun(self: Calls, request: Any, host: str) -> Any:
        happened.append("begun")
        return await begin(self, request, host)

    async def rested(share: LoopShare) -> None:
        happened.append("rested")
        await rest(share)

    monkeypatch.setattr(calls, "check", noted)
    monkeypatch.setattr(Calls, "answer_checked", begun)
    monkeypatch.setattr(LoopShare, "rest", rested)
    nothing: Any = NoCluster()
    answering = Calls(nothing, nothing, 1 << 20)
    await asyncio.gather(*(answering.answer(large(number), "") for number in range(5)))
    assert happened == ["looked through", "rested", "begun", "rested"] * 5


async def test_hosts_take_turns_with_large_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of seventy kilobytes waited for all calls about a thousand groups that another host made."""
    begun, begin = list[str](), Calls.answer_checked

    async def noted(self: Calls, request: Any, host: str) -> Any:
        begun.append(host)
        return await begin(self, request, host)

    monkeypatch.setattr(Calls, "answer_checked", noted)
    nothing: Any = NoCluster()
    answering = Calls(nothing, nothing, 1 << 20)
    asked = [(of_many_groups(number), "attacker") for number in range(20)] + [(large(0), "innocent")]
    await asyncio.gather(*(answering.answer(request, host) for request, host in asked))
    assert begun.index("innocent") <= 2


async def test_messages_that_come_together_are_played_in_several_turns(
    cluster: MemoryCluster, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty streams with a hundred frames each kept the commits of others waiting for half a second."""
    (coordinator,) = cluster.running
    sessions: Any = coordinator._sessions
    sessions._around.calls.loop_turn._most_s = 1e-9
    turns, played, play = Turns(), dict[int, int](), session_stream.SessionStream._play_frame

    def noted(stream: session_stream.SessionStream, frame: session_pb2.ClientFrame) -> None:
        if frame.HasField("detach"):
            played[stream.stream_id] = turns.number
        play(stream, frame)

    have_come, read, waiting = asyncio.Event(), read_message, list[Any]()

    async def together(context: Any) -> Any:
        waiting.append(message := await read(context))
        await have_come.wait()
        return message

    monkeypatch.setattr(session_stream.SessionStream, "_play_frame", noted)
    monkeypatch.setattr(session_stream, "read_message", together)
    stub: Any = session_pb2_grpc.GroupSessionServiceStub(caller.channel)
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="c", beat_interval_ms=60_000))
    detach = session_pb2.ClientFrame(detach=session_pb2.Detach(group_id=group_of(0), member_id="nobody"))
    streams = [stub.Session() for _ in range(5)]
    await asyncio.gather(*(one.write(session_pb2.SessionRequest(frames=[hello, detach])) for one in streams))
    await until(lambda: len(waiting) == len(streams))
    have_come.set()
    await until(lambda: len(played) == len(streams))
    turns.stop()
    for stream in streams:
        stream.cancel()
    assert len(set(played.values())) == len(streams)


def test_what_is_for_one_leaves_turns_of_the_loop_to_what_is_for_others() -> None:
    async def look() -> None:
        turn = LoopTurn(0.005)
        turn.took("one", 0.004)
        assert not turn.is_over("one")
        turn.took("one", 0.002)
        assert (turn.is_over("one"), turn.is_over("other")) == (True, False)
        await turn.another("one")
        assert not turn.is_over("one")

    asyncio.run(look())


async def test_those_that_wait_for_a_turn_of_the_loop_have_it_in_order_as_many_as_have_time() -> None:
    """A thousand streams that look in each turn of the loop take longer than what twenty of them play."""
    turn, order, looked = LoopTurn(0.0029), list[int](), list[int]()

    async def play(number: int) -> None:
        if turn.is_over("one"):
            await turn.another("one")
        order.append(number)
        turn.took("one", 0.001)

    tasks = [asyncio.create_task(play(number)) for number in range(30)]
    await asyncio.sleep(0)
    assert order == [0, 1, 2]
    for number in (10, 11):
        tasks[number].cancel()
    late = asyncio.create_task(play(30))
    while not late.done():
        before = len(order)
        await asyncio.sleep(0)
        looked.append(len(order) - before)
    assert order == [number for number in range(31) if number not in (10, 11)]
    assert max(looked) <= 3
    await until(lambda: not turn._of)


async def test_connections_have_the_turns_of_their_host_in_turn() -> None:
    """A beat of another process of the host waited for two seconds: four hundred streams came before it."""
    turn, order = LoopTurn(0.001), list[str]()

    async def play(connection: str) -> None:
        if turn.is_over("one"):
            await turn.another("one", connection)
        order.append(connection)
        turn.took("one", 0.001)

    await asyncio.gather(*(play(connection) for connection in "aaaaabbbc"))
    assert "".join(order) == "a" + "abcababa"
    await until(lambda: not turn._of)


async def test_messages_that_wait_are_in_the_line_of_their_connection(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[tuple[str, str]]()

    async def another(_: LoopTurn, who: str, line: str = "") -> None:
        lines.append((who, line))

    monkeypatch.setattr(LoopTurn, "is_over", lambda *_: True)
    monkeypatch.setattr(LoopTurn, "another", another)
    session = await Session(caller.channel).hello()
    await session.beat()
    await session.close()
    ((host, peer),) = set(lines)
    assert host in peer
    assert peer.removeprefix("ipv4:").partition(":")[2].isdecimal()


async def test_work_that_rests_has_half_of_the_loop() -> None:
    turn = LoopTurn(0.002)
    ends_s, worked_s, began_s = turn.now_s() + 0.5, 0.0, turn.now_s()
    while turn.now_s() < ends_s:
        if turn.is_over("one"):
            await turn.another("one")
        time.sleep(0.001)  # noqa: ASYNC251 - the work that keeps the loop
        turn.took("one", 0.001, 0.001)
        worked_s += 0.001
        assert not turn.is_over("other")
    assert 0.05 < worked_s <= (turn.now_s() - began_s) / 2 + 0.01
    await turn.rest("one")
    await until(lambda: not turn._of)


async def test_frames_that_move_members_leave_half_of_the_loop(
    cluster: MemoryCluster, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attachings of one host took nine tenths of the loop, and commits of others waited for the rest."""
    took, count = list[tuple[float, float]](), LoopTurn.took

    def noted(turn: LoopTurn, who: str, taken_s: float, rest_s: float = 0.0) -> None:
        took.append((taken_s, rest_s))
        count(turn, who, taken_s, rest_s)

    monkeypatch.setattr(LoopTurn, "took", noted)
    session = await Session(caller.channel).hello()
    await session.beat()
    await session.ask(heartbeat=coordinator_pb2.HeartbeatRequest(group_id=group_of(0)))
    assert not any(rest_s for _, rest_s in took)
    joined = await caller.join(group_of(0))
    took.clear()
    await session.attach(group_of(0), joined)
    await session.send(detach(group_of(0), joined.member_id))
    await session.send(detach(group_of(0), "nobody"), attach(group_of(0), "nobody", 1))
    await session.beat()
    assert [rest_s > taken_s for taken_s, rest_s in took] == [True, True, True, False]
    for frames in ([session_pb2.ClientFrame()], [detach(group_of(0), "nobody"), session_pb2.ClientFrame()]):
        took.clear()
        broken = await Session(caller.channel).hello()
        await broken.send(*frames)
        await until(lambda: len(took) == 2, "what broke the protocol is counted, too")
        await broken.close()
    await session.close()


async def test_nothing_is_played_of_a_stream_that_ended_while_it_waited_for_its_turn(
    cluster: MemoryCluster, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that it attached stayed on it, and the stream in memory: one for each that was cut off."""
    played, play = list[str | None](), session_stream.SessionStream._play_frame

    def noted(stream: session_stream.SessionStream, frame: session_pb2.ClientFrame) -> None:
        played.append(frame.WhichOneof("kind"))
        play(stream, frame)

    monkeypatch.setattr(session_stream.SessionStream, "_play_frame", noted)
    monkeypatch.setattr(session_stream, "_TURN_S", 0.0)
    (coordinator,) = cluster.running
    sessions: Any = coordinator._sessions
    turns = sessions._around.calls.large_requests
    joined = await caller.join(group_of(0))
    attach = session_pb2.ClientFrame(
        attach=session_pb2.Attach(
            group_id=group_of(0), member_id=joined.member_id, generation=joined.generation
        )
    )
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="c", beat_interval_ms=60_000))

    def opened() -> Connection:
        connection = Connection(caller.address, window=0)  # it reads nothing: the stream ends a second later
        connection.poll(1)
        place = connection.open("/muster.v1.GroupSessionService/Session", None)
        body = session_pb2.SessionRequest(frames=[hello, attach]).SerializeToString()
        connection.send(frame(DATA, 0, place, grpc_message(body)))
        return connection

    async with asyncio.timeout(30):
        async with turns.turn("another host"):
            connection = await asyncio.to_thread(opened)
            await until(lambda: bool(turns._waiting))
            (stream,) = sessions._streams.values()
            stream.refuse("it is cut off")
        await until(lambda: not turns.held)
        assert len(sessions) == 1, "it has not ended"
        assert sessions.members == 0
    assert played == ["hello"]
    connection.close()


async def test_frames_about_many_groups_take_turns_with_large_requests(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of them may be seen is looked up in their turn, too, while other frames are answered at once."""
    may_go, held, judge, allowed = asyncio.Event(), list[bool](), Rights.judge, Calls.answer_in_turn

    async def later(self: Calls, request: Any, host: str) -> Any:
        await may_go.wait()

        def judged(*given: Any) -> Any:
            held.append(self.large_requests.held)
            return judge(*given)

        monkeypatch.setattr(Rights, "judge", judged)
        return await allowed(self, request, host)

    monkeypatch.setattr(Calls, "answer_in_turn", later)
    stream: Any = session_pb2_grpc.GroupSessionServiceStub(caller.channel).Session()
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="c", beat_interval_ms=60_000))
    message = session_pb2.SessionRequest(frames=[hello])
    several = message.frames.add().call
    several.call_id = 1
    several.offset_fetch.CopyFrom(fetch_of_many_groups(0))
    other = message.frames.add().call
    other.call_id = 2
    other.heartbeat.group_id, other.heartbeat.member_id = group_of(0), "nobody"
    async with asyncio.timeout(30):
        await stream.write(message)
        assert [frame.reply.call_id for frame in (await stream.read()).frames] == [2]
        may_go.set()
        (frame,) = (await stream.read()).frames
    stream.cancel()
    assert frame.reply.call_id == 1
    assert len(frame.reply.offset_fetch.groups) == len(several.offset_fetch.groups)
    assert held == [True]


async def test_a_large_request_of_which_something_is_refused_leaves_others_their_turn_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest, happened = LoopShare.rest, list[str]()
    answer = coordinator_pb2.OffsetCommitResponse()

    def judged(*_: Any) -> Verdict:
        happened.append("judged")
        return Verdict(None, completed)

    def completed(_: Any) -> Any:
        happened.append("answered")
        return answer

    async def rested(share: LoopShare) -> None:
        happened.append("rested")
        await rest(share)

    monkeypatch.setattr(Rights, "judge", judged)
    monkeypatch.setattr(LoopShare, "rest", rested)
    nothing: Any = NoCluster()
    assert await Calls(nothing, nothing, 1 << 20).answer(large(0), "") is answer
    assert happened == ["rested", "judged", "rested", "answered", "rested"]


@pytest.mark.parametrize("begins", [True, False], ids=["while it begins", "after that"])
async def test_a_large_request_whose_caller_goes_away_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    begun, ended, rested = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stay(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def rest(_: LoopShare) -> None:
        if begun.is_set():
            await rested.wait()

    monkeypatch.setattr(Calls, "answer_checked", stay)
    monkeypatch.setattr(LoopShare, "rest", rest)
    nothing: Any = NoCluster()
    answering = Calls(nothing, nothing, 1 << 20)
    call = asyncio.create_task(answering.answer(large(0), ""))
    async with asyncio.timeout(60):
        await begun.wait()
        if not begins:
            rested.set()
            await until(lambda: not answering.large_requests.held)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await ended.wait()
    assert not answering.large_requests.held


async def test_a_message_of_many_frames_is_played_in_several_turns(
    cluster: MemoryCluster, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large requests of other hosts do not wait for all of it."""
    monkeypatch.setattr(session_stream, "_TURN_S", 0.0)
    (coordinator,) = cluster.running
    sessions: Any = coordinator._sessions
    rests, rest, others = 0, LoopTurn.rest, list[asyncio.Task[int]]()

    async def other() -> int:
        async with sessions._around.calls.large_requests.turn("another host"):
            return rests

    async def counted(turn: LoopTurn, who: str) -> None:
        nonlocal rests
        rests += 1
        if rests == 3:
            others.append(asyncio.create_task(other()))
            await asyncio.sleep(0)
        await rest(turn, who)

    monkeypatch.setattr(LoopTurn, "rest", counted)
    stream: Any = session_pb2_grpc.GroupSessionServiceStub(caller.channel).Session()
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="c", beat_interval_ms=1_000))
    message = session_pb2.SessionRequest(frames=[hello])
    for number in range(1, 21):
        call = message.frames.add().call
        call.call_id = number
        call.heartbeat.group_id, call.heartbeat.member_id = group_of(0), "nobody"
    await stream.write(message)
    answered: list[int] = []
    while len(answered) < 20:
        said = await asyncio.wait_for(stream.read(), 30)
        answered += [frame.reply.call_id for frame in said.frames]
    stream.cancel()
    assert answered == list(range(1, 21))
    assert rests == 20
    assert await others[0] == 3
