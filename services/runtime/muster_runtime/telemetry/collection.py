"""Everything that a process counts, as one registry of prometheus_client.

Instruments are in it as they are. The other numbers are read when somebody collects, on the event loop, where
they change.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator, Sequence

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from muster_runtime.telemetry.metric import Kind, Metric, Sample
from muster_runtime.telemetry.telemetry import Source

log = structlog.get_logger()


class Collection(Collector):
    """The sources of a process.

    Reading happens on the loop, so that no lock is needed where plain numbers are counted. A loop that hangs
    costs a scrape its time-out and new numbers, not the answer.

    Args:
        timeout_ms: how long whoever collects waits for the loop.

    Attributes:
        registry: all numbers; to be collected from any thread but the loop's.
        timeouts: how often the loop did not answer in time.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.registry = CollectorRegistry()
        self.timeouts = 0
        self._timeout_s = timeout_ms / 1000
        self._sources: list[Source] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = threading.Lock()
        self._last: Sequence[Sample] = ()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def add(self, source: Source) -> None:
        """Adds a source. On the loop."""
        for instrument in source.instruments:
            self.registry.register(instrument)
        self._sources.append(source)

    def start(self) -> None:
        """The running loop is the one to read on."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Nothing is read from now on; what was read last stays known."""
        self._loop = None

    def collect(self) -> Iterator[Family]:
        """The numbers that no instrument has; a metric without a number is there with its name."""
        samples = self._read()
        families = {metric: _family(metric) for source in self._sources for metric in _read_of(source)}
        for sample in samples:
            families[sample.metric].add_metric(sample.labels, sample.value)
        yield from families.values()

    def _read(self) -> Sequence[Sample]:
        """All samples, or those of before if the loop does not answer in time."""
        with self._reading:
            loop = self._loop
            if loop is None or loop.is_closed():
                return self._last
            work = self._read_here()
            try:
                future = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # it was closed just now
                work.close()
                return self._last
            try:
                self._last = future.result(self._timeout_s)
            except TimeoutError:
                future.cancel()
                self.timeouts += 1
            except concurrent.futures.CancelledError:
                pass  # the loop ends
            return self._last

    async def _read_here(self) -> list[Sample]:
        """All samples. A source that fails is left out and logged."""
        samples: list[Sample] = []
        for source in tuple(self._sources):
            try:
                samples += await source.read()
            except Exception:
                log.exception("telemetry_source_failed", source=type(source).__name__)
        return samples


def _read_of(source: Source) -> list[Metric]:
    counted = {instrument.metric for instrument in source.instruments}
    return [metric for metric in source.metrics if metric not in counted]


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.base, metric.text, labels=list(metric.labels), unit=metric.unit)
