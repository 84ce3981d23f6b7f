"""What operators see of a process: its software and its clock."""

import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import Any

from muster_protos.muster.internal.v1 import process_pb2, process_pb2_grpc

from muster_runtime import clock


@cache
def software_version() -> str:
    """Version of the software that this process runs; `unknown` where it was not installed."""
    try:
        return importlib.metadata.version("muster-server")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class ProcessServicer(process_pb2_grpc.ProcessServiceServicer):
    """Implements `muster.internal.v1.ProcessService`.

    Args:
        rights: whether the process asks what its callers may do, when it is asked.
        knows_internal_callers: whether it asks who makes internal calls.
    """

    def __init__(
        self, rights: Callable[[], process_pb2.RightsState.ValueType], *, knows_internal_callers: bool
    ) -> None:
        self._rights = rights
        self._internal_callers = (
            process_pb2.INTERNAL_CALLERS_KNOWN if knows_internal_callers else process_pb2.INTERNAL_CALLERS_ANY
        )
        self._version = software_version()
        self._since_ms = clock.boot_ms()

    async def DescribeProcess(
        self, _request: process_pb2.DescribeProcessRequest, _context: Any
    ) -> process_pb2.DescribeProcessResponse:
        """Version and clocks."""
        return process_pb2.DescribeProcessResponse(
            version=self._version,
            wall_clock_ms=clock.wall_ms(),
            up_ms=clock.boot_ms() - self._since_ms,
            rights=self._rights(),
            internal_callers=self._internal_callers,
        )
