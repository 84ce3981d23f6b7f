"""Spans of the calls and their context on the wire, for programs that use OpenTelemetry.

Nothing is imported: where the program has loaded `opentelemetry.trace`, its tracer is used; elsewhere all of
this does nothing. What becomes of the spans is the program's affair.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRACEPARENT = "traceparent"
"""Key of a call's context in its metadata (W3C Trace Context)."""


def traceparent() -> str:
    """The context of the present span as it is sent; empty: there is none."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def metadata() -> tuple[tuple[str, str], ...] | None:
    """The current span's context as metadata of a unary call; None: there is no span."""
    text = traceparent()
    return ((TRACEPARENT, text),) if text else None


@contextmanager
def span(name: str, group_id: str) -> Iterator[None]:
    """What is done within is a span of the program's trace.

    What a member does by itself long after it was started is no part of what it was started in: where that
    span has ended, a trace of its own begins, with a link to it.

    Args:
        name: what is done.
        group_id: the group that it is about.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield
        return
    around = api.get_current_span()
    elsewhere = {}
    if getattr(around, "end_time", None) is not None:
        elsewhere["context"] = api.set_span_in_context(api.INVALID_SPAN)
        elsewhere["links"] = [api.Link(around.get_span_context())]
    with api.get_tracer("muster").start_as_current_span(
        name, kind=api.SpanKind.CLIENT, attributes={"muster.group_id": group_id}, **elsewhere
    ):
        yield
