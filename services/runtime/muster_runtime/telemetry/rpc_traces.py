"""Spans of the unary calls that a process serves."""

from contextvars import ContextVar
from typing import Any

import grpc
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from muster_runtime.telemetry.telemetry import Handler
from muster_runtime.telemetry.tracing import ALWAYS, TRACEPARENT, Tracing, context_from, within

CURRENT: ContextVar[Span | None] = ContextVar("muster_span", default=None)
"""The span of what is being done now; what is sent meanwhile belongs to it."""

UNTRACED = frozenset({"Heartbeat", "ConsumerGroupHeartbeat", "Check"})
"""Calls that are too many and say too little."""
REBALANCING = frozenset({"JoinGroup", "SyncGroup", "LeaveGroup"})
"""Calls that are traced always: they are few, and a rebalance links to them."""


def call_span(tracing: Tracing, name: str, traceparent: str) -> Span:
    """The span of a call that has come.

    Args:
        tracing: makes it.
        name: of the call.
        traceparent: what its caller sent; empty: nothing.
    """
    method = name.rpartition("/")[2]
    return tracing.span(
        name,
        parent=context_from(traceparent),
        kind=SpanKind.SERVER,
        attributes={ALWAYS: True} if method in REBALANCING else None,
    )


def traced(tracing: Tracing, method: str, handler: Handler) -> Handler:
    """A handler of unary calls with a span around each.

    Args:
        tracing: makes the spans.
        method: full name of the service, and of the call.
        handler: what is called.
    """
    if method.rpartition("/")[2] in UNTRACED:
        return handler

    async def call(request: Any, context: Any) -> Any:
        span = call_span(tracing, method, _sent_in(context))
        CURRENT.set(span)  # grpc runs each call in a task of its own
        with within(span):
            try:
                return await handler(request, context)
            except BaseException:
                code = context.code()
                text = code.name if isinstance(code, grpc.StatusCode) else "CANCELLED"
                span.set_status(Status(StatusCode.ERROR, text))
                raise
            finally:
                span.end()

    return call


def _sent_in(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT:
            return value if isinstance(value, str) else ""
    return ""
