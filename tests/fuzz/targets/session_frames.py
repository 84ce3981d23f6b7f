"""Any frames on session streams: answered, or the stream ends with a reason; the coordinator never fails.

Streams come and go, break, and send bytes that are no message. Afterwards what is served is what the log
says, the log breaks no promise, and nothing was logged as an error.
"""

import asyncio
from collections import deque
from typing import Any

import grpc
from kit.lives.drawn_messages import DrawnMessages
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2, session_pb2
from muster_runtime.rpc._guard import _decoder

from fuzz import local
from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 4_096
STEPS = 60
STREAMS = 3

_CALLS = {
    "join_group": coordinator_pb2.JoinGroupRequest,
    "sync_group": coordinator_pb2.SyncGroupRequest,
    "heartbeat": coordinator_pb2.HeartbeatRequest,
    "leave_group": coordinator_pb2.LeaveGroupRequest,
    "offset_commit": coordinator_pb2.OffsetCommitRequest,
    "offset_fetch": coordinator_pb2.OffsetFetchRequest,
    "consumer_group_heartbeat": incremental_pb2.ConsumerGroupHeartbeatRequest,
}
_OFTEN = ("join_group", "sync_group", "join_group", "sync_group", "consumer_group_heartbeat", *_CALLS)
_PAUSES_S = (0.001, 0.01, 0.06, 0.5, 3.0)


def play(data: bytes) -> None:
    story = Story(Draw(data))
    local.run(story.play)


class Stream(local.Caller):
    """A stream, as its client and its server have it."""

    def __init__(self, world: local.World) -> None:
        super().__init__()
        handler = world.handler(local.SESSIONS)
        self._decode = _decoder(handler.request_deserializer, local.REQUEST_MAX_BYTES, by_value=False)
        self._encode = handler.response_serializer
        self._coming: deque[bytes | None] = deque()
        self._news = asyncio.Event()
        self.said: list[session_pb2.ServerFrame] = []
        self.requests: dict[int, Any] = {}
        self.beats = 0
        self.task = asyncio.get_running_loop().create_task(handler.stream_stream(None, self))

    def send(self, body: bytes | None) -> None:
        """A message of the client; None: it says no more."""
        self._coming.append(body)
        self._news.set()

    async def read(self) -> Any:
        """What the server reads."""
        while not self._coming:
            self._news.clear()
            await self._news.wait()
        body = self._coming.popleft()
        return grpc.aio.EOF if body is None else self._decode(body)

    async def write(self, message: Any) -> None:
        """What the server writes."""
        encoded = message if isinstance(message, bytes) else self._encode(message)  # a large one is already
        self.said += session_pb2.SessionResponse.FromString(encoded).frames


class Story:
    """Frames that bytes decide."""

    def __init__(self, source: Draw) -> None:
        self._source = source
        self._messages = DrawnMessages(source)
        self._streams: list[Stream] = []
        self._last_id = 0

    async def play(self, world: local.World) -> None:
        """Sends the frames, and checks all that is left."""
        source = self._source
        for _ in range(STEPS):
            if source.over:
                break
            if source.random() < 0.15:
                await asyncio.sleep(source.choice(_PAUSES_S))
            else:
                self._step(world)
            await asyncio.sleep(0.001)
            self._take(world)
        await asyncio.sleep(1.0)
        self._take(world)
        world.check()
        for stream in self._streams:
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in self._streams), return_exceptions=True)

    def _step(self, world: local.World) -> None:
        source = self._source
        self._streams = [stream for stream in self._streams if not stream.task.done()]
        if not self._streams or (len(self._streams) < STREAMS and source.random() < 0.1):
            self._streams.append(Stream(world))
            if source.random() < 0.95:
                hello = session_pb2.Hello(client_id="c", beat_interval_ms=500, knows_unsure=True)
                self._send(self._streams[-1], [session_pb2.ClientFrame(hello=hello)])
            return
        stream = source.choice(self._streams)
        what = source.random()
        if what < 0.03:
            stream.task.cancel()
        elif what < 0.06:
            stream.send(None)
        elif what < 0.1:
            stream.send(source.take(source.randrange(40)))
        else:
            self._send(stream, [self._frame(stream) for _ in range(source.choice((1, 1, 1, 2, 5)))])

    def _send(self, stream: Stream, frames: list[session_pb2.ClientFrame]) -> None:
        body = session_pb2.SessionRequest(frames=frames).SerializeToString()
        stream.send(self._messages.changed(body) if self._source.random() < 0.05 else body)

    def _frame(self, stream: Stream) -> session_pb2.ClientFrame:
        source = self._source
        what = source.random()
        if what < 0.65:
            name = source.choice(_OFTEN)
            self._last_id += source.random() < 0.97
            call = session_pb2.Call(call_id=self._last_id)
            getattr(call, name).CopyFrom(self._messages.message(_CALLS[name]))
            if name == "consumer_group_heartbeat" and source.random() < 0.9:
                call.connection = source.choice((1, 1, 1, 2, 3))
            stream.requests[self._last_id] = getattr(call, name)
            return session_pb2.ClientFrame(call=call)
        if what < 0.8:
            return session_pb2.ClientFrame(attach=self._messages.message(session_pb2.Attach))
        if what < 0.85:
            return session_pb2.ClientFrame(detach=self._messages.message(session_pb2.Detach))
        if what < 0.97:
            stream.beats += source.random() < 0.97
            seen = stream.beats - source.choice((1, 1, 2, 0))
            return session_pb2.ClientFrame(
                beat=session_pb2.Beat(number=stream.beats, acknowledged=max(0, seen))
            )
        frame: session_pb2.ClientFrame = self._messages.message(session_pb2.ClientFrame)
        return frame

    def _take(self, world: local.World) -> None:
        for stream in self._streams:
            said, stream.said = stream.said, []
            for frame in said:
                kind = frame.WhichOneof("kind")
                if kind == "goodbye" and "foresee" in frame.goodbye.message:
                    raise Broken(f"the server failed: {frame}")
                if kind == "reply":
                    self._take_reply(world, stream, frame.reply)
            if stream.task.done() and not stream.task.cancelled() and (error := stream.task.exception()):
                raise error

    def _take_reply(self, world: local.World, stream: Stream, reply: Any) -> None:
        kind = reply.WhichOneof("response")
        request = stream.requests.pop(reply.call_id, None)
        if kind is None or kind == "refused":
            return
        answer = getattr(reply, kind)
        world.check_answer(answer)
        if request is not None:
            self._messages.learn(request, answer)
