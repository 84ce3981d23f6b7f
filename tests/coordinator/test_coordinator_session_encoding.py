"""Large answers on a session stream."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from muster_coordinator.session.calls import StreamCalls
from muster_coordinator.session.encoding import reply_message
from muster_coordinator.session.outbox import Outbox, Queued
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

pytestmark = pytest.mark.quick


def fetched(partitions: int) -> coordinator_pb2.OffsetFetchResponse:
    answer = coordinator_pb2.OffsetFetchResponse()
    topic = answer.groups.add(group_id="g").topics.add(name="t")
    for number in range(partitions):
        topic.partitions.add(partition=number, offset=1, metadata="m" * 100)
    return answer


@pytest.mark.parametrize(("call_id", "partitions"), [(1, 0), (127, 1), (128, 200), (1 << 63, 30_000)])
def test_an_answer_is_read_as_if_it_had_been_put_into_a_frame(call_id: int, partitions: int) -> None:
    expected = session_pb2.SessionResponse()
    reply = expected.frames.add().reply
    reply.call_id = call_id
    reply.offset_fetch.CopyFrom(fetched(partitions))
    body = fetched(partitions).SerializeToString()
    message = reply_message(call_id, "offset_fetch", [body[:7], body[7:]])
    assert session_pb2.SessionResponse.FromString(b"".join(message)) == expected


def test_what_comes_after_a_large_answer_comes_after_it() -> None:
    outbox = Outbox(1 << 20, queued := Queued())
    outbox.frame(10).beat_ack.number = 1
    outbox.add(b"large")
    outbox.frame(10).beat_ack.number = 2
    outbox.frame(10).beat_ack.number = 3

    def numbers(message: object) -> list[int]:
        assert isinstance(message, session_pb2.SessionResponse)
        return [frame.beat_ack.number for frame in message.frames]

    assert numbers(outbox.take()) == [1]
    outbox.written()
    assert outbox.take() == b"large"
    outbox.written()
    assert numbers(outbox.take()) == [2, 3]
    outbox.written()
    assert (outbox.bytes, queued.bytes, bool(outbox)) == (0, 0, False)


def test_a_message_that_is_on_its_way_gets_no_further_frame() -> None:
    outbox = Outbox(1 << 20, Queued())
    outbox.frame(10).beat_ack.number = 1
    taken = outbox.take()
    outbox.frame(10).beat_ack.number = 2
    assert isinstance(taken, session_pb2.SessionResponse)
    assert len(taken.frames) == 1
    outbox.clear()
    outbox.frame(10).beat_ack.number = 3
    assert bool(outbox)


@pytest.mark.parametrize(("partitions", "is_large"), [(10, False), (2_000, True)])
def test_a_large_answer_is_not_copied_into_a_frame(partitions: int, *, is_large: bool) -> None:
    """LIM-48."""
    frames: list[session_pb2.ServerFrame] = []
    messages: list[bytes] = []

    def frame(_: int) -> session_pb2.ServerFrame:
        frames.append(session_pb2.ServerFrame())
        return frames[-1]

    nowhere = cast(Any, SimpleNamespace())
    calls = StreamCalls(nowhere, "10.0.0.1", 10, nowhere, frame, messages.append, lambda: None)
    calls._open[7] = None
    calls._answered(7, "offset_fetch", fetched(partitions))
    assert (len(frames), len(messages)) == ((0, 1) if is_large else (1, 0))
    sent = session_pb2.SessionResponse.FromString(messages[0]).frames[0] if is_large else frames[0]
    assert sent.reply.call_id == 7
    assert sent.reply.offset_fetch == fetched(partitions)
