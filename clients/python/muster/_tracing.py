"""Spans of the calls and their context on the wire, for programs that use OpenTelemetry.

Nothing is imported: if the program has loaded `opentelemetry.trace`, its tracer is used; otherwise all of
this does nothing. Where the spans go is the program's choice.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRACEPARENT = "traceparent"
"""Key of a call's context in its metadata (W3C Trace Context)."""


def traceparent() -> str:
    """The current span's context in the format of the W3C; empty if there is no span."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def metadata() -> tuple[tuple[str, str], ...]:
    """The current span's context as metadata of a unary call; empty if there is no span."""
    text = traceparent()
    return ((TRACEPARENT, text),) if text else ()


@contextmanager
def span(name: str, group_id: str) -> Iterator[None]:
    """Makes the enclosed code a span of the program's trace.

    A member works long after the span in which it was started has ended: it then begins a trace of its own,
    with a link to that span.

    Args:
        name: of the span.
        group_id: an attribute of the span.
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
