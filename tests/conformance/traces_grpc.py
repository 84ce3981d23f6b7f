"""Plays scripts over real gRPC against processes: as unary calls, or as frames of a session stream.

Time is real there, and the machine may be slow. So only such scripts are played whose answers do not depend
on how long a step takes: played in virtual time with steps of no length, of the recorded length and of a
second, they are answered in the same way.

What is answered after a step in virtual time is what the real play waits for. Anything else that is
answered shows as well, because after every call a member leaves that the group does not have: that call
comes to the group later, stands in the same line, and is answered when the log has what was written before.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from conformance import traces_judge, traces_live
from conformance.traces import BROKER, Answers, Script, Step
from conformance.traces_judge import Circumstances, Verdict, VirtualPlayer
from kit import leases
from kit.clusters import server_cluster
from muster_core.events import GroupRequest, GroupResponse
from muster_protos.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, session_pb2, session_pb2_grpc

SETTINGS = {
    "MUSTER_GROUP_MIN_SESSION_TIMEOUT_MS": str(BROKER.min_session_timeout_ms),
    "MUSTER_GROUP_MAX_SESSION_TIMEOUT_MS": str(BROKER.max_session_timeout_ms),
    "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": str(BROKER.initial_rebalance_delay_ms),
    "MUSTER_GROUP_MAX_SIZE": str(BROKER.max_size),
    **leases.LASTING,
}
"""The recorded broker's settings, for the processes, and a lease that lasts longer than a script."""

SAMPLE = 96
"""How many scripts are played unless somebody asks for another number."""

WAITS_MAX_MS = 6_000
"""A script of the sample waits for no longer, in all."""
_PATIENCE_S = 30.0
_CALL_S = 300.0
_BEAT_S = 1.0
_TOGETHER = 16
_STEP_LENGTHS_MS = (0, traces_judge.SETTLE_MS, 1_000)
_FRAMES: dict[type[Any], str] = {
    coordinator_pb2.JoinGroupRequest: "join_group",
    coordinator_pb2.SyncGroupRequest: "sync_group",
    coordinator_pb2.HeartbeatRequest: "heartbeat",
    coordinator_pb2.LeaveGroupRequest: "leave_group",
    coordinator_pb2.OffsetCommitRequest: "offset_commit",
    coordinator_pb2.OffsetFetchRequest: "offset_fetch",
}

Caller = Callable[[GroupRequest], Awaitable[GroupResponse]]


# --- the sample


@dataclass(frozen=True)
class Chosen:
    """A script of the sample.

    Attributes:
        script: what to play.
        generation: generation of the used and empty group in which it starts; 0: there is none.
        answers: what Muster's core answers after each step.
    """

    script: Script
    generation: int
    answers: list[Answers]


def sample(scripts: Sequence[Script], count: int) -> tuple[list[Chosen], Counter[str]]:
    """Chooses scripts that can be played in real time: of each kind about the same number.

    Args:
        scripts: all.
        count: how many are wanted.

    Returns:
        The chosen ones, and why how many others were passed over.
    """
    passed_over: Counter[str] = Counter()
    chosen: list[Chosen] = []
    kinds = [
        iter(_spread([s for s in scripts if s.kind == kind])) for kind in {s.kind: None for s in scripts}
    ]
    while kinds and len(chosen) < count:
        kind = kinds.pop(0)
        for script in kind:
            found = _chosen(script)
            if isinstance(found, Chosen):
                chosen.append(found)
                kinds.append(kind)
                break
            passed_over[found] += 1
    return chosen, passed_over


def _spread(scripts: list[Script]) -> list[Script]:
    """The scripts in an order of which any beginning is spread over the whole."""
    if len(scripts) < 3:
        return scripts
    return [*_spread(scripts[::2]), *_spread(scripts[1::2])]


def _chosen(script: Script) -> Chosen | str:
    """The script with what it needs, or why it cannot be played in real time."""
    verdict = traces_judge.judge(script)
    if not verdict.matches:
        return "differs in virtual time"
    if verdict.needed["other leader"]:
        return "another member was elected"
    generation = traces_judge.generation_before(script) if verdict.needed["used group"] else 0
    if verdict.needed["timing"] or generation == 1:
        return "depends on how long a step takes"
    if sum(step.argument for step in script.steps if step.operation == "wait") > WAITS_MAX_MS:
        return f"waits for more than {WAITS_MAX_MS / 1_000:g} s"
    plays = [_in_virtual_time(script, generation, step_ms) for step_ms in _STEP_LENGTHS_MS]
    if any(play != plays[0] for play in plays):
        return "depends on how long a step takes"
    return Chosen(script, generation, plays[0])


def _in_virtual_time(script: Script, generation: int, step_ms: int) -> list[Answers]:
    return VirtualPlayer(script, Circumstances(step_ms, generation)).play()


# --- two ways to call


class Unary:
    """Calls a coordinator by unary calls.

    Args:
        channel: to the coordinator.
    """

    name = "unary calls"

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)

    async def open(self) -> None:
        """There is nothing to open."""

    async def call(self, request: GroupRequest) -> GroupResponse:
        """Makes a call and waits for its answer."""
        method = getattr(self._stub, type(request).__name__.removesuffix("Request"))
        answer: GroupResponse = await method(request, timeout=_CALL_S)
        return answer

    async def close(self) -> None:
        """There is nothing to close."""


class Stream(Unary):
    """Calls a coordinator by frames of a session stream; what has no frame goes as a unary call.

    Args:
        channel: to the coordinator.
    """

    name = "frames of a session stream"

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)
        stub: Any = session_pb2_grpc.GroupSessionServiceStub(channel)
        self._stream = stub.Session()
        self._writing = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[GroupResponse]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Says Hello; from now on beats go out and answers are taken in."""
        hello = session_pb2.Hello(client_id="conformance", beat_interval_ms=int(_BEAT_S * 1_000))
        await self._write(session_pb2.ClientFrame(hello=hello))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def call(self, request: GroupRequest) -> GroupResponse:
        """Makes a call and waits for its answer."""
        kind = _FRAMES.get(type(request))
        if kind is None:
            return await super().call(request)
        number = next(self._numbers)
        answer: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        call = session_pb2.Call(call_id=number)
        getattr(call, kind).CopyFrom(request)
        await self._write(session_pb2.ClientFrame(call=call))
        return await answer

    async def close(self) -> None:
        """Ends the stream."""
        for task in self._tasks:
            task.cancel()
        self._stream.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, frame: session_pb2.ClientFrame) -> None:
        async with self._writing:
            await self._stream.write(session_pb2.SessionRequest(frames=[frame]))

    async def _beat(self) -> None:
        for number in itertools.count(1):
            await self._write(session_pb2.ClientFrame(beat=session_pb2.Beat(number=number)))
            await asyncio.sleep(_BEAT_S)

    async def _read(self) -> None:
        while (message := await self._stream.read()) is not grpc.aio.EOF:
            for frame in message.frames:
                kind = frame.WhichOneof("kind")
                assert kind in ("reply", "beat_ack"), f"nobody is attached, and the server said {frame}"
                if kind == "reply":
                    self._take(frame.reply)

    def _take(self, reply: session_pb2.Reply) -> None:
        waiting = self._waiting.pop(reply.call_id)
        kind = reply.WhichOneof("response")
        if waiting.done():
            return  # the script is over
        if kind is None or kind == "refused":
            waiting.set_exception(AssertionError(f"refused: {reply.refused.message}"))
        else:
            waiting.set_result(getattr(reply, kind))


WAYS: tuple[type[Unary], ...] = (Unary, Stream)
"""Unary calls, and the frames of a stream."""


# --- playing


async def play_on_processes(folder: Path, chosen: Sequence[Chosen]) -> dict[str, list[Verdict]]:
    """Starts a cluster of processes and plays scripts on it; returns what each came to, by way of calling.

    Args:
        folder: for the cluster's data.
        chosen: the scripts.
    """
    async with server_cluster.running(folder, coordinators=1, settings=SETTINGS) as cluster:
        address = await server_cluster.find(cluster.servers, "g")
        return {way.name: await play(address, chosen, way) for way in WAYS}


async def play(address: str, chosen: Sequence[Chosen], way: type[Unary]) -> list[Verdict]:
    """Plays scripts on a coordinator, several at a time; returns what each came to.

    Args:
        address: of the coordinator.
        chosen: the scripts.
        way: how the calls are made.
    """
    room = asyncio.Semaphore(_TOGETHER)

    async def one(each: Chosen) -> Verdict:
        async with room, grpc.aio.insecure_channel(address, options=_OWN_CONNECTION) as channel:
            caller = way(channel)
            await caller.open()
            try:
                return await _play_one(each, caller)
            finally:
                await caller.close()

    return await asyncio.gather(*map(one, chosen))


_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


async def _play_one(chosen: Chosen, caller: Unary) -> Verdict:
    script = chosen.script
    group_id = f"recorded {script.name} {caller.name}"
    expected_after = _answered_by(chosen.answers)
    behind = coordinator_pb2.LeaveGroupRequest(
        group_id=group_id, members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="nobody")]
    )

    async def settle(number: int, calls: traces_live.OpenCalls) -> None:
        step = script.steps[number]
        if step.operation == "wait":
            await asyncio.sleep(step.argument / 1_000)
        else:
            await asyncio.sleep(0)  # lets the call go first
        await caller.call(behind)
        expected = [calls[call] for call in expected_after[number] if call in calls]
        if expected:
            await asyncio.wait(expected, timeout=_PATIENCE_S)

    await _served(behind, caller)
    if chosen.generation:
        await _use_up(group_id, caller.call, chosen.generation)
    verdict = traces_judge.compare(script, await traces_live.play(script, group_id, caller.call, settle))
    if chosen.generation:
        verdict.needed["used group"] += 1
    return verdict


async def _served(behind: coordinator_pb2.LeaveGroupRequest, caller: Unary) -> None:
    """Waits until the coordinator serves the group."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            answer = await caller.call(behind)
            assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
            if answer.error_code == 0:
                return
            await asyncio.sleep(0.05)


def _answered_by(answers: Sequence[Answers]) -> list[list[int]]:
    """Which calls are answered up to and with each step."""
    return [[call for earlier in answers[: number + 1] for call in earlier] for number in range(len(answers))]


async def _use_up(group_id: str, call: Caller, generation: int) -> None:
    """Leaves a group behind that is empty and has reached a generation: 2 or more."""
    joins = [
        Step("join", "z", {"session": 60_000, "rebalance": 60_000, "protocols": [["range", f"m{number}"]]})
        for number in range(generation)  # the first one is told its id, each other one starts a generation
    ]
    steps = [*joins, Step("leave", "z", {})]
    script = Script("before-0", steps, [{} for _ in steps])

    async def settle(_: int, calls: traces_live.OpenCalls) -> None:
        await asyncio.wait(calls.values())

    played = await traces_live.play(script, group_id, call, settle)
    assert max(answer.get("generation", -1) for each in played for answer in each.values()) == generation - 1
