"""What is between gRPC and a servicer: decoding, deadlines, refusals and unforeseen errors."""

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import structlog

from muster_runtime.clock import wall_ms
from muster_runtime.rpc._awaited import AwaitedRequests
from muster_runtime.rpc._deadlines import CallOverdue, Deadlines
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.identity._identity import serve_as
from muster_runtime.rpc.identity.callers import Callers
from muster_runtime.rpc.large import LARGE_BYTES, Undecoded
from muster_runtime.rpc.quotas.connection import current_connection
from muster_runtime.rpc.quotas.quotas import Quotas
from muster_runtime.rpc.refusals import Refused, Unavailable, oversized, undecodable
from muster_runtime.rpc.sizes import note_size, size_of
from muster_runtime.rpc.trust.inside import INTERNAL_PACKAGE, InternalCalls
from muster_runtime.rpc.unread import Unread
from muster_runtime.telemetry.telemetry import OFF, Handler, Telemetry

log = structlog.get_logger()


def _not_of_callers_who_left(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC is kept: it reports callers who left with an answer unread as errors."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, grpc.aio.InternalError)


logging.getLogger("grpc._cython.cygrpc").addFilter(_not_of_callers_who_left)

PROOF_GRACE_S = 10.0
"""How long a stream may last beyond the proof of who opened it."""
_LONGEST_STREAM_MS = 366 * 86_400_000
_RETRY_MS = 100
_GIVEN_UP_WITHIN_S = 0.5
"""Within so long gRPC cancels a call that was given up before it was looked at: then it has no answer."""

Behaviour = Callable[..., Any]
GivenUp = Callable[[Any], None]


class CallTracker:
    """The open calls of streams that have no end of their own, such as health watches."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stopping = False

    def enter(self) -> asyncio.Task[Any] | None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        return task

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._tasks.discard(task)

    def end_all(self) -> None:
        self.stopping = True
        for task in self._tasks:
            task.cancel()


class OpenCalls:
    """How many calls a process has open, from their headers on.

    Args:
        most: further ones are refused.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.number = 0

    @property
    def full(self) -> bool:
        """Whether there are as many as may be."""
        return self.number >= self.most

    def enter(self) -> None:
        """Counts the call whose task this is, until that has ended: its answer was read then."""
        task = asyncio.current_task()
        assert task is not None
        self.number += 1
        task.add_done_callback(self._leave)

    def _leave(self, _: object) -> None:
        self.number -= 1


class Recorder:
    """Takes the place of a server while generated code registers a servicer, to get at its handlers."""

    def __init__(self) -> None:
        self.services: dict[str, Mapping[str, Any]] = {}

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Not used: the handlers come by the other way too, with their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.services[service] = handlers


class Guard:
    """Wraps the handlers of one service.

    Args:
        max_request_bytes: largest request of a method that `method_limits` does not name.
        method_limits: largest request in bytes by name of the method.
        deadlines: end unary calls, and streams that wait for their request, counted from their headers on.
        awaited: reads the requests of calls that have one.
        unread: writes the answers of unary calls.
        open_calls: counts the calls and bounds them; absent for health, which is never refused.
        tracker: given for streams that the server ends by itself when it stops.
        telemetry: counts and traces unary calls.
        internal_calls: checks who makes calls of internal services; absent: anybody may.
        inside: whether the service is for the cluster's own processes whatever its name, as at their port.
        callers: finds out who makes calls of the other services; absent: nobody asks.
        quotas: bounds what they ask for; absent: nothing does.
        given_up: called for each call that its caller gave up.
    """

    def __init__(
        self,
        *,
        max_request_bytes: int,
        method_limits: Mapping[str, int],
        deadlines: Deadlines,
        awaited: AwaitedRequests,
        unread: Unread,
        open_calls: OpenCalls | None = None,
        tracker: CallTracker | None = None,
        telemetry: Telemetry = OFF,
        internal_calls: InternalCalls | None = None,
        inside: bool = False,
        callers: Callers | None = None,
        quotas: Quotas | None = None,
        given_up: GivenUp | None = None,
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._method_limits = method_limits
        self._deadlines = deadlines
        self._awaited = awaited
        self._unread = unread
        self._open_calls = open_calls
        self._tracker = tracker
        self._telemetry = telemetry
        self._internal_calls = internal_calls
        self._inside = inside
        self._callers = callers
        self._quotas = quotas
        self._given_up = given_up

    def wrap(self, service: str, name: str, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of one method, guarded."""
        method = f"{service}/{name}"
        limit = self._method_limits.get(name, self._max_request_bytes)
        serve = self._behaviour(method, handler)
        internal = self._inside or service.startswith(INTERNAL_PACKAGE)
        if internal:
            if self._internal_calls is not None:
                serve = _checked(method, serve, self._internal_calls, lasts=handler.response_streaming)
        else:
            if self._quotas is not None:
                serve = _rationed(method, serve, self._quotas)
            if self._callers is not None:
                if handler.response_streaming:
                    serve = _lasting(method, serve)
                serve = _identified(method, serve, self._callers)
        decode = _decoder(handler.request_deserializer, limit, by_value=not handler.request_streaming)
        # A call with one request is served as a stream of requests, which is the same on the wire: else gRPC
        # reads the request by itself, and nobody ends the call of a caller who never sends it. Its answer is
        # given to gRPC, which sends it with the status; in two steps the call takes a third more.
        to_grpc = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming or handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return to_grpc(
            _let_go(
                serve if self._open_calls is None else _counted(serve, self._open_calls),
                None if internal else self._given_up,
            ),
            decode,
            _encoder(handler.response_serializer),
        )

    def _behaviour(self, method: str, handler: Any) -> Handler:
        if handler.request_streaming:
            if not handler.response_streaming:
                raise ValueError(f"{method}: a stream with one answer has no use yet")
            return self._stream(method, handler.stream_stream)
        if handler.response_streaming:
            return self._with_request(method, self._stream(method, handler.unary_stream))
        unary = self._unary(method, handler.unary_unary)
        encode = handler.response_serializer
        return self._one_to_one(method, self._telemetry.watching(method, unary), encode)

    def _one_to_one(self, method: str, unary: Handler, encode: Callable[[Any], bytes]) -> Handler:
        """Reads the request and gives the answer; it is unread until the task of the call has ended.

        It is encoded here, unless the servicer has done so with a large one: to ask a message for its size
        encodes it too.
        """
        deadlines = self._deadlines
        unread = self._unread
        read = self._awaited.read

        async def exchange(context: Any) -> Any:
            request = await read(context)
            connection = current_connection()
            if request is grpc.aio.EOF:
                request = undecodable()
            if connection is None or isinstance(request, Refused):
                answer = await unary(request, context)
            else:
                size_bytes = len(request) if isinstance(request, Undecoded) else size_of(request)
                connection.take_bytes(size_bytes)
                counted_bytes = connection.begin_work(size_bytes)
                try:
                    if isinstance(request, Undecoded):
                        request = await request.decoded()
                    answer = await unary(request, context)
                finally:
                    connection.end_work(counted_bytes)
            if not context.done():
                if type(answer) is not bytes:
                    answer = encode(answer)
                unread.add(context, len(answer))
            return answer

        async def call(_: Any, context: Any) -> Any:
            remaining_s = context.time_remaining()
            try:
                if remaining_s is not None and remaining_s <= deadlines.longest_s:
                    return await exchange(context)
                return await _capped(exchange, context, deadlines)
            except Exception as error:
                return await _answer(method, error, context)

        return call

    def _with_request(self, method: str, stream: Handler) -> Handler:
        """Reads the one request of a stream of answers."""
        deadlines = self._deadlines
        read = self._awaited.read

        async def call(_: Any, context: Any) -> None:
            try:
                request = await _capped(read, context, deadlines)
                if isinstance(request, Undecoded):
                    request = await request.decoded_of_stream()
            except Exception as error:
                await _answer(method, error, context)
                return
            await stream(undecodable() if request is grpc.aio.EOF else request, context)

        return call

    def _unary(self, method: str, behaviour: Behaviour) -> Handler:
        async def call(request: Any, context: Any) -> Any:
            if isinstance(request, Refused):
                return await _answer(method, request, context)
            try:
                return await behaviour(request, context)
            except Exception as error:
                return await _answer(method, error, context)

        return call

    def _stream(self, method: str, behaviour: Behaviour) -> Handler:
        run = _written(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour

        async def call(request: Any, context: Any) -> None:
            if isinstance(request, Refused):
                await _answer(method, request, context)
                return
            try:
                await run(request, context)
            except Exception as error:
                await _answer(method, error, context)

        tracker = self._tracker
        if tracker is None:
            return call

        async def tracked(request: Any, context: Any) -> None:
            task = tracker.enter()
            try:
                await call(request, context)
            except asyncio.CancelledError:
                if not tracker.stopping:
                    raise
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
            finally:
                tracker.leave(task)

        return tracked


def _decoder(decode: Callable[[bytes], Any], limit_bytes: int, *, by_value: bool) -> Callable[[bytes], Any]:
    """A decoder that refuses instead of failing, and leaves large messages of clients as they came.

    A unary request is decoded before any code of ours runs, so the refusal is returned in place of the
    message; in a stream it is raised out of the servicer's own read. Who reads a stream of clients that may
    bring large ones does so with `read_message`.
    """
    kind = getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)

    def checked(body: bytes) -> Any:
        if len(body) > limit_bytes:
            refusal = oversized(limit_bytes)
        else:
            try:
                if len(body) > LARGE_BYTES and (connection := current_connection()) is not None:
                    return Undecoded(body, decode, kind, connection, in_stream=not by_value)
                message = decode(body)
                return _noted(message, len(body)) if by_value else message
            except MemoryError:
                raise
            except Exception:
                refusal = undecodable()
        if by_value:
            return refusal
        raise refusal

    return checked


def _noted(request: Any, size_bytes: int) -> Any:
    note_size(request, size_bytes)
    return request


def _encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """An encoder that leaves alone what is encoded already."""

    def encoded(answer: Any) -> bytes:
        return answer if type(answer) is bytes else encode(answer)

    return encoded


def _written(behaviour: Callable[..., AsyncIterator[Any]]) -> Handler:
    async def write(request: Any, context: Any) -> None:
        answers: Any = behaviour(request, context)
        async with aclosing(answers):
            async for answer in answers:
                await context.write(answer)

    return write


def _let_go(serve: Handler, given_up: GivenUp | None) -> Handler:
    """Lets go of a call that was ended with a status, and tells of one that its caller gave up.

    gRPC keeps the error with the call. If it led back to the call, by the frames of its traceback, all that
    belongs to the call would stay until a full garbage collection; a caller can make thousands of them.
    """

    async def call(request: Any, context: Any) -> Any:
        try:
            return await serve(request, context)
        except asyncio.CancelledError:
            if given_up is not None:
                given_up(context)
            raise
        except grpc.aio.AbortError as error:
            ended = error
        del request, context
        ended.__context__ = None
        try:
            raise ended.with_traceback(None)
        finally:
            del ended

    return call


class Unknown(grpc.GenericRpcHandler):
    """Answers calls of methods that do not exist as gRPC does; each counts as one that was given up.

    Args:
        given_up: called for each.
    """

    def __init__(self, given_up: GivenUp) -> None:
        async def unimplemented(_: Any, context: Any) -> Any:
            given_up(context)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        self._handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
            _let_go(unimplemented, None)
        )

    def service(self, _: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of every method that no other handler serves."""
        return self._handler


def _checked(method: str, serve: Handler, internal_calls: InternalCalls, *, lasts: bool) -> Handler:
    async def call(request: Any, context: Any) -> Any:
        await internal_calls.check(method, context)
        if lasts:
            return await internal_calls.while_it_counts(serve, request, context)
        return await serve(request, context)

    return call


def _identified(method: str, serve: Handler, callers: Callers) -> Handler:
    async def call(request: Any, context: Any) -> Any:
        try:
            serve_as(await callers.identify(method, context))
        except Exception as error:
            return await _answer(method, error, context)
        return await serve(request, context)

    return call


def _lasting(method: str, serve: Handler) -> Handler:
    """Ends streams with the proof of who opened them; those of sessions say goodbye shortly before."""

    async def call(request: Any, context: Any) -> Any:
        expires_ms = current_identity().expires_ms
        if expires_ms is None:
            return await serve(request, context)
        lasts_ms = min(max(0, expires_ms - wall_ms()), _LONGEST_STREAM_MS)
        try:
            async with asyncio.timeout(lasts_ms / 1_000 + PROOF_GRACE_S) as limit:
                return await serve(request, context)
        except TimeoutError:
            if not limit.expired():
                raise
        ended = Unavailable("the proof of who opened this stream has expired; open another", _RETRY_MS)
        return await _answer(method, ended, context)

    return call


def _rationed(method: str, serve: Handler, quotas: Quotas) -> Handler:
    async def call(request: Any, context: Any) -> Any:
        try:
            quotas.enter(context)
        except Unavailable as error:
            await asyncio.sleep(_GIVEN_UP_WITHIN_S)
            return await _answer(method, error, context)
        except Exception as error:
            return await _answer(method, error, context)
        return await serve(request, context)

    return call


def _counted(serve: Handler, open_calls: OpenCalls) -> Handler:
    async def call(request: Any, context: Any) -> Any:
        if open_calls.full:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this server has {open_calls.most:,} open calls; try again",
            )
        open_calls.enter()
        return await serve(request, context)

    return call


async def _capped(work: Callable[[Any], Awaitable[Any]], context: Any, deadlines: Deadlines) -> Any:
    try:
        return await deadlines.run(work, context)
    except CallOverdue:
        text = f"the call took longer than the {deadlines.longest_s:g} s that this server allows"
    return await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)


async def _answer(method: str, error: Exception, context: Any) -> Any:
    if isinstance(error, Refused):
        return await context.abort(error.status, error.message, error.trailers())
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, NotImplementedError):  # a newer peer's call: the generated base class raises this
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this version does not have the call")
    left = context.done() and not isinstance(error, MemoryError)
    # The client is gone, and the servicer met the closed call, or its write failed; nobody can be answered.
    if left or isinstance(error, grpc.aio.InternalError):
        log.debug("rpc_abandoned", method=method, problem=repr(error))
        return None
    request_id = secrets.token_hex(8)
    log.error("rpc_failed", method=method, request_id=request_id, exc_info=error)
    return await context.abort(grpc.StatusCode.INTERNAL, f"internal error, request {request_id}")
