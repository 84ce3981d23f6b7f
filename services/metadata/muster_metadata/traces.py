"""Spans of appends: one for the step, and below it one for each node of the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.telemetry.rpc_traces import CURRENT
from muster_runtime.telemetry.tracing import Tracing, context_from, context_of, within
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from muster_metadata.nodes.node import Answer, Node


class MetadataTraces:
    """Makes the spans of one instance.

    Args:
        tracing: where they go.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextmanager
    def appending(self, shard: int, step: metadata_pb2.AppendStep) -> Iterator[None]:
        """A context within which a traced batch is written, in a task of its own."""
        parent = context_from(step.traceparent)
        if parent is None:
            yield
            return
        span = self._tracing.span(
            "quorum append",
            parent=parent,
            kind=SpanKind.SERVER,
            attributes={"muster.shard": shard, "muster.records": len(step.records)},
        )
        CURRENT.set(span)
        try:
            with within(span):
                yield
        finally:
            span.end()

    def asked(self, node: Node, answer: Answer) -> None:
        """Starts the span of one node; it ends with the node's answer, perhaps after the majority's."""
        parent = CURRENT.get()
        if parent is None or not parent.is_recording():
            return
        span = self._tracing.span(
            "redis append",
            parent=context_of(parent),
            kind=SpanKind.CLIENT,
            attributes={"db.system.name": "redis", "muster.node": node.index},
        )
        answer.add_done_callback(partial(_answered, span))


def _answered(span: Span, answer: Answer) -> None:
    if answer.cancelled():
        span.set_status(Status(StatusCode.ERROR, "CANCELLED"))
    else:
        reply = answer.result()
        span.set_attribute("muster.status", reply.status.value)
        if not reply.done:
            span.set_status(Status(StatusCode.ERROR, str(reply.problem or reply.status.value)))
    span.end()
