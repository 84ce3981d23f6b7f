"""Calls that their caller gives up: they count on for a while (LIM-62), and are un-parked in turns."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from coordinator.test_coordinator_quotas import commit
from muster_coordinator.api import admission
from muster_coordinator.api.callers import Callers
from muster_coordinator.api.servicer import GroupCoordinatorServicer
from muster_coordinator.session.calls import StreamCalls
from muster_core.events import GroupRequest, GroupResponse
from muster_protos.muster.v1 import coordinator_pb2, session_pb2
from muster_protos.muster.v1.coordinator_pb2 import JoinGroupRequest
from muster_runtime.loop_share import LoopTurn
from muster_runtime.rpc.refusals import Unavailable


class Counted:
    """Counts calls that have not ended."""

    def __init__(self) -> None:
        self.open = 0
        self.over = asyncio.Event()

    def admit(self, *_: object) -> admission.Ended:
        self.open += 1
        return self._ended

    def _ended(self) -> None:
        self.open -= 1
        self.over.set()


class Refusing(Exception):
    """A call that fails."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GIVEN_UP_S", 0.05)


@pytest.mark.parametrize("how", ["answered", "failed", "given up"])
async def test_a_unary_call_counts_until_it_is_answered_and_longer_when_it_is_given_up(how: str) -> None:
    counted, begun = Counted(), asyncio.Event()

    async def answer(_: GroupRequest, __: str) -> GroupResponse:
        begun.set()
        if how == "given up":
            await asyncio.Event().wait()
        if how == "failed":
            raise Refusing
        return coordinator_pb2.OffsetCommitResponse()

    async def encoded(_: GroupResponse, __: str) -> bytes | None:
        return None

    context = SimpleNamespace(peer=lambda: "unix:x")
    servicer = GroupCoordinatorServicer(answer, encoded, Callers(), counted.admit)
    call = asyncio.create_task(servicer.OffsetCommit(commit("g", 1), context))
    await begun.wait()
    if how == "given up":
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert counted.open == (how == "given up"), "its records may be on their way"
    await counted.over.wait()
    assert counted.open == 0


async def test_calls_of_a_stream_that_ends_count_on_for_a_while() -> None:
    counted = Counted()

    async def answer_judged(*_: object) -> GroupResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody answers it")

    nowhere: Any = SimpleNamespace()
    answering = SimpleNamespace(
        takes_turn=lambda _: False,
        rights=SimpleNamespace(judge=lambda *_: None),
        at_once=lambda _: None,
        answer_judged=answer_judged,
        loop_turn=LoopTurn(0.002),
    )
    calls = StreamCalls(
        cast(Any, answering), "", 10, nowhere, nowhere, nowhere, lambda: None, admit=counted.admit
    )
    calls.start(session_pb2.Call(call_id=1, offset_commit=commit("g", 1)))
    calls.cancel(lambda: None)
    assert counted.open == 1
    await counted.over.wait()
    assert counted.open == 0


class Parking:
    """A shard that parks all calls."""

    def __init__(self) -> None:
        self.parked: dict[int, Any] = {}
        self.abandoned: list[int] = []

    def start(self, _: object, __: object, answered: Any) -> int:
        number = len(self.parked) + 1
        self.parked[number] = answered
        return number

    def abandon(self, number: int) -> None:
        self.abandoned.append(number)


@pytest.mark.parametrize(("parked", "at_once"), [(0, 0), (64, 64), (65, 0), (2_500, 0)])
async def test_many_parked_calls_of_a_stream_that_ends_are_given_up_in_turns(
    parked: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-68: 2,500 at a stretch held the loop for 35 ms. What follows their end comes after all of them."""
    shard, turn = Parking(), LoopTurn(0.002)
    monkeypatch.setattr(turn, "took", lambda who, _: LoopTurn.took(turn, who, 0.001))
    answering = SimpleNamespace(
        takes_turn=lambda _: False,
        rights=SimpleNamespace(judge=lambda *_: None),
        at_once=lambda _: shard,
        loop_turn=turn,
    )
    nowhere: Any = SimpleNamespace()
    calls = StreamCalls(cast(Any, answering), "", 5_000, nowhere, nowhere, nowhere, lambda: None)
    for number in range(parked):
        calls.start(session_pb2.Call(call_id=number + 1, join_group=JoinGroupRequest(group_id="g")))
    numbers = list(shard.parked)
    over: list[int] = []
    calls.cancel(lambda: over.append(len(shard.abandoned)))
    assert len(shard.abandoned) == at_once
    assert over == ([parked] if at_once == parked else [])
    answered = numbers[-1:] if over == [] else []
    for number in answered:  # its shard is given up meanwhile, say, and serves again with numbers from one
        shard.parked[number](coordinator_pb2.JoinGroupResponse())
    longest = before = 0
    while not over:
        await asyncio.sleep(0)
        longest, before = max(longest, len(shard.abandoned) - before), len(shard.abandoned)
    assert longest <= 2 * 64
    assert shard.abandoned == [number for number in numbers if number not in answered]
    assert over == [len(shard.abandoned)]


class Waiting:
    """Answers no call while it is open; each waits in a task of its own.

    Attributes:
        ended: how many calls were given up.
        fails: whether they fail once they may go on, instead of being answered.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.ended = 0
        self.fails = fails
        self.go_on = asyncio.Event()
        self.rights = SimpleNamespace(judge=lambda *_: None)
        self.loop_turn = LoopTurn(0.002)

    async def answer_judged(self, *_: object) -> GroupResponse:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        if self.fails:
            raise Unavailable("try again", 100)
        return coordinator_pb2.OffsetCommitResponse()

    async def encoded(self, *_: object) -> bytes | None:
        return None

    @staticmethod
    def takes_turn(_: GroupRequest) -> bool:
        return False

    @staticmethod
    def at_once(_: GroupRequest) -> None:
        return None


async def opened(answering: Waiting, number: int, written: list[session_pb2.ServerFrame]) -> StreamCalls:
    """A stream with so many calls that wait."""

    def frame(_: int) -> session_pb2.ServerFrame:
        written.append(session_pb2.ServerFrame())
        return written[-1]

    nowhere: Any = SimpleNamespace()
    calls = StreamCalls(cast(Any, answering), "", 5_000, nowhere, frame, nowhere, lambda: None)
    for call_id in range(1, number + 1):
        calls.start(session_pb2.Call(call_id=call_id, offset_commit=commit("g", 1)))
    await asyncio.sleep(0)
    return calls


@pytest.mark.parametrize("number", [1, 64, 2_500])
async def test_calls_in_tasks_of_a_stream_that_ends_are_given_up_in_turns_too(number: int) -> None:
    """LIM-68: ten thousand that waited for a turn held the loop for 150 ms.

    What follows comes after all of them: to give up a join that they have parked is a sign of life.
    """
    answering = Waiting()
    calls = await opened(answering, number, [])
    over: list[int] = []
    calls.cancel(lambda: over.append(answering.ended))
    longest = before = 0
    while not over:
        await asyncio.sleep(0)
        longest, before = max(longest, answering.ended - before), answering.ended
    assert over == [number]
    assert longest <= 3 * 64


@pytest.mark.parametrize("fails", [False, True])
async def test_what_comes_of_a_call_after_the_end_of_its_stream_is_written_nowhere(*, fails: bool) -> None:
    """It would count as unread for ever."""
    answering = Waiting(fails=fails)
    written: list[session_pb2.ServerFrame] = []
    calls = await opened(answering, 100, written)
    over = asyncio.Event()
    calls.cancel(over.set)
    answering.go_on.set()
    await asyncio.wait_for(over.wait(), 60)
    assert not written
    assert answering.ended == 64, "the others had their answers by then"
