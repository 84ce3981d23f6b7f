"""Traces of a coordinator: calls, the rebalances that they lead to, and what both store.

A rebalance is one trace. It begins when the group starts to prepare, links to the joins that it waited for
and to the sync that brought the assignment, and has the steps on the log below it, down to Redis.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import structlog
from muster_core.events import Append, GroupRequest, GroupResponse
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2
from muster_runtime.telemetry.rpc_traces import CURRENT, call_span
from muster_runtime.telemetry.tracing import ALWAYS, Tracing, context_of, traceparent_of, within
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from muster_coordinator.telemetry.metrics import cause_name

log = structlog.get_logger()

LINKS_MAX = 128
"""Joins that a rebalance links to; the library keeps no more."""
_NS = 1_000_000
_SERVICE = "muster.v1.GroupSessionService"
_CALLS = {
    "join_group": "JoinGroup",
    "sync_group": "SyncGroup",
    "leave_group": "LeaveGroup",
    "offset_commit": "OffsetCommit",
    "offset_fetch": "OffsetFetch",
}


class CoordinatorTraces:
    """Makes the spans of one coordinator.

    Args:
        tracing: where they go.
    """

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._joins: dict[str, dict[int, SpanContext]] = {}

    def noting(
        self, answer: Callable[[GroupRequest, str], Awaitable[GroupResponse]]
    ) -> Callable[[GroupRequest, str], Awaitable[GroupResponse]]:
        """Wraps a handler of unary calls so that a rebalance knows the joins that wait for it."""

        def answer_noted(request: GroupRequest, host: str) -> Awaitable[GroupResponse]:
            span = CURRENT.get()
            return answer(request, host) if span is None else noted(request, host, span)

        async def noted(request: GroupRequest, host: str, span: Span) -> GroupResponse:
            self.begun(request, span)
            try:
                return await answer(request, host)
            finally:
                self.ended(request, span)

        return answer_noted

    def begun(self, request: GroupRequest, span: Span) -> None:
        """Notes a call that is open from now on."""
        group_id = getattr(request, "group_id", "")
        if span.is_recording() and group_id:
            span.set_attribute("muster.group_id", group_id)
        if isinstance(request, coordinator_pb2.JoinGroupRequest):
            context = span.get_span_context()
            self._joins.setdefault(group_id, {})[context.span_id] = context

    def ended(self, request: GroupRequest, span: Span) -> None:
        """Notes that a call was answered, or that its caller is gone."""
        if isinstance(request, coordinator_pb2.JoinGroupRequest):
            open_joins = self._joins.get(request.group_id, {})
            open_joins.pop(span.get_span_context().span_id, None)
            if not open_joins:
                self._joins.pop(request.group_id, None)

    def joins(self, group_id: str) -> Sequence[SpanContext]:
        """Joins of a group that are open, some of them if they are very many."""
        return list(islice(self._joins.get(group_id, {}).values(), LINKS_MAX))

    def of_stream(self) -> "StreamTraces":
        """What makes the spans of the calls of one session stream."""
        return StreamTraces(self)

    def watch(self, core: Shard) -> "TraceWatch":
        """What makes the spans of one shard's rebalances and appends."""
        return TraceWatch(core, self)


class StreamTraces:
    """The spans of the open calls of one session stream.

    Args:
        traces: of the coordinator.
    """

    def __init__(self, traces: CoordinatorTraces) -> None:
        self._traces = traces
        self._open: dict[int, tuple[GroupRequest, Span]] = {}

    @contextmanager
    def starting(self, call_id: int, kind: str, request: GroupRequest, traceparent: str) -> Iterator[None]:
        """Wraps the start of a call; what it stores and logs at once belongs to its span."""
        name = _CALLS.get(kind)
        if name is None:
            yield
            return
        span = call_span(self._traces.tracing, f"{_SERVICE}/{name}", traceparent)
        self._open[call_id] = (request, span)
        self._traces.begun(request, span)
        token = CURRENT.set(span)
        try:
            with within(span):
                yield
        finally:
            CURRENT.reset(token)

    def done(self, call_id: int) -> None:
        """It was answered."""
        request, span = self._open.pop(call_id, (None, None))
        if request is not None and span is not None:
            self._traces.ended(request, span)
            span.end()

    def cancel(self) -> None:
        """The client is gone."""
        for call_id in tuple(self._open):
            self._open[call_id][1].set_status(Status(StatusCode.ERROR, "CANCELLED"))
            self.done(call_id)


class TraceWatch:
    """Makes the spans of the records of one shard's groups and of the steps that carry them.

    Args:
        core: the shard, to be read only.
        traces: of the coordinator.
    """

    def __init__(self, core: Shard, traces: CoordinatorTraces) -> None:
        self._core = core
        self._traces = traces
        self._rebalances: dict[str, Span] = {}
        self._of_append: dict[int, Span] = {}
        self._completes: dict[int, str] = {}
        self._step: Span | None = None

    def storing(self, append: Append) -> None:
        """See `Watch`."""
        span = CURRENT.get()
        for record in append.records:
            kind = record.WhichOneof("kind")
            if kind == "generation_started":
                span = self._rebalance(record.generation_started)
                if not record.generation_started.members:
                    self._completes[append.append_id] = record.generation_started.group_id
            elif kind == "assignment_committed":
                span = self._assignment(append.append_id, record.assignment_committed.group_id, span)
        if span is not None and span.is_recording():
            self._of_append[append.append_id] = span

    def stored(self, append_id: int) -> None:
        """See `Watch`."""
        self._of_append.pop(append_id, None)
        group_id = self._completes.pop(append_id, None)
        rebalance = None if group_id is None else self._rebalances.pop(group_id, None)
        if rebalance is not None:
            rebalance.end()

    def over(self) -> None:
        """See `Watch`."""
        for span in self._rebalances.values():
            span.set_status(Status(StatusCode.ERROR, "the shard was given up"))
            span.end()
        self._rebalances.clear()
        self.settled()

    def sending(self, step: metadata_pb2.AppendStep, append_ids: Sequence[int]) -> None:
        """See `Watch`."""
        spans = [self._of_append[append_id] for append_id in append_ids if append_id in self._of_append]
        if not spans:
            return
        # A call's own records may travel ahead of its rebalance's.
        spans.sort(key=lambda span: span not in self._rebalances.values())
        self._step = self._traces.tracing.span(
            "log append",
            parent=context_of(spans[0]),
            kind=SpanKind.CLIENT,
            attributes={"muster.shard": self._core.number, "muster.records": len(step.records)},
            links=[span.get_span_context() for span in spans[1 : 1 + LINKS_MAX]],
        )
        step.traceparent = traceparent_of(self._step)

    def settled(self) -> None:
        """See `Watch`."""
        step, self._step = self._step, None
        if step is not None:
            step.end()

    def _rebalance(self, started: records_pb2.GenerationStarted) -> Span:
        group = self._core.groups.get(started.group_id)
        before = self._rebalances.pop(started.group_id, None)
        if before is not None:
            before.set_status(
                Status(StatusCode.ERROR, "the next generation began before there was an assignment")
            )
            before.end()
        span = self._traces.tracing.span(
            "rebalance",
            attributes={
                ALWAYS: True,
                "muster.group_id": started.group_id,
                "muster.generation": started.generation,
                "muster.members": len(started.members),
                "muster.shard": self._core.number,
                "muster.cause": cause_name(started.cause.kind),
                "muster.cause.sentence": started.cause.sentence,
            },
            links=self._traces.joins(started.group_id),
            began_ns=None if group is None else group.state_since_ms * _NS,
        )
        span.add_event("all joined")
        self._rebalances[started.group_id] = span
        with within(span):
            log.info(
                "group_rebalances",
                group_id=started.group_id,
                generation=started.generation,
                members=len(started.members),
                cause=started.cause.sentence,
            )
        return span

    def _assignment(self, append_id: int, group_id: str, sync: Span | None) -> Span | None:
        rebalance = self._rebalances.get(group_id)
        if rebalance is None:
            return sync
        if sync is not None:
            rebalance.add_link(sync.get_span_context())
        self._completes[append_id] = group_id
        return rebalance
