"""Traces: spans of this process, and their context in what is sent to others."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from muster_runtime.telemetry.otlp import NO_ROOM, SCOPE, SPANS, Lost, SpanSender
from muster_runtime.telemetry.settings import TelemetrySettings

TRACEPARENT = "traceparent"
"""Key of a span's context in the metadata of a call (W3C Trace Context)."""
ALWAYS = "muster.always"
"""Attribute of a span that is kept whatever the ratio says, unless its caller decided."""

_PROPAGATOR = TraceContextTextMapPropagator()
_DELAY_MS = 1_000
_BATCH = 512
_SHUTDOWN_S = 1.0


class Tracing:
    """Makes spans. None of its methods waits, and none fails for what a collector does.

    Args:
        settings: where spans go, and the ratio.
        resource: which process this is.
        lost: called with what was dropped.
    """

    def __init__(self, settings: TelemetrySettings, resource: Resource, lost: Lost) -> None:
        self._sender = SpanSender(settings, lost)
        self._provider = TracerProvider(
            sampler=ParentBased(root=_Roots(settings.trace_ratio)), resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(_Queue(self._sender, settings.max_waiting_spans, lost))
        self._tracer = self._provider.get_tracer(SCOPE)

    def span(
        self,
        name: str,
        *,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: dict[str, Any] | None = None,
        links: Sequence[SpanContext] = (),
        began_ns: int | None = None,
    ) -> Span:
        """A span that has begun; the caller ends it.

        Args:
            name: what is done.
            parent: the context that it belongs to; None: it is the first of a trace.
            kind: which side of a call it is.
            attributes: what is known already.
            links: spans of other traces that have to do with it.
            began_ns: when it began, Unix time; now if absent.
        """
        return self._tracer.start_span(
            name,
            context=Context() if parent is None else parent,
            kind=kind,
            attributes=attributes,
            links=[Link(context) for context in links],
            start_time=began_ns,
        )

    def stop(self) -> None:
        """Sends what waits; gives up after a second. Blocks: not for the loop's thread."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_S)
        if ending.is_alive():
            self._sender.shutdown()
            ending.join(_SHUTDOWN_S)


class _Roots(Sampler):
    """What begins a trace: a share of it, and all that is marked."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *rest: Any,
        **more: Any,
    ) -> SamplingResult:
        chosen = ALWAYS_ON if attributes and ALWAYS in attributes else self._ratio
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, *rest, **more)

    def get_description(self) -> str:
        return f"MusterRoots{{{self._ratio.get_description()}}}"


class _Queue(SpanProcessor):
    """The library's queue and thread, with what finds no room counted."""

    def __init__(self, sender: SpanSender, room: int, lost: Lost) -> None:
        self._sender = sender
        self._room = room
        self._lost = lost
        self._taken = 0
        self._batches = BatchSpanProcessor(
            sender, max_queue_size=room, schedule_delay_millis=_DELAY_MS, max_export_batch_size=_BATCH
        )

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._taken - self._sender.handled >= self._room:
            self._lost(SPANS, NO_ROOM, 1)
            return
        self._taken += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()


def context_of(span: Span) -> Context:
    """The context that children of a span belong to."""
    return trace.set_span_in_context(span, Context())


def traceparent_of(span: Span) -> str:
    """A span's context as it is sent."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context_of(span))
    return carrier.get(TRACEPARENT, "")


def context_from(traceparent: str) -> Context | None:
    """The context in what was received; None: there is none, or none that can be read."""
    if not traceparent:
        return None
    context = _PROPAGATOR.extract({TRACEPARENT: traceparent}, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


@contextmanager
def within(span: Span) -> Iterator[None]:
    """What is logged meanwhile carries the ids of the span and its trace."""
    context = span.get_span_context()
    with structlog.contextvars.bound_contextvars(
        trace_id=trace.format_trace_id(context.trace_id), span_id=trace.format_span_id(context.span_id)
    ):
        yield
