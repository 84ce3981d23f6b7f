"""The client's half of gRPC over the simulated network: channels and calls, as `grpc.aio` has them."""

import asyncio
import collections
import itertools
from collections.abc import AsyncIterator, Callable, Generator
from enum import Enum, auto
from typing import Any

import grpc
from grpc import StatusCode
from simulation.network import Attempt, End
from simulation.processes import Process, VirtualLoop

_EMPTY = grpc.aio.Metadata()
_GIVEN_UP = "Locally cancelled by application!"


class _State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    READY = auto()
    RESTING = auto()


class Channel:
    """A channel; it connects when a call needs it, and rests a while after it could not.

    Args:
        process: whose it is.
        loop: where its calls live.
        target: `host:port`.
        options: those of gRPC; the times of keepalive and reconnecting are heeded.
    """

    def __init__(self, process: Process, loop: VirtualLoop, target: str, options: Any) -> None:
        settings = dict(options or ())
        self.process = process
        self.loop = loop
        self.target = target
        self.closed = False
        self._keepalive_s = (
            settings.get("grpc.keepalive_time_ms", 20_000) + settings.get("grpc.keepalive_timeout_ms", 20_000)
        ) / 1000
        self._first_rest_s = settings.get("grpc.initial_reconnect_backoff_ms", 1_000) / 1000
        self._longest_rest_s = settings.get("grpc.max_reconnect_backoff_ms", 120_000) / 1000
        self._attempt_s = settings.get("grpc.min_reconnect_backoff_ms", 20_000) / 1000
        self._rest_s = self._first_rest_s
        self._state = _State.IDLE
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._problem = ""
        self._end: End | None = None
        self._ids = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._waiting: list[Call] = []

    # --- grpc.aio.Channel

    def unary_unary(self, method: str, *serializers: Any, **named: Any) -> Any:
        return _Method(self, method, serializers, named, request_streams=False, response_streams=False)

    def unary_stream(self, method: str, *serializers: Any, **named: Any) -> Any:
        return _Method(self, method, serializers, named, request_streams=False, response_streams=True)

    def stream_stream(self, method: str, *serializers: Any, **named: Any) -> Any:
        return _Method(self, method, serializers, named, request_streams=True, response_streams=True)

    def stream_unary(self, method: str, *serializers: Any, **named: Any) -> Any:
        return _Method(self, method, serializers, named, request_streams=True, response_streams=False)

    async def close(self, grace: float | None = None) -> None:
        """Closes it; open calls are cancelled."""
        if self.closed:
            return
        self.closed = True
        for call in (*self._calls.values(), *self._waiting):
            call.cancel()
        self._waiting.clear()
        if self._attempt is not None:
            self._attempt.give_up()
        if self._end is not None:
            self._end.close()
            self._end = None

    # --- its connection

    def begin(self, call: "Call") -> None:
        """Sends a call, now or when there is a connection."""
        if self.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        if self._state is _State.READY:
            self._start(call)
        elif self._state is _State.RESTING:
            self.loop.call_soon(call.ended, StatusCode.UNAVAILABLE, self._problem, ())
        else:
            self._waiting.append(call)
            if self._state is _State.IDLE:
                self._connect()

    def _connect(self) -> None:
        self._state = _State.CONNECTING
        self._attempts += 1
        number = self._attempts
        self._attempt = self.process.network.connect(
            self.process.place,
            self.target,
            _Wire(self, number),
            lambda problem: self._knocked(number, problem),
        )
        self.loop.call_later(self._attempt_s, self._failed, number, "connection attempt timed out")

    def _knocked(self, number: int, problem: OSError | None) -> None:
        if problem is not None:
            self.loop.post(self._failed, number, f"{problem.strerror}")
        elif self._attempt is not None and self._attempt.end is not None and number == self._attempts:
            # What stands is a socket: whether a server is behind it shows when it answers.
            self._attempt.end.keepalive_s = self._keepalive_s
            self._attempt.end.send(("hello", 0, None), 60)

    def _failed(self, number: int, problem: str) -> None:
        if self.closed or self._state is not _State.CONNECTING or number != self._attempts:
            return
        if self._attempt is not None:
            self._attempt.give_up()
        self._problem = f"failed to connect to all addresses; last error: {self.target}: {problem}"
        self._state = _State.RESTING
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.ended(StatusCode.UNAVAILABLE, self._problem, ())
        self.loop.call_later(
            self._rest_s * self.process.world.random.uniform(0.8, 1.2), self._rested, self._attempts
        )
        self._rest_s = min(self._rest_s * 1.6, self._longest_rest_s)

    def _rested(self, number: int) -> None:
        if self._state is _State.RESTING and number == self._attempts:
            self._state = _State.IDLE

    def heard(self, number: int, frame: tuple[str, int, Any]) -> None:
        """Takes a frame of the server."""
        kind, call_id, body = frame
        if self.closed or number != self._attempts:
            return
        if kind == "hello":
            if self._state is _State.CONNECTING and self._attempt is not None:
                self._end, self._state = self._attempt.end, _State.READY
                self._rest_s = self._first_rest_s
                waiting, self._waiting = self._waiting, []
                for call in waiting:
                    self._start(call)
            return
        call_ = self._calls.get(call_id)
        if call_ is None:
            return
        if kind == "message":
            call_.came(body)
        elif kind == "status":
            call_.ended(*body)

    def broken(self, number: int, reason: str) -> None:
        """The connection is gone."""
        if self.closed or number != self._attempts:
            return
        if self._state is _State.CONNECTING:
            self._failed(number, reason)
        elif self._state is _State.READY:
            self._end, self._state = None, _State.IDLE
            for call in tuple(self._calls.values()):
                call.ended(StatusCode.UNAVAILABLE, reason, ())

    def _start(self, call: "Call") -> None:
        if call.done():
            return
        call.call_id = next(self._ids)
        self._calls[call.call_id] = call
        call.begin()

    def send(self, kind: str, call_id: int, body: Any) -> None:
        """Sends a frame."""
        if self._end is not None:
            self._end.send((kind, call_id, body), len(body) if isinstance(body, bytes) else 30)

    def over(self, call: "Call") -> None:
        """A call ended."""
        self._calls.pop(call.call_id, None)


class _Wire:
    """Hands what a connection brings to the channel's loop."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number

    def received(self, data: Any) -> None:
        self._channel.loop.post(self._channel.heard, self._number, data)

    def lost(self, reason: str) -> None:
        self._channel.loop.post(self._channel.broken, self._number, reason)


class _Method:
    """A multicallable."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        serializers: Any,
        named: Any,
        *,
        request_streams: bool,
        response_streams: bool,
    ) -> None:
        self._channel = channel
        self._method = method
        given = dict(zip(("request_serializer", "response_deserializer"), serializers, strict=False)) | named
        # Where there is none, messages are bytes.
        self._serialize: Callable[[Any], bytes] = given.get("request_serializer") or bytes
        self._deserialize: Callable[[bytes], Any] = given.get("response_deserializer") or bytes
        self._request_streams = request_streams
        self._response_streams = response_streams

    def __call__(self, request: Any = None, *, timeout: float | None = None, **_: Any) -> "Call":
        call = Call(
            self._channel, self._method, self._serialize, self._deserialize, timeout, self._response_streams
        )
        if not self._request_streams:
            call.request = self._serialize(request)
        self._channel.begin(call)
        return call


class Call:
    """A call as its caller sees it.

    Attributes:
        request: the one request, if it has one only.
        call_id: its number on the connection.
    """

    def __init__(
        self,
        channel: Channel,
        method: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        timeout_s: float | None,
        response_streams: bool,
    ) -> None:
        loop = channel.loop
        self.request: bytes | None = None
        self.call_id = 0
        self._channel = channel
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize
        self._timeout_s = timeout_s
        self._sent: list[bytes] = []
        self._half_closed = False
        self._messages: collections.deque[Any] = collections.deque()
        self._status: tuple[StatusCode, str, Any] | None = None
        self._cancelled = False
        self._news = asyncio.Event()
        self._started: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[Any] | None = None if response_streams else loop.create_future()
        self._timer = None
        if timeout_s is not None:
            self._timer = loop.call_later(timeout_s, self._expire)

    # --- the channel's side

    def begin(self) -> None:
        """There is a connection."""
        channel = self._channel
        channel.send("call", self.call_id, (self._method, self._timeout_s, self.request))
        for message in self._sent:
            channel.send("message", self.call_id, message)
        self._sent.clear()
        if self._half_closed:
            channel.send("half", self.call_id, None)
        self._start()

    def _start(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def came(self, body: bytes) -> None:
        """A message of the server."""
        if self._status is None:
            message = self._deserialize(body)
            self._channel.process.watch.client_received(self._channel.process, message)
            self._messages.append(message)
            self._news.set()

    def ended(self, code: StatusCode, details: str, trailers: Any) -> None:
        """The end, for whatever reason."""
        if self._status is not None:
            return
        self._status = (code, details, trailers)
        if self._timer is not None:
            self._timer.cancel()
        self._channel.over(self)
        self._start()
        self._news.set()
        answer = self._answer
        if answer is not None and not answer.done():
            if self._cancelled:
                answer.cancel()
            elif code is StatusCode.OK and self._messages:
                answer.set_result(self._messages.popleft())
            else:
                answer.set_exception(self._error())
                answer.exception()

    def _error(self) -> grpc.aio.AioRpcError:
        assert self._status is not None
        code, details, trailers = self._status
        return grpc.aio.AioRpcError(code, _EMPTY, grpc.aio.Metadata(*trailers), details)

    def _expire(self) -> None:
        if self._status is None:
            self._channel.send("cancel", self.call_id, None)
            self.ended(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

    # --- grpc.aio's side

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._cancelled = True
        if self.call_id:
            self._channel.send("cancel", self.call_id, None)
        self.ended(StatusCode.CANCELLED, _GIVEN_UP, ())
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._status is not None

    async def code(self) -> StatusCode:
        while self._status is None:
            await self._wait()
        return self._status[0]

    async def details(self) -> str:
        await self.code()
        assert self._status is not None
        return self._status[1]

    def __await__(self) -> Generator[Any, Any, Any]:
        assert self._answer is not None
        try:
            return (yield from self._answer.__await__())
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def read(self) -> Any:
        while not self._messages:
            if self._status is not None:
                if self._cancelled:
                    raise asyncio.CancelledError
                if self._status[0] is not StatusCode.OK:
                    raise self._error()
                return grpc.aio.EOF
            await self._wait()
        return self._messages.popleft()

    async def write(self, request: Any) -> None:
        await asyncio.shield(self._started)
        self._check_open()
        body = self._serialize(request)
        if self.call_id:
            self._channel.send("message", self.call_id, body)
        await asyncio.sleep(0)

    def _check_open(self) -> None:
        if self._status is not None:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._status[0] is not StatusCode.OK:
                raise self._error()
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._half_closed:
            raise asyncio.InvalidStateError("RPC is half closed after calling 'done_writing'.")

    async def done_writing(self) -> None:
        if self._status is None and not self._half_closed:
            self._half_closed = True
            if self.call_id:
                self._channel.send("half", self.call_id, None)

    def send_soon(self, request: Any) -> None:
        """`write` for a caller that cannot wait."""
        body = self._serialize(request)
        if self.call_id:
            self._channel.send("message", self.call_id, body)
        else:
            self._sent.append(body)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message
