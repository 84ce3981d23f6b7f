"""What a process reports: metrics, traces, and where they go. Without settings none of it runs.

To read first: `metric.py`, what a metric is; `telemetry.py`, what the parts of a process know of all this.
The rest (`process_telemetry.py` and what it uses) is loaded only when telemetry is on.
"""

from muster_runtime.telemetry.metric import OTHER, Kind, Metric, Sample
from muster_runtime.telemetry.settings import TelemetrySettings
from muster_runtime.telemetry.telemetry import OFF, Source, Telemetry

__all__ = ["OFF", "OTHER", "Kind", "Metric", "Sample", "Source", "Telemetry", "TelemetrySettings"]
