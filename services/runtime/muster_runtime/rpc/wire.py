"""How processes reach each other."""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc

Options = Sequence[tuple[str, Any]]


class Wire(Protocol):
    """Makes channels and servers: all traffic of a process with others of Muster goes through them."""

    def channel(
        self, target: str, credentials: grpc.ChannelCredentials | None, options: Options
    ) -> grpc.aio.Channel:
        """A channel to `host:port`; plain text without credentials."""

    def server(self, options: Options) -> grpc.aio.Server:
        """A server, which is not started yet."""


class GrpcWire:
    """GRPC over sockets."""

    def channel(
        self, target: str, credentials: grpc.ChannelCredentials | None, options: Options
    ) -> grpc.aio.Channel:
        """See `Wire`."""
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, credentials, options=options)

    def server(self, options: Options) -> grpc.aio.Server:
        """See `Wire`."""
        return grpc.aio.server(options=options)


GRPC: Wire = GrpcWire()
"""What every process uses."""
