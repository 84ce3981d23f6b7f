"""A scripted coordinator that serves sessions: group calls on a stream are answered as unary ones are.

`script["Attach"]` and `script["Beat"]` hold answers too; what is answered `None` gets no answer. Tests
reach the open streams in `streams`, newest last, to say something, to part, or to break them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from client.client_scripted import Coordinator
from muster_protos.muster.v1 import session_pb2, session_pb2_grpc

METHODS = {
    "join_group": "JoinGroup",
    "sync_group": "SyncGroup",
    "heartbeat": "Heartbeat",
    "leave_group": "LeaveGroup",
    "offset_commit": "OffsetCommit",
    "offset_fetch": "OffsetFetch",
    "consumer_group_heartbeat": "ConsumerGroupHeartbeat",
}


class Aborted(Exception):
    pass


class _CallContext:
    """What a unary handler needs of its context."""

    async def abort(self, status: grpc.StatusCode, details: str, _trailers: object = ()) -> None:
        raise Aborted(status, details)


class Stream:
    """One session as the server sees it."""

    def __init__(self, context: Any) -> None:
        self.messages: list[session_pb2.SessionRequest] = []
        self.over: asyncio.Future[grpc.StatusCode | None] = asyncio.get_running_loop().create_future()
        self.half_closed = False
        self._context = context
        self._lock = asyncio.Lock()

    def frames(self, kind: str) -> list[Any]:
        frames = [frame for message in self.messages for frame in message.frames]
        return [getattr(frame, kind) for frame in frames if frame.WhichOneof("kind") == kind]

    async def say(self, **frames: Any) -> None:
        """Each keyword is a frame."""
        made = [session_pb2.ServerFrame(**{kind: frame}) for kind, frame in frames.items()]
        async with self._lock:
            await self._context.write(session_pb2.SessionResponse(frames=made))

    async def part(self, reason: session_pb2.GoodbyeReason.ValueType) -> None:
        await self.say(goodbye=session_pb2.Goodbye(reason=reason, message="as the test wants it"))
        self.end()

    def end(self, status: grpc.StatusCode | None = None) -> None:
        """Without a status in order, with one by breaking."""
        if not self.over.done():
            self.over.set_result(status)


@dataclass
class StreamingCoordinator(Coordinator, session_pb2_grpc.GroupSessionServiceServicer):
    streams: list[Stream] = field(default_factory=list)
    refuses: grpc.StatusCode | None = None
    mute: bool = False
    unsure: Callable[[], session_pb2.BeatAck] | None = None

    def serve(self, server: grpc.aio.Server) -> None:
        super().serve(server)
        session_pb2_grpc.add_GroupSessionServiceServicer_to_server(self, server)

    def note(self, kind: str, value: Any) -> None:
        self.seen.append((kind, value))
        self.changed.set()

    async def Session(self, request_iterator: Any, context: Any) -> Any:  # type: ignore[override]  # the stubs know no servicers that are async
        if self.refuses is not None:
            self.note("Refused", None)
            await context.abort(self.refuses, "as the test wants it")
        stream = Stream(context)
        self.streams.append(stream)
        self.note("Session", stream)
        tasks: set[asyncio.Task[None]] = set()
        reader = asyncio.create_task(self._listen(stream, request_iterator, tasks))
        try:
            await asyncio.wait((reader, stream.over), return_when=asyncio.FIRST_COMPLETED)
            status = stream.over.result() if stream.over.done() else None
        finally:
            for task in (reader, *tasks):
                task.cancel()
            stream.end()
        if status is not None:
            await context.abort(status, "as the test wants it")

    async def _listen(self, stream: Stream, requests: Any, tasks: set[asyncio.Task[None]]) -> None:
        async for message in requests:
            stream.messages.append(message)
            for frame in message.frames:
                kind = frame.WhichOneof("kind")
                value = getattr(frame, kind)
                if kind == "attach":
                    await self._attach(stream, value)
                elif kind == "beat":
                    await self._beat(stream, value)
                elif kind == "call":
                    task = asyncio.create_task(self._call(stream, value))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    self.note(kind.capitalize(), value)
        stream.half_closed = True

    async def _scripted(self, name: str, value: Any, default: Any) -> Any:
        self.note(name, value)
        step = self.script[name].popleft() if self.script[name] else default
        result = step(value) if callable(step) else step
        return await result if isinstance(result, Awaitable) else result

    async def _attach(self, stream: Stream, attach: Any) -> None:
        default = session_pb2.AttachResult(shard_epoch=self.shard_epoch)
        scripted = await self._scripted("Attach", attach, default)
        if scripted is None:
            return
        result = session_pb2.AttachResult()
        result.CopyFrom(scripted)
        result.group_id, result.member_id = attach.group_id, attach.member_id
        await stream.say(attach_result=result)

    async def _beat(self, stream: Stream, beat: Any) -> None:
        default = None if self.mute else self.unsure() if self.unsure is not None else session_pb2.BeatAck()
        ack = await self._scripted("Beat", beat, default)
        if ack is not None:
            ack.number = beat.number
            await stream.say(beat_ack=ack)

    async def _call(self, stream: Stream, call: Any) -> None:
        kind = call.WhichOneof("request")
        reply = session_pb2.Reply(call_id=call.call_id)
        try:
            answer = await getattr(self, METHODS[kind])(getattr(call, kind), _CallContext())
        except Aborted as aborted:
            reply.refused.status, reply.refused.message = aborted.args[0].value[0], aborted.args[1]
        else:
            getattr(reply, kind).CopyFrom(answer)
        await stream.say(reply=reply)
