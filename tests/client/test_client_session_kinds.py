"""What a stream says to a member whose group has changed its kind, when it comes after the member has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest_asyncio
from muster._session.channels import ChannelPool
from muster._session.session import Session
from muster_protos.muster.v1 import common_pb2, session_pb2

CLASSIC = common_pb2.ERROR_CODE_GROUP_CLASSIC
CONVERTED = common_pb2.ERROR_CODE_GROUP_CONVERTED
KEY = ("g", "m")


class Heard:
    """A member of either kind that notes what it is called with."""

    beat_interval_ms = 500
    attach = session_pb2.Attach(group_id="g", member_id="m")

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class _NoChannels:
    """Channels of which none is ever there."""

    @asynccontextmanager
    async def use(self, _: str) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


@pytest_asyncio.fixture
async def stream() -> AsyncIterator[Session]:
    session = Session("a", cast(ChannelPool, _NoChannels()), lambda *_: None)
    yield session
    session._task.cancel()
    await asyncio.wait((session._task,))


def changed(code: common_pb2.ErrorCode.ValueType) -> session_pb2.GroupChanged:
    return session_pb2.GroupChanged(group_id="g", member_id="m", error_code=code, shard_epoch=1)


def attached(
    code: common_pb2.ErrorCode.ValueType = common_pb2.ERROR_CODE_NONE,
) -> session_pb2.AttachResult:
    return session_pb2.AttachResult(group_id="g", member_id="m", error_code=code, shard_epoch=1)


async def test_news_of_a_conversion_is_nothing_to_who_goes_on_already(stream: Session) -> None:
    """INC-142: it has heard it as an answer, and its calls have put it onto the stream as the other kind."""
    incremental = Heard()
    stream.carry(KEY, incremental)
    stream._group_changed(changed(CONVERTED))
    assert incremental.calls == []
    assert stream.is_carrying(KEY, incremental)
    stream._group_changed(changed(CLASSIC))
    assert incremental.calls == ["changed"]


async def test_news_of_the_way_back_is_nothing_to_a_classic_member(stream: Session) -> None:
    """INC-180."""
    classic = Heard()
    stream.attach(KEY, classic)
    stream._group_changed(changed(CLASSIC))
    assert classic.calls == []
    assert stream.carries(KEY, classic)
    stream._group_changed(changed(CONVERTED))
    assert classic.calls == ["changed"]


async def test_an_attach_that_met_a_conversion_leaves_nothing_for_the_next_one(stream: Session) -> None:
    """INC-148: else the one after the way back would wait for its answer for ever, and beats for it count."""
    before, incremental, after = Heard(), Heard(), Heard()
    stream.attach(KEY, before)
    list(stream._members.frames())  # it is sent, and the group is incremental before it arrives
    stream._group_changed(changed(CONVERTED))
    stream.carry(KEY, incremental)
    stream._attach_result(attached(CONVERTED))
    stream._attach_result(attached())
    assert incremental.calls == ["on_stream"]
    stream._group_changed(changed(CLASSIC))
    stream.attach(KEY, after)
    list(stream._members.frames())
    stream._attach_result(attached())
    assert after.calls == ["attached"]
    assert stream.is_attached(KEY, after)
    assert before.calls == ["changed"], "it has heard of the conversion, and is asked nothing more"
