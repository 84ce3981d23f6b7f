"""A session stream in the hands of somebody who sends calls in bulk and counts what comes back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Self

import grpc
from abuse.caller import name_of
from google.protobuf.message import Message
from muster_protos.muster.v1 import session_pb2, session_pb2_grpc

_BEAT_INTERVAL_MS = 60_000


class Session:
    """A stream; an async context manager.

    Args:
        channel: the connection that it is on.
        keep: whether `answers` keeps every answer.

    Attributes:
        replies: how often each kind of answer came.
        answers: the answers by the number of their call.
        pushes: what came unasked.
        ended: why the stream is over; empty: it is not.
    """

    def __init__(self, channel: grpc.aio.Channel, *, keep: bool = False) -> None:
        self.replies: Counter[str] = Counter()
        self.answers: dict[int, session_pb2.Reply] = {}
        self.pushes: list[session_pb2.ServerFrame] = []
        self.ended = ""
        self._keep = keep
        self._channel = channel
        self._out: asyncio.Queue[session_pb2.SessionRequest | None] = asyncio.Queue()
        self._came = asyncio.Event()
        self._call_id = 0
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def answered(self) -> int:
        """How many calls were answered."""
        return self.replies.total()

    @property
    def asked(self) -> int:
        """How many calls were made."""
        return self._call_id

    async def __aenter__(self) -> Self:
        self._call = session_pb2_grpc.GroupSessionServiceStub(self._channel).Session(self._said())
        self.send(
            session_pb2.ClientFrame(
                hello=session_pb2.Hello(client_id="attacker", beat_interval_ms=_BEAT_INTERVAL_MS)
            )
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Breaks the stream off."""
        self._out.put_nowait(None)
        self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    def send(self, *frames: session_pb2.ClientFrame) -> None:
        """Sends frames in one message."""
        self._out.put_nowait(session_pb2.SessionRequest(frames=frames))

    def call(self, kind: str, requests: Iterable[Message], *, connection: int = 0) -> None:
        """Makes calls of one kind, in one message; `connection` as in `Call`."""
        message = session_pb2.SessionRequest()
        for request in requests:
            self._call_id += 1
            call = message.frames.add().call
            call.call_id = self._call_id
            call.connection = connection
            getattr(call, kind).CopyFrom(request)
        self._out.put_nowait(message)

    async def until_answered(self, number: int, patience_s: float = 30.0) -> None:
        """Waits until so many calls were answered, the stream is over, or patience is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.answered < number and not self.ended:
                    self._came.clear()
                    await self._came.wait()

    async def _said(self) -> AsyncIterator[session_pb2.SessionRequest]:
        while (message := await self._out.get()) is not None:
            yield message

    async def _read(self) -> None:
        try:
            async for message in self._call:
                for frame in message.frames:
                    self._take(frame)
                self._came.set()
            self.ended = self.ended or "closed"
        except grpc.aio.AioRpcError as error:
            self.ended = f"{error.code().name}: {error.details()}"
        self._came.set()

    def _take(self, frame: session_pb2.ServerFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind == "reply":
            self.replies[_outcome(frame.reply)] += 1
            if self._keep:
                self.answers[frame.reply.call_id] = frame.reply
        elif kind == "goodbye":
            self.ended = frame.goodbye.message
        else:
            self.pushes.append(frame)


def _outcome(reply: session_pb2.Reply) -> str:
    kind = reply.WhichOneof("response")
    if kind == "refused":
        return f"refused {grpc_name(reply.refused.status)}"
    answer = getattr(reply, kind or "")
    if kind == "offset_commit":
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
    elif kind == "offset_fetch":
        codes = [group.error_code for group in answer.groups]
    else:
        codes = [getattr(answer, "error_code", 0)]
    return f"{kind} {name_of(max(codes, default=0))}"


def grpc_name(number: int) -> str:
    """The name of a gRPC status."""
    return next(code.name for code in grpc.StatusCode if code.value[0] == number)
