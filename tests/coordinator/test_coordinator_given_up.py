"""Calls that their caller gives up count on for what they may have brought (LIM-62)."""

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
    )
    calls = StreamCalls(
        cast(Any, answering), "", 10, nowhere, nowhere, nowhere, lambda: None, admit=counted.admit
    )
    calls.start(session_pb2.Call(call_id=1, offset_commit=commit("g", 1)))
    calls.cancel()
    assert counted.open == 1
    await counted.over.wait()
    assert counted.open == 0
