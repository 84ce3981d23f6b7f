"""Telemetry of one process, started and stopped."""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from muster_runtime.telemetry.collection import Collection, Source
from muster_runtime.telemetry.metric import Metric
from muster_runtime.telemetry.process import ProcessSource
from muster_runtime.telemetry.rpcs import RpcMetrics
from muster_runtime.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from muster_runtime.telemetry.otlp import MetricSender
    from muster_runtime.telemetry.prometheus import PrometheusEndpoint
    from muster_runtime.telemetry.tracing import Tracing

__all__ = ["Source", "Telemetry"]

log = structlog.get_logger()


class Telemetry:
    """Where the parts of a process tell their numbers, and where those go.

    A process without any address in its settings has none: then nothing is counted and no library is loaded.
    Nothing here ever delays or fails a call: numbers are read and sent in threads of their own, and what a
    collector does not take is dropped and counted.

    Args:
        settings: where metrics and traces go.
        roles: what the process runs.
        version: of the software.
        instance: name of the process among those of its roles; made from host and process id if empty.

    Attributes:
        rpcs: counts the unary calls of the process's servers.
    """

    def __init__(
        self, settings: TelemetrySettings, roles: Sequence[str], version: str, instance: str = ""
    ) -> None:
        self._settings = settings
        self._roles = tuple(roles)
        self._version = version
        self._instance = instance or f"{socket.gethostname()}-{os.getpid()}"
        self._collection = Collection(settings.collect_timeout_ms)
        self._process = ProcessSource(version, "+".join(roles), lambda: self._collection.timeouts)
        self._collection.add(self._process)
        self.rpcs = RpcMetrics()
        self._collection.add(self.rpcs)
        self._endpoint: PrometheusEndpoint | None = None
        self._sender: MetricSender | None = None
        self._tracing = self._traces() if settings.traces else None

    @property
    def tracing(self) -> "Tracing | None":
        """What makes spans; None: nothing is traced."""
        return self._tracing

    @property
    def metrics(self) -> list[Metric]:
        """Every metric that the process tells."""
        return self._collection.metrics

    def add(self, source: Source) -> None:
        """Adds what a part of the process has to tell."""
        self._collection.add(source)

    async def start(self) -> int:
        """Begins to serve and to send.

        Returns:
            The port of the endpoint for Prometheus; 0: there is none.

        Raises:
            StartupError: it cannot listen there, or a certificate cannot be read.
        """
        self._collection.start()
        self._process.watch.start()
        port = 0
        if self._settings.prometheus_listen is not None:
            from muster_runtime.telemetry.prometheus import PrometheusEndpoint

            self._endpoint = PrometheusEndpoint(self._collection.read, lambda: self._collection.metrics)
            port = self._endpoint.start(self._settings.prometheus_listen)
            log.info("metrics_served", port=port)
        if self._settings.otlp_endpoint and self._settings.otlp_metrics:
            from muster_runtime.telemetry.otlp import MetricSender

            self._sender = MetricSender(
                self._settings, self._resource(), self._collection.read, self._process.lost
            )
            self._sender.start()
        return port

    async def stop(self) -> None:
        """Sends what there is once more and ends, within a few seconds whatever the collector does."""
        self._process.watch.stop()
        parts = [part for part in (self._endpoint, self._sender, self._tracing) if part is not None]
        self._endpoint = self._sender = self._tracing = None
        await asyncio.gather(*(asyncio.to_thread(part.stop) for part in parts))
        self._collection.stop()

    def _traces(self) -> "Tracing":
        from muster_runtime.telemetry.tracing import Tracing

        return Tracing(self._settings, self._resource(), self._process.lost)

    def _resource(self) -> "Resource":
        from opentelemetry.sdk.resources import Resource

        return Resource.create(
            {
                "service.namespace": "muster",
                "service.name": f"muster-{self._roles[0]}" if len(self._roles) == 1 else "muster",
                "service.version": self._version,
                "service.instance.id": self._instance,
                "muster.roles": ",".join(self._roles),
            }
        )
