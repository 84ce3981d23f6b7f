"""What a process tells about itself: metrics, traces, and where they go. Without settings none of it runs."""

from muster_runtime.telemetry.instruments import Counter, Distribution, Histogram, Sample
from muster_runtime.telemetry.metric import OTHER, Kind, Metric
from muster_runtime.telemetry.settings import TelemetrySettings
from muster_runtime.telemetry.telemetry import Source, Telemetry

__all__ = [
    "OTHER",
    "Counter",
    "Distribution",
    "Histogram",
    "Kind",
    "Metric",
    "Sample",
    "Source",
    "Telemetry",
    "TelemetrySettings",
]
