"""Sends metrics and spans to a collector, from threads of their own; counts what it refuses."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import urlsplit

import grpc
import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family

from muster_runtime.errors import StartupError
from muster_runtime.telemetry.settings import TelemetrySettings

log = structlog.get_logger()

SCOPE = "muster"
METRICS, SPANS = "metrics", "spans"
_UNITS = {"seconds": "s", "bytes": "By", "": "1"}
_SHUTDOWN_S = 1.0
_NOT_KEPT: Any = None

NOT_TAKEN, NO_ROOM = "not_taken", "no_room"

Lost = Callable[[str, str, int], None]
"""Called with what was dropped: `metrics` or `spans`, why, and how many. From any thread."""


class Delivery:
    """Whether a collector takes what it is sent; a change is logged, once.

    Args:
        endpoint: the collector.
        signal: `metrics` or `spans`.
        lost: called with what was dropped.
    """

    def __init__(self, endpoint: str, signal: str, lost: Lost) -> None:
        self._endpoint = endpoint
        self._signal = signal
        self._lost = lost
        self._failing = False

    def ended(self, *, well: bool, count: int) -> None:
        """Notes whether a collector took what was sent; `count`: how many metrics or spans it was."""
        if not well:
            self._lost(self._signal, NOT_TAKEN, count)
        if well == self._failing:
            self._failing = not well
            if well:
                log.info("telemetry_taken_again", signal=self._signal, endpoint=self._endpoint)
            else:
                log.warning("telemetry_dropped", signal=self._signal, endpoint=self._endpoint, count=count)


def exporter_options(settings: TelemetrySettings) -> dict[str, Any]:
    """What both exporters of the library are made with.

    Raises:
        StartupError: the file of the certificates cannot be read.
    """
    # The library writes a line for every attempt; what matters is logged by `Delivery`.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    secure = urlsplit(settings.otlp_endpoint).scheme == "https"
    credentials = None
    if secure:
        try:
            authority = None if settings.otlp_ca_file is None else settings.otlp_ca_file.read_bytes()
        except OSError as error:
            raise StartupError(
                f"MUSTER_TELEMETRY_OTLP_CA_FILE={str(settings.otlp_ca_file)!r}: the file cannot be read: "
                f"{error.strerror}"
            ) from None
        credentials = grpc.ssl_channel_credentials(authority)
    return {
        "endpoint": settings.otlp_endpoint,
        "insecure": not secure,
        "credentials": credentials,
        "headers": settings.otlp_headers.get_secret_value() or None,
        "timeout": settings.otlp_timeout_ms / 1000,
    }


class SpanSender(SpanExporter):
    """The library's exporter, with its losses counted.

    Args:
        settings: where to.
        lost: called with what was dropped.

    Attributes:
        handled: spans that were sent or dropped.
    """

    def __init__(self, settings: TelemetrySettings, lost: Lost) -> None:
        self.handled = 0
        self._exporter = OTLPSpanExporter(**exporter_options(settings))
        self._delivery = Delivery(settings.otlp_endpoint, SPANS, lost)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends spans; called by the thread that the library sends with."""
        try:
            result = self._exporter.export(spans)
        except Exception:
            result = SpanExportResult.FAILURE
        self.handled += len(spans)
        self._delivery.ended(well=result is SpanExportResult.SUCCESS, count=len(spans))
        return result

    def shutdown(self) -> None:
        """Ends a sending that is under way."""
        self._exporter.shutdown()


class MetricSender:
    """Sends all numbers periodically.

    Args:
        settings: where to, and how often.
        resource: which process this is.
        registry: what is sent; collected in the sender's thread.
        lost: called with what was dropped.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        resource: Resource,
        registry: CollectorRegistry,
        lost: Lost,
    ) -> None:
        self._exporter = OTLPMetricExporter(**exporter_options(settings))
        self._interval_s = settings.otlp_interval_ms / 1000
        self._timeout_ms = settings.otlp_timeout_ms
        self._resource = resource
        self._registry = registry
        self._delivery = Delivery(settings.otlp_endpoint, METRICS, lost)
        self._began_ns = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)

    def start(self) -> None:
        """Starts the thread that sends."""
        self._thread.start()

    def stop(self) -> None:
        """Sends once more and ends; does not wait long for a collector that does not answer."""
        self._stopping.set()
        self._thread.join(_SHUTDOWN_S)
        self._exporter.shutdown(timeout_millis=100)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        families = list(self._registry.collect())
        try:
            data = to_otlp(families, self._resource, self._began_ns, time.time_ns())
            result = self._exporter.export(data, timeout_millis=self._timeout_ms)
        except Exception:
            result = MetricExportResult.FAILURE
        count = sum(len(family.samples) for family in families)
        self._delivery.ended(well=result is MetricExportResult.SUCCESS, count=count)


def to_otlp(families: Iterable[Family], resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """Numbers of prometheus_client as the exporter of OpenTelemetry takes them.

    Args:
        families: the numbers.
        resource: which process they are of.
        began_ns: when counting began, Unix time.
        now_ns: when they were read.
    """
    metrics = [
        MetricData(
            name=family.name.removesuffix(f"_{family.unit}"),
            description=family.documentation,
            unit=_UNITS[family.unit],
            data=_data(family, began_ns, now_ns),
        )
        for family in families
        if family.samples
    ]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(family: Family, began_ns: int, now_ns: int) -> Sum | Gauge | HistogramData:
    if family.type == "histogram":
        return HistogramData(_distributions(family, began_ns, now_ns), AggregationTemporality.CUMULATIVE)
    points = [NumberDataPoint(sample.labels, began_ns, now_ns, sample.value) for sample in family.samples]
    if family.type == "counter":
        return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _distributions(family: Family, began_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    points = []
    for labels, samples in groupby(family.samples, lambda sample: {**sample.labels, "le": ""}):
        *buckets, count, total = samples  # each of the buckets counts those before it too
        below = [0, *(int(bucket.value) for bucket in buckets)]
        points.append(
            HistogramDataPoint(
                attributes={name: value for name, value in labels.items() if name != "le"},
                start_time_unix_nano=began_ns,
                time_unix_nano=now_ns,
                count=int(count.value),
                sum=total.value,
                bucket_counts=[upper - lower for lower, upper in pairwise(below)],
                explicit_bounds=[float(bucket.labels["le"]) for bucket in buckets[:-1]],
                min=_NOT_KEPT,
                max=_NOT_KEPT,
            )
        )
    return points
