"""Beats of a session stream and the lease's deadline."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from coordinator.test_coordinator_shard import Bench
from muster_coordinator.api.rights import Rights
from muster_coordinator.session.dependencies import StreamDependencies
from muster_coordinator.session.stream import SessionStream
from muster_coordinator.settings import SessionSettings
from muster_coordinator.shard.asking import ask
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_core import error_code
from muster_core.events import Attach, Beat, Push
from muster_protos.muster.v1 import coordinator_pb2, session_pb2
from muster_runtime.rpc.access.access import Access


class Willing:
    """A shard that hears every beat, as one does whose deadline passes just after."""

    def __init__(self) -> None:
        self.epoch = 7
        self.suspended = False
        self.heard: list[Beat] = []

    def beat(self, event: Beat) -> int:
        self.heard.append(event)
        return error_code.NONE

    def suspend(self) -> None:
        self.suspended = True


def stream(
    *, sure: bool, knows_unsure: bool = True, says_unsure: bool = True, shard: Willing | None = None
) -> SessionStream:
    """A stream with one member."""
    around = StreamDependencies(
        SessionSettings(),
        cast(Any, SimpleNamespace(rights=Rights(Access()))),
        {},
        lambda _: None,
        lambda _: sure,
        lambda: 1_000,
        says_unsure=lambda: says_unsure,
    )
    opened = SessionStream(1, "10.0.0.1", around)
    opened._hello(session_pb2.Hello(beat_interval_ms=500, knows_unsure=knows_unsure))
    opened.members.add(cast(OwnedShard, shard or Willing()), ("g", "m"))
    return opened


def beaten(opened: SessionStream, number: int) -> session_pb2.BeatAck:
    opened._attachments.beat(session_pb2.Beat(number=number))
    message = opened._outbox.take()
    assert isinstance(message, session_pb2.SessionResponse)
    (frame,) = message.frames
    return frame.beat_ack


async def test_news_of_a_join_come_after_the_answer_to_it() -> None:
    """INC-20: a member that hears them before the answer drops them, and hears of them only when it asks."""
    opened, shard = stream(sure=True), cast(OwnedShard, Willing())

    def tell(member_seq: int, offset: int) -> None:
        news = session_pb2.MemberNews(group_id="g", member_seq=member_seq)
        news.response.member_id, news.response.version.offset = "m", offset
        opened.pushed(shard, Push(1, news))

    tell(1, 5)
    tell(1, 6)
    opened._frame(10).reply.call_id = 9  # to its next join
    tell(2, 8)
    tell(2, 9)
    message = opened._outbox.take()
    assert isinstance(message, session_pb2.SessionResponse)
    assert [frame.reply.call_id or frame.member_news.response.version.offset for frame in message.frames] == [
        6,
        9,
        9,
    ]


async def test_an_acknowledgement_names_its_beat() -> None:
    opened = stream(sure=True)
    for number in (1, 2, 7):
        ack = beaten(opened, number)
        assert (ack.number, list(ack.unheard)) == (number, [])


async def test_an_acknowledgement_is_checked_when_it_is_built() -> None:
    ack = beaten(stream(sure=False), 1)
    assert [(u.group_id, u.member_id, u.error_code) for u in ack.unheard] == [
        ("g", "m", error_code.COORDINATOR_NOT_AVAILABLE)
    ]


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("says", [True, False])
async def test_unsure_is_said_with_the_feature_to_those_who_know_it(knows: bool, says: bool) -> None:
    """And the shard is suspended first, since a suspension counts whom it may have been said to."""
    shard = Willing()
    (missed,) = beaten(stream(sure=False, knows_unsure=knows, says_unsure=says, shard=shard), 1).unheard
    assert shard.suspended
    assert (missed.unsure, missed.shard_epoch) == ((True, 7) if knows and says else (False, 0))


async def test_a_shard_hears_what_its_members_have_heard() -> None:
    shard = Willing()
    opened = stream(sure=True, shard=shard)
    opened._attachments.beat(session_pb2.Beat(number=3, acknowledged=2))
    assert shard.heard == [Beat(1, 3, 2)]


@pytest.mark.parametrize("event", ["beat", "attach"])
async def test_a_beat_after_the_deadline_prolongs_nobody(event: str) -> None:
    bench = Bench()
    await bench.serve()
    bench.now_ms = bench.deadline_ms - 1
    assert bench.shard.beat(Beat(1)) == error_code.NONE
    bench.now_ms = bench.deadline_ms
    request = session_pb2.Attach(group_id="g", member_id="m")
    heard = bench.shard.beat(Beat(1)) if event == "beat" else bench.shard.attach(Attach(1, request))
    assert heard == error_code.COORDINATOR_NOT_AVAILABLE
    assert bench.shard.suspended
    answer: Any = await ask(bench.shard, coordinator_pb2.HeartbeatRequest(group_id="g", member_id="m"), "h")
    assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
