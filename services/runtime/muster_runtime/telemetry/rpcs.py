"""Counts the unary calls of a process's servers."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import metadata_pb2, process_pb2
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2

from muster_runtime.telemetry.instruments import Counter, Histogram
from muster_runtime.telemetry.metric import SHORT_SECONDS, Kind, Metric
from muster_runtime.telemetry.telemetry import Handler, Source

_METHODS = tuple(
    f"{service.name}/{method.name}"
    for file in (discovery_pb2, coordinator_pb2, metadata_pb2, peer_pb2, process_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming and not method.server_streaming
)
_STATUSES = tuple(code.name for code in grpc.StatusCode)
_OK, _CANCELLED, _UNKNOWN = "OK", "CANCELLED", "UNKNOWN"

RPCS = Metric(
    "muster_rpcs",
    Kind.COUNTER,
    "Unary calls that were ended, by their gRPC status.",
    labels={"method": _METHODS, "status": _STATUSES},
    advice="INTERNAL: a defect, look for `rpc_failed` in the log. RESOURCE_EXHAUSTED: a limit of "
    "MUSTER_SERVER_…. INVALID_ARGUMENT: a client sends what the API does not allow.",
)
RPC_DURATION = Metric(
    "muster_rpc_duration",
    Kind.HISTOGRAM,
    "Time that a unary call was open at the server, while it was parked included.",
    "seconds",
    labels={"method": _METHODS},
    bounds=(*SHORT_SECONDS, 30.0, 60.0, 300.0),
    advice="Long Heartbeat or FindCoordinator: look at muster_loop_lag_seconds.",
)


class RpcMetrics(Source):
    """Counts calls; those of services that are not Muster's, such as health, come under `other`."""

    metrics: Sequence[Metric] = (RPCS, RPC_DURATION)

    def __init__(self) -> None:
        self._ended = Counter(RPCS)
        self._duration = Histogram(RPC_DURATION)
        self.instruments = (self._ended, self._duration)

    def counted(self, method: str, handler: Handler) -> Handler:
        """A handler of unary calls that is counted.

        Args:
            method: its service's full name and its own.
            handler: what is called.
        """
        service, _, name = method.rpartition("/")
        short = f"{service.rpartition('.')[2]}/{name}"
        place = (short,)
        well = (short, _OK)
        ended, duration, now = self._ended, self._duration, time.perf_counter

        async def call(request: Any, context: Any) -> Any:
            began = now()
            labels = well
            try:
                return await handler(request, context)
            except asyncio.CancelledError:
                labels = (short, _CANCELLED)
                raise
            except BaseException:
                code = context.code()
                labels = (short, code.name if isinstance(code, grpc.StatusCode) else _UNKNOWN)
                raise
            finally:
                ended.add(labels)
                duration.observe(now() - began, place)

        return call
