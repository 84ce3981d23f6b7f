"""A bare session: frames in, frames out."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from coordinator.coordinator_cluster import Caller
from muster_protos.muster.v1 import coordinator_pb2, session_pb2, session_pb2_grpc


class Session:
    """One stream to one coordinator, without any behaviour of its own but reading.

    Attributes:
        frames: everything that came, in order.
        messages: number of frames in each message.
        ended: the end of the stream: None while it is open, else the gRPC status.
    """

    def __init__(self, channel: grpc.aio.Channel, *, read: bool = True) -> None:
        stub: Any = session_pb2_grpc.GroupSessionServiceStub(channel)
        self.call = stub.Session()
        self.frames: list[session_pb2.ServerFrame] = []
        self.messages: list[int] = []
        self.ended: grpc.StatusCode | None = None
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._beats = 0
        self._calls = 0
        self._reader = asyncio.ensure_future(self._read()) if read else None

    async def _read(self) -> None:
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.messages.append(len(message.frames))
                self.frames += message.frames
                self._wake()
            self.ended = await self.call.code()
        except grpc.aio.AioRpcError as error:
            self.ended = error.code()
        except asyncio.CancelledError:
            self.ended = grpc.StatusCode.CANCELLED
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def send(self, *frames: session_pb2.ClientFrame) -> None:
        async with self._writing:  # gRPC takes one message at a time
            await self.call.write(session_pb2.SessionRequest(frames=frames))

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Waits until something holds; returns what it says."""
        async with asyncio.timeout(60):
            while not (result := holds()):
                assert self._reader is None or not self._reader.done(), f"the stream ended: {self.ended}"
                news = self._news
                await news.wait()
        return result

    async def end(self) -> grpc.StatusCode:
        """Waits for the end of the stream."""
        assert self._reader is not None
        async with asyncio.timeout(60):
            await asyncio.wait([self._reader])
        assert self.ended is not None
        return self.ended

    def said(self, kind: str) -> list[Any]:
        """Everything of a kind that came so far."""
        return [getattr(frame, kind) for frame in self.frames if frame.WhichOneof("kind") == kind]

    async def hello(self, beat_interval_ms: int = 500, *, knows_unsure: bool = False) -> "Session":
        await self.send(hello(beat_interval_ms, knows_unsure=knows_unsure))
        return self

    async def beat(self) -> session_pb2.BeatAck:
        """Beats, and waits for the echo."""
        self._beats += 1
        number = self._beats
        await self.send(session_pb2.ClientFrame(beat=session_pb2.Beat(number=number)))
        acks: list[session_pb2.BeatAck] = await self.until(
            lambda: [ack for ack in self.said("beat_ack") if ack.number == number]
        )
        return acks[0]

    async def attach(
        self, group_id: str, joined: coordinator_pb2.JoinGroupResponse
    ) -> session_pb2.AttachResult:
        count = len(self.said("attach_result"))
        await self.send(attach(group_id, joined.member_id, joined.generation))
        result: session_pb2.AttachResult = (await self.until(lambda: self.said("attach_result")[count:]))[0]
        return result

    async def ask(self, **request: Any) -> session_pb2.Reply:
        """Makes a call as a frame, and waits for its reply."""
        self._calls += 1
        call_id = self._calls
        await self.send(call(call_id, **request))
        replies: list[session_pb2.Reply] = await self.until(
            lambda: [reply for reply in self.said("reply") if reply.call_id == call_id]
        )
        return replies[0]

    async def close(self) -> None:
        self.call.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader])


def hello(beat_interval_ms: int = 500, *, knows_unsure: bool = False) -> session_pb2.ClientFrame:
    return session_pb2.ClientFrame(
        hello=session_pb2.Hello(
            client_id="test", beat_interval_ms=beat_interval_ms, knows_unsure=knows_unsure
        )
    )


def attach(group_id: str, member_id: str, generation: int) -> session_pb2.ClientFrame:
    request = session_pb2.Attach(group_id=group_id, member_id=member_id, generation=generation)
    return session_pb2.ClientFrame(attach=request)


def detach(group_id: str, member_id: str) -> session_pb2.ClientFrame:
    return session_pb2.ClientFrame(detach=session_pb2.Detach(group_id=group_id, member_id=member_id))


def call(call_id: int, **request: Any) -> session_pb2.ClientFrame:
    return session_pb2.ClientFrame(call=session_pb2.Call(call_id=call_id, **request))


async def stable(caller: Caller, group_id: str, **fields: Any) -> coordinator_pb2.JoinGroupResponse:
    """A group of one member that has its assignment."""
    joined = await caller.join(group_id, **fields)
    assert joined.error_code == 0
    assert (await caller.sync(group_id, joined)).error_code == 0
    return joined
