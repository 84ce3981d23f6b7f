"""Discovery's own metrics, beside those of its calls and its view."""

from collections.abc import Sequence

from muster_runtime.telemetry import Kind, Metric, Sample, Source

from muster_discovery.service import DiscoveryService

WATCHERS = Metric(
    "muster_watchers",
    Kind.GAUGE,
    "Open WatchCluster calls.",
    advice="Near MUSTER_DISCOVERY_MAX_WATCHERS: add instances, or raise it.",
)

ALL = (WATCHERS,)
"""All of them."""


class DiscoverySource(Source):
    """Reads the metrics of one instance.

    Args:
        service: what it serves.
    """

    metrics: Sequence[Metric] = ALL

    def __init__(self, service: DiscoveryService) -> None:
        self._service = service

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        return [Sample(WATCHERS, self._service.watchers)]
