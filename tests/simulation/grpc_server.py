"""The server's half of gRPC over the simulated network, as `grpc.aio` has it."""

import asyncio
import collections
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import grpc
from grpc import StatusCode
from simulation.network import End
from simulation.processes import Handle, Process


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[Any, ...] = ()


class Server:
    """A server of one process.

    Args:
        process: whose it is.
        options: those of gRPC; the times of keepalive are heeded.
    """

    def __init__(self, process: Process, options: Any) -> None:
        settings = dict(options or ())
        self.process = process
        self.stopping = False
        self.keepalive_s = (
            settings.get("grpc.keepalive_time_ms", 7_200_000)
            + settings.get("grpc.keepalive_timeout_ms", 20_000)
        ) / 1000
        self._handlers: list[Any] = []
        self._methods: dict[str, Any] = {}
        self._port = 0
        self._lines: dict[_Line, None] = {}
        self.calls: dict[asyncio.Task[None], ServerCall] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        self._handlers.append(grpc.method_handlers_generic_handler(service, handlers))

    def add_insecure_port(self, address: str) -> int:
        self._port = int(address.rpartition(":")[2])
        return self._port

    async def start(self) -> None:
        self.process.network.listen(self.process.place, self._port, self._accept)

    async def stop(self, grace: float | None) -> None:
        self.stopping = True
        self.process.network.deaf(self.process.place, self._port)
        if self.calls and grace:
            await asyncio.wait(tuple(self.calls), timeout=grace)
        for task, call in tuple(self.calls.items()):
            call.finish(StatusCode.UNAVAILABLE, "the server stopped", ())
            task.cancel()
        await asyncio.sleep(0.001)
        for line in tuple(self._lines):
            line.end.close()
        self._lines.clear()

    def _accept(self, end: End) -> "_Line":
        end.keepalive_s = self.keepalive_s
        line = _Line(self, end)
        self._lines[line] = None
        return line

    def gone(self, line: "_Line") -> None:
        """A connection is over."""
        self._lines.pop(line, None)

    def handler(self, method: str) -> Any:
        """What answers a method; None: nothing."""
        found = self._methods.get(method)
        if found is None:
            for handlers in self._handlers:
                found = handlers.service(_Details(method))
                if found is not None:
                    self._methods[method] = found
                    break
        return found


class _Line:
    """A connection of a client."""

    def __init__(self, server: Server, end: End) -> None:
        self.server = server
        self.end = end
        self._calls: dict[int, ServerCall] = {}

    def received(self, data: Any) -> None:
        self.server.process.loop.post(self._frame, data)

    def lost(self, reason: str) -> None:
        self.server.process.loop.post(self._lost)

    def _frame(self, frame: tuple[str, int, Any]) -> None:
        kind, call_id, body = frame
        if kind == "hello":
            if not self.server.stopping:
                self.end.send(frame, 60)
        elif kind == "call":
            self._begin(call_id, *body)
            self._repeat(call_id, *body)
        elif (call := self._calls.get(call_id)) is not None:
            if kind == "message":
                call.came(body)
            elif kind == "half":
                call.came(None)
            elif kind == "cancel":
                call.abandoned()

    def _begin(self, call_id: int, method: str, timeout_s: float | None, request: bytes | None) -> None:
        handler = self.server.handler(method)
        if handler is None or self.server.stopping:
            code = StatusCode.UNAVAILABLE if self.server.stopping else StatusCode.UNIMPLEMENTED
            self.end.send(("status", call_id, (code, "the server does not take it", ())), 30)
            return
        call = ServerCall(self, call_id, method, handler, timeout_s)
        self._calls[call_id] = call
        call.start(request)

    def _repeat(self, call_id: int, method: str, timeout_s: float | None, request: bytes | None) -> None:
        """Something on the way, which nobody asked to, sends a call again; its answer goes nowhere."""
        process = self.server.process
        if request is None or process.world.random.random() >= process.network.repeat:
            return
        delay_s = process.world.random.choice((0.05, 2.0, 20.0, 60.0))
        process.world.at(
            min(process.world.now_s + delay_s, process.network.repeat_until_s),
            process.loop.post,
            self._begin,
            -call_id,
            method,
            timeout_s or 5.0,
            request,
        )

    def over(self, call: "ServerCall") -> None:
        """A call ended."""
        self._calls.pop(call.call_id, None)

    def _lost(self) -> None:
        self.server.gone(self)
        for call in tuple(self._calls.values()):
            call.abandoned()


class ServerCall:
    """A call as its servicer sees it: the `context`."""

    def __init__(self, line: _Line, call_id: int, method: str, handler: Any, timeout_s: float | None) -> None:
        self.call_id = call_id
        self._line = line
        self._server = line.server
        self._handler = handler
        self._method = method
        self._loop = line.server.process.loop
        self._deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._messages: collections.deque[bytes | None] = collections.deque()
        self._news = asyncio.Event()
        self._ended = False
        self._process = line.server.process
        self._notes = self._process.watch.notes()
        self._task: asyncio.Task[None] | None = None
        self._timer: Handle | None = None

    def start(self, request: bytes | None) -> None:
        """Begins to serve."""
        self._task = self._loop.create_task(self._serve(request))
        self._server.calls[self._task] = self
        self._task.add_done_callback(self._done)
        if self._deadline_s is not None:
            self._timer = self._loop.call_at(self._deadline_s, self.abandoned)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._server.calls.pop(task, None)
        if self._timer is not None:
            self._timer.cancel()
        self._line.over(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": self._method, "exception": error})

    async def _serve(self, request: bytes | None) -> None:
        handler = self._handler
        try:
            if handler.request_streaming:
                if request is not None:
                    self.came(request)
                    self.came(None)
                what: Any = self._requests()
            else:
                assert request is not None
                what = handler.request_deserializer(request)
                self._process.watch.received(self._process, self._notes, what)
            if handler.response_streaming:
                behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
                answers = behaviour(what, self)
                if inspect.isasyncgen(answers):
                    async for answer in answers:
                        await self.write(answer)
                else:
                    await answers
            else:
                behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
                self._send(await behaviour(what, self))
            self.finish(StatusCode.OK, "", ())
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self.finish(StatusCode.CANCELLED, "the call was cancelled at the server", ())
            raise

    def came(self, body: bytes | None) -> None:
        """A message of the client; None: it sends no more."""
        self._messages.append(body)
        self._news.set()

    def abandoned(self) -> None:
        """The client, or the connection, went away."""
        self._ended = True
        self._messages.clear()
        self._messages.append(None)
        self._news.set()
        if self._task is not None:
            self._task.cancel()

    def finish(self, code: StatusCode, details: str, trailers: Any) -> None:
        """Sends the status."""
        if not self._ended:
            self._ended = True
            self._line.end.send(("status", self.call_id, (code, details, trailers)), 30)

    def _send(self, message: Any) -> None:
        if not self._ended:
            self._process.watch.sent(self._process, self._notes, message)
            body = self._handler.response_serializer(message)
            self._line.end.send(("message", self.call_id, body), len(body))

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    # --- grpc.aio.ServicerContext

    async def read(self) -> Any:
        while not self._messages:
            self._news.clear()
            await self._news.wait()
        body = self._messages[0]
        if body is None:
            return grpc.aio.EOF
        self._messages.popleft()
        message = self._handler.request_deserializer(body)
        self._process.watch.received(self._process, self._notes, message)
        return message

    async def write(self, message: Any) -> None:
        self._send(message)
        await asyncio.sleep(0)

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.finish(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError("Locally aborted.")

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._loop.time())

    def peer(self) -> str:
        return f"ipv4:{self._line.end.other.place.host}:40000"

    def done(self) -> bool:
        return self._ended

    def cancelled(self) -> bool:
        return self._ended

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def set_trailing_metadata(self, _metadata: Any) -> None:
        pass
