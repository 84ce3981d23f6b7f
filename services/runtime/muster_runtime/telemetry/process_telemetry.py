"""Telemetry that is on: what counts, serves and sends."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from muster_runtime.telemetry.collection import Collection
from muster_runtime.telemetry.process import ProcessSource
from muster_runtime.telemetry.prometheus import PrometheusEndpoint
from muster_runtime.telemetry.rpcs import RpcMetrics
from muster_runtime.telemetry.settings import TelemetrySettings
from muster_runtime.telemetry.telemetry import Handler, Source, Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from muster_runtime.telemetry.otlp import MetricSender

log = structlog.get_logger()


class ProcessTelemetry(Telemetry):
    """Where the numbers and spans of a process go.

    Only a process with an address in its settings has one, and loads this module and its libraries. Nothing
    here ever delays or fails a call: numbers are read and sent in threads of their own, and what a collector
    does not take is dropped and counted.

    Args:
        settings: where metrics and traces go.
        roles: what the process runs.
        version: of the software.
        instance: name of the process among those of its roles; made from host and process id if empty.
    """

    on = True

    def __init__(
        self, settings: TelemetrySettings, roles: Sequence[str], version: str, instance: str = ""
    ) -> None:
        self._settings = settings
        self.max_groups = settings.max_groups
        self._roles = tuple(roles)
        self._version = version
        self._instance = instance or f"{socket.gethostname()}-{os.getpid()}"
        self._collection = Collection(settings.collect_timeout_ms)
        self._process = ProcessSource(version, "+".join(roles), lambda: self._collection.timeouts)
        self._collection.add(self._process)
        self._rpcs = RpcMetrics()
        self._collection.add(self._rpcs)
        self._endpoint: PrometheusEndpoint | None = None
        self._sender: MetricSender | None = None
        if settings.traces:
            from muster_runtime.telemetry.tracing import Tracing

            self.tracing = Tracing(settings, self._resource(), self._process.lost)

    def add(self, make: Callable[[], Source]) -> None:
        """See `Telemetry`."""
        self._collection.add(make())

    def watching(self, method: str, handler: Handler) -> Handler:
        """See `Telemetry`."""
        if self.tracing is not None:
            from muster_runtime.telemetry.rpc_traces import traced

            handler = traced(self.tracing, method, handler)
        return self._rpcs.counted(method, handler)

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
            self._endpoint = PrometheusEndpoint(self._collection.registry)
            port = self._endpoint.start(self._settings.prometheus_listen)
            log.info("metrics_served", port=port)
        if self._settings.otlp_endpoint and self._settings.otlp_metrics:
            from muster_runtime.telemetry.otlp import MetricSender

            self._sender = MetricSender(
                self._settings, self._resource(), self._collection.registry, self._process.lost
            )
            self._sender.start()
        return port

    async def stop(self) -> None:
        """Sends what there is once more and ends, within a few seconds whatever the collector does."""
        self._process.watch.stop()
        parts = [part for part in (self._endpoint, self._sender, self.tracing) if part is not None]
        self._endpoint = self._sender = self.tracing = None
        await asyncio.gather(*(asyncio.to_thread(part.stop) for part in parts))
        self._collection.stop()

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
