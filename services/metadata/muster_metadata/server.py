"""The metadata service with a server of its own."""

import asyncio

from muster_protos.muster.internal.v1 import metadata_pb2_grpc
from muster_runtime.rpc.server import PortUse, RpcServer
from muster_runtime.settings import load
from muster_runtime.telemetry import OFF, Telemetry

from muster_metadata.metadata import Metadata
from muster_metadata.readers import Readers
from muster_metadata.service import METHOD_LIMITS, MetadataServicer
from muster_metadata.settings import MetadataSettings


class MetadataServer:
    """Serves a `Metadata` on a gRPC server.

    Args:
        settings: of the service; the environment's if absent.
        server: the gRPC server; a plain one if absent.
        telemetry: where its metrics and spans go.
    """

    def __init__(
        self,
        settings: MetadataSettings | None = None,
        server: RpcServer | None = None,
        telemetry: Telemetry = OFF,
    ) -> None:
        self.settings = load(MetadataSettings) if settings is None else settings
        self.server = RpcServer(telemetry=telemetry, use=PortUse.INTERNAL) if server is None else server
        self.metadata = Metadata(self.settings, telemetry)
        self.server.add(
            metadata_pb2_grpc.add_MetadataServiceServicer_to_server,
            MetadataServicer(
                self.metadata, Readers(self.server.timed_writes, self.settings.readers_max_bytes)
            ),
            method_limits=METHOD_LIMITS,
        )
        self.server.on_stop(self.metadata.drain)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`host:port` at which other services reach it; valid after `start`."""
        if self.settings.advertise:
            return self.settings.advertise
        host = self.settings.listen.rpartition(":")[0]
        return f"{host}:{self.server.port}"

    async def start(self) -> int:
        """Listens and starts to connect to the log; reports itself healthy once it is ready.

        Returns:
            The bound port.
        """
        port = await self.server.start(self.settings.listen)
        await self.metadata.start()
        self._serving = asyncio.create_task(self._serve(), name="metadata-serving")
        return port

    async def stop(self, grace_ms: int = 1_000) -> None:
        """Ends the streams, then the calls, then the connections."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self.server.stop(grace_ms)
        await self.metadata.stop()

    async def _serve(self) -> None:
        await self.metadata.ready.wait()
        await self.server.set_serving(True)
        await self.metadata.outdated.wait()
        await self.server.set_serving(False)
