"""gRPC without a network: the channels of one process, and the calls on them."""

import asyncio
import collections
from collections.abc import Callable, Generator
from typing import Any, Protocol, cast

import grpc
import grpc.aio

NOTICED_AFTER_S = 7.0
"""After this time without a network both ends take a connection for broken, as keepalive does."""

_NOTHING = grpc.aio.Metadata()


class Listening(Protocol):
    """Who answers at which address."""

    def listens(self, address: str) -> bool:
        """Whether a server has this address now."""

    def handler(self, address: str, path: str) -> Any:
        """The gRPC handler of a method; None: there is no such method."""

    def status_of(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """The gRPC status that a call ends with when its handler raised."""


class Link:
    """The network of one process.

    Args:
        host: of the process, as servers see it.
        servers: who answers.
    """

    def __init__(self, host: str, servers: Listening) -> None:
        self.host = host
        self.servers = servers
        self._calls: dict[Call, None] = {}
        self._held: list[Callable[[], None]] = []
        self._cut = False
        self._notice: asyncio.TimerHandle | None = None

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to an address."""
        return cast(grpc.aio.Channel, _Channel(self, address))

    def cut(self) -> None:
        """From now on nothing arrives, in either direction."""
        if not self._cut:
            self._cut = True
            self._notice = asyncio.get_running_loop().call_later(NOTICED_AFTER_S, self.broken, "keepalive")

    def mend(self) -> None:
        """What was sent meanwhile arrives, unless the connection is broken."""
        self._cut = False
        if self._notice is not None:
            self._notice.cancel()
        held, self._held = self._held, []
        for deliver in held:
            deliver()

    def broken(self, why: str, address: str | None = None) -> None:
        """Ends all calls, or those to one address, without a word to the servers but that they are gone."""
        for call in tuple(self._calls):
            if address in (None, call.address):
                call.lost(why)

    def carry(self, deliver: Callable[[], None]) -> None:
        """Delivers now, or when the network is back."""
        if self._cut:
            self._held.append(deliver)
        else:
            deliver()

    def begin(self, call: "Call") -> None:
        """A call begins."""
        self._calls[call] = None
        if not self._cut and not self.servers.listens(call.address):
            asyncio.get_running_loop().call_soon(call.lost, "connection refused")
        elif self._cut and self._notice is not None and self._notice.when() < call.loop.time():
            call.loop.call_later(NOTICED_AFTER_S, call.lost, "no route to host")
            self.carry(call.serve)
        else:
            self.carry(call.serve)

    def over(self, call: "Call") -> None:
        """A call has ended."""
        self._calls.pop(call, None)


class _Channel:
    """As much of `grpc.aio.Channel` as stubs use."""

    def __init__(self, link: Link, address: str) -> None:
        self._link = link
        self._address = address
        self._calls: list[Call] = []

    def unary_unary(self, path: str, **given: Any) -> Callable[..., "Call"]:
        return self._method(path, given, streams=False)

    unary_stream = stream_unary = unary_unary

    def stream_stream(self, path: str, **given: Any) -> Callable[..., "Call"]:
        return self._method(path, given, streams=True)

    async def close(self, grace: float | None = None) -> None:
        for call in self._calls:
            call.cancel()

    def _method(self, path: str, given: dict[str, Any], *, streams: bool) -> Callable[..., "Call"]:
        def call(request: Any = None, *, timeout: float | None = None, **_: Any) -> Call:
            made = Call(self._link, self._address, path, given, timeout)
            if not streams:
                made.ask(request)
            self._calls = [*(call for call in self._calls if not call.done()), made]
            self._link.begin(made)
            return made

        return call


class Call:
    """A call, as its caller sees it."""

    def __init__(
        self, link: Link, address: str, path: str, given: dict[str, Any], timeout_s: float | None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.link = link
        self.address = address
        self.path = path
        self._serialize: Callable[[Any], bytes] = given["request_serializer"]
        self._deserialize: Callable[[bytes], Any] = given["response_deserializer"]
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._cancelled = False
        self._answers: collections.deque[Any] = collections.deque()
        self._news: asyncio.Event = asyncio.Event()
        self._server: _Served = _Served(self)
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self._timer = self.loop.call_later(timeout_s, self._overdue)

    # --- the way there and back

    def ask(self, request: Any) -> None:
        """The one request of a call that has one."""
        self._server.came(self._serialize(request))

    def serve(self) -> None:
        """It has reached the server."""
        if self._status is None:
            self._server.start()

    def answered(self, message: bytes) -> None:
        """A message of the server."""
        if self._status is None:
            self._answers.append(self._deserialize(message))
            self._news.set()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """It has ended, for whatever reason."""
        if self._status is None:
            self._status = (code, details)
            self.link.over(self)
            if self._timer is not None:
                self._timer.cancel()
            self._news.set()

    def lost(self, why: str) -> None:
        """The connection is gone."""
        self.end(grpc.StatusCode.UNAVAILABLE, why)
        self._server.gone()

    def _overdue(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.link.carry(self._server.gone)

    # --- as `grpc.aio` has it

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._cancelled = True
        self.end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        self.link.carry(self._server.gone)
        return True

    def done(self) -> bool:
        return self._status is not None

    async def code(self) -> grpc.StatusCode:
        return (await self._ended())[0]

    async def details(self) -> str:
        return (await self._ended())[1]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._answer().__await__()

    async def read(self) -> Any:
        while not self._answers:
            if self._status is not None:
                self._check()
                return grpc.aio.EOF
            await self._next()
        return self._answers.popleft()

    async def write(self, request: Any) -> None:
        self._check()
        body = self._serialize(request)
        self.link.carry(lambda: self._server.came(body))

    async def done_writing(self) -> None:
        self.link.carry(lambda: self._server.came(None))

    async def _answer(self) -> Any:
        try:
            await self._ended()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._check()
        return self._answers.popleft()

    def _check(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._status is not None and self._status[0] is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(self._status[0], _NOTHING, _NOTHING, self._status[1])

    async def _ended(self) -> tuple[grpc.StatusCode, str]:
        while self._status is None:
            await self._next()
        return self._status

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()


class _Served:
    """The call at the server; the `context` of its handler."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._requests: collections.deque[bytes | None] = collections.deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._handler: Any = None

    def start(self) -> None:
        call = self._call
        self._handler = call.link.servers.handler(call.address, call.path)
        if self._handler is None:
            call.lost("connection refused")
        else:
            self._task = call.loop.create_task(self._serve(), name=f"served {call.path}")

    def came(self, request: bytes | None) -> None:
        self._requests.append(request)
        self._news.set()

    def gone(self) -> None:
        """The client, or the way to it, is gone."""
        self.came(None)
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        call, handler = self._call, self._handler
        code, details = grpc.StatusCode.OK, ""
        try:
            if handler.request_streaming:
                await handler.stream_stream(None, self)
            elif handler.response_streaming:
                async for message in handler.unary_stream(await self.read(), self):
                    await self.write(message)
            else:
                await self.write(await handler.unary_unary(await self.read(), self))
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.CANCELLED, "the call was cancelled at the server"
        except Exception as error:
            code, details = call.link.servers.status_of(error)
        call.link.carry(lambda: call.end(code, details))

    # --- as `grpc.aio.ServicerContext` has it

    async def read(self) -> Any:
        while not self._requests:
            self._news.clear()
            await self._news.wait()
        if self._requests[0] is None:
            return grpc.aio.EOF
        return self._handler.request_deserializer(self._requests.popleft())

    async def write(self, message: Any) -> None:
        # A large answer is encoded already.
        body = message if type(message) is bytes else self._handler.response_serializer(message)
        self._call.link.carry(lambda: self._call.answered(body))

    def time_remaining(self) -> float | None:
        return None

    def peer(self) -> str:
        return f"ipv4:{self._call.link.host}:40000"

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()
