"""Collects the handlers of servicers, as a server of gRPC would."""

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

_NO_PORTS = "a server of the test kit has no ports: its callers are in the same process"


class Handlers(grpc.aio.Server):
    """The RPCs of one address."""

    def __init__(self) -> None:
        self._by_path: dict[str, Any] = {}

    def find(self, path: str) -> Any:
        """The handler of `/package.Service/Method`; None: there is no such method."""
        return self._by_path.get(path)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """See `grpc.aio.Server`."""
        self._by_path |= {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """See `grpc.aio.Server`; the registered handlers are those already."""

    def add_insecure_port(self, address: str) -> int:
        """See `grpc.aio.Server`; it has none."""
        raise RuntimeError(_NO_PORTS)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """See `grpc.aio.Server`; it has none."""
        raise RuntimeError(_NO_PORTS)

    async def start(self) -> None:
        """See `grpc.aio.Server`."""

    async def stop(self, grace: float | None) -> None:
        """See `grpc.aio.Server`."""

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """See `grpc.aio.Server`."""
        return True
