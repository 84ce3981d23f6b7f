"""An OpenTelemetry collector for tests: a real gRPC server that keeps what it is sent."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_rpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_rpc


class Collector(metrics_rpc.MetricsServiceServicer, trace_rpc.TraceServiceServicer):
    """Takes metrics and spans by OTLP.

    Attributes:
        requests: metrics, as they came.
        spans: every span that came.
        resources: attributes of what sent them, by span id.
        silent: set it, and nothing is answered.
    """

    def __init__(self) -> None:
        self.requests: list[metrics_pb.ExportMetricsServiceRequest] = []
        self.spans: list[Any] = []
        self.resources: dict[bytes, dict[str, str]] = {}
        self.headers: dict[str, str] = {}
        self.silent = False
        self._released = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8))
        metrics_rpc.add_MetricsServiceServicer_to_server(self, self._server)
        trace_rpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        """What goes into MUSTER_TELEMETRY_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Collector":
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:
        """Metrics."""
        self.met(context)
        self.requests.append(request)
        return metrics_pb.ExportMetricsServiceResponse()

    def met(self, context: Any) -> None:
        """Notes the headers, and waits while it shall be silent."""
        self.headers.update(dict(context.invocation_metadata()))
        if self.silent:
            self._released.wait()

    @property
    def instances(self) -> set[str]:
        """The processes that sent metrics."""
        return {
            attribute.value.string_value
            for request in self.requests
            for resource in request.resource_metrics
            for attribute in resource.resource.attributes
            if attribute.key == "service.instance.id"
        }

    def metrics(self) -> dict[str, Any]:
        """The newest of each metric, by name."""
        return {
            metric.name: metric
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Traces(trace_rpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:
        self._collector.met(context)
        for resource in request.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._collector.resources[span.span_id] = attributes
                    self._collector.spans.append(span)
        return trace_pb.ExportTraceServiceResponse()
