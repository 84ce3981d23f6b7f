"""What stands between gRPC and a servicer: decoding, deadlines, refusals and unforeseen errors."""

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from muster_runtime.refusals import STATUS_DETAILS_KEY, Refused, oversized, undecodable
from muster_runtime.telemetry.rpcs import RpcMetrics

if TYPE_CHECKING:
    from muster_runtime.telemetry.tracing import Tracing

log = structlog.get_logger()

Behaviour = Callable[..., Any]
Handler = Callable[[Any, Any], Awaitable[Any]]


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


class Recorder:
    """Stands in for a server while generated code registers a servicer, to get at its handlers."""

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
        max_deadline_ms: time that a unary call gets at most, also when the client set none.
        tracker: given for streams that the server ends by itself when it stops.
        metrics: counts unary calls.
        tracing: makes their spans.
    """

    def __init__(
        self,
        *,
        max_request_bytes: int,
        method_limits: Mapping[str, int],
        max_deadline_ms: int,
        tracker: CallTracker | None = None,
        metrics: RpcMetrics | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._method_limits = method_limits
        self._max_deadline_s = max_deadline_ms / 1000
        self._tracker = tracker
        self._metrics = metrics
        self._tracing = tracing

    def wrap(self, service: str, name: str, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler of one method, guarded."""
        method = f"{service}/{name}"
        limit = self._method_limits.get(name, self._max_request_bytes)
        serialize = handler.response_serializer
        if not handler.request_streaming and not handler.response_streaming:
            decode = _decoder(handler.request_deserializer, limit, by_value=True)
            unary = self._unary(method, handler.unary_unary)
            if self._tracing is not None:
                from muster_runtime.telemetry.rpc_traces import traced

                unary = traced(self._tracing, method, unary)
            if self._metrics is not None:
                unary = self._metrics.counted(method, unary)
            return grpc.unary_unary_rpc_method_handler(unary, decode, serialize)
        if not handler.request_streaming:
            decode = _decoder(handler.request_deserializer, limit, by_value=True)
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream), decode, serialize
            )
        decode = _decoder(handler.request_deserializer, limit, by_value=False)
        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(
                self._plain(method, handler.stream_unary), decode, serialize
            )
        return grpc.stream_stream_rpc_method_handler(
            self._stream(method, handler.stream_stream), decode, serialize
        )

    def _unary(self, method: str, behaviour: Behaviour) -> Handler:
        longest_s = self._max_deadline_s

        async def call(request: Any, context: Any) -> Any:
            if isinstance(request, Refused):
                return await _answer(method, request, context)
            try:
                remaining_s = context.time_remaining()
                if remaining_s is not None and remaining_s <= longest_s:
                    return await behaviour(request, context)
                return await _capped(behaviour, request, context, longest_s)
            except Exception as error:
                return await _answer(method, error, context)

        return call

    def _plain(self, method: str, behaviour: Behaviour) -> Handler:
        async def call(requests: Any, context: Any) -> Any:
            try:
                return await behaviour(requests, context)
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
    """A decoder that refuses instead of failing.

    A unary request is decoded before any code of ours runs, so the refusal is returned in place of the
    message; in a stream it is raised out of the servicer's own read.
    """

    def checked(body: bytes) -> Any:
        refusal: Refused
        if len(body) > limit_bytes:
            refusal = oversized(limit_bytes)
        else:
            try:
                return decode(body)
            except Exception:
                refusal = undecodable()
        if by_value:
            return refusal
        raise refusal

    return checked


def _written(behaviour: Callable[..., AsyncIterator[Any]]) -> Handler:
    async def write(request: Any, context: Any) -> None:
        answers: Any = behaviour(request, context)
        async with aclosing(answers):
            async for answer in answers:
                await context.write(answer)

    return write


async def _capped(behaviour: Behaviour, request: Any, context: Any, longest_s: float) -> Any:
    limit = asyncio.timeout(longest_s)
    try:
        async with limit:
            return await behaviour(request, context)
    except TimeoutError:
        if not limit.expired():
            raise
    return await context.abort(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"the call took longer than the {longest_s:g} s that this server allows",
    )


async def _answer(method: str, error: Exception, context: Any) -> Any:
    if isinstance(error, Refused):
        trailers = ((STATUS_DETAILS_KEY, error.status_details()),)
        return await context.abort(error.status, error.message, trailers)
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, NotImplementedError):  # a newer peer's call: the generated base class raises this
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this version does not have the call")
    if context.done():  # the client went away, and the servicer met the closed call; nobody can be answered
        log.info("rpc_abandoned", method=method, problem=repr(error))
        return None
    request_id = secrets.token_hex(8)
    log.error("rpc_failed", method=method, request_id=request_id, exc_info=error)
    return await context.abort(grpc.StatusCode.INTERNAL, f"internal error, request {request_id}")
