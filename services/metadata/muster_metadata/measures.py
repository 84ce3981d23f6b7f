"""The metrics of an instance of metadata."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.telemetry import Metric, Sample, Source
from muster_runtime.telemetry.instruments import Counter, Histogram

from muster_metadata import metrics
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.off import Measures

if TYPE_CHECKING:
    from muster_metadata.traces import MetadataTraces


class MetadataMeasures(Measures, Source):
    """Counts and traces what one instance does.

    Args:
        quorum: its nodes.
        upkeep: what it repairs.
        ready: set once it serves.
        traces: makes the spans of appends; None: there are none.
    """

    metrics: Sequence[Metric] = metrics.ALL

    def __init__(
        self, quorum: Quorum, upkeep: Upkeep, ready: asyncio.Event, traces: "MetadataTraces | None"
    ) -> None:
        self._quorum = quorum
        self._upkeep = upkeep
        self._ready = ready
        self._traces = traces
        self._durations = Histogram(metrics.QUORUM_DURATION)
        self._outcomes = Counter(metrics.QUORUM_OUTCOMES)
        self._replies = Histogram(metrics.REDIS_REPLY)
        self.instruments = (self._durations, self._outcomes, self._replies)
        for node in quorum.nodes:
            node.steps.on_reply = partial(self._replied, (str(node.index),))

    def carrying_out(self, call: metadata_pb2.LogCall) -> AbstractContextManager[None]:
        """See `Measures`."""
        if self._traces is None or not call.append.traceparent:
            return nullcontext()
        return self._traces.appending(call.shard, call.append)

    def step_begins(self, step: str) -> Callable[[metadata_pb2.LogOutcome.ValueType], None]:
        """See `Measures`."""
        return partial(self._step_ended, step, time.perf_counter())

    def _step_ended(self, step: str, began: float, outcome: metadata_pb2.LogOutcome.ValueType) -> None:
        self._durations.observe(time.perf_counter() - began, (step,))
        self._outcomes.add((step, metrics.OUTCOMES.get(outcome, "")))

    def _replied(self, labels: tuple[str, ...], seconds: float) -> None:
        self._replies.observe(seconds, labels)

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        behind = self._upkeep.behind()
        samples = [
            Sample(metrics.READY, self._ready.is_set()),
            Sample(metrics.LOG_STREAMS, self.log_streams),
            *(
                Sample(metrics.LOG_REPAIRS, self._upkeep.repairs[result], (name,))
                for result, name in metrics.REPAIRS.items()
            ),
        ]
        for node in self._quorum.nodes:
            labels = (str(node.index),)
            samples.append(Sample(metrics.REDIS_CONNECTED, node.steps.connected, labels))
            samples.append(Sample(metrics.REDIS_REFUSING, bool(node.refusal), labels))
            samples.append(Sample(metrics.REDIS_LOST, node.steps.losses, labels))
            samples.append(Sample(metrics.LOGS_BEHIND, behind[node], labels))
        return samples
