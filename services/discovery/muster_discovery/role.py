"""One instance of discovery: creates, starts and stops its parts."""

import asyncio
import socket
from contextlib import suppress

import structlog
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.v1 import discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.cluster.metrics import ViewSource
from muster_runtime.cluster.trail_sender import sends_to
from muster_runtime.cluster.view import ClusterView, Watcher
from muster_runtime.rpc.access.keeper import Keeper
from muster_runtime.rpc.access.metrics import AccessSource
from muster_runtime.rpc.channels import Channels
from muster_runtime.rpc.quotas.metrics import QuotaSource
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.rpc.wire import GRPC, Wire
from muster_runtime.telemetry import OFF, Telemetry

from muster_discovery._forward import Forwarder
from muster_discovery.metrics import DiscoverySource
from muster_discovery.service import DiscoveryService
from muster_discovery.settings import DiscoverySettings

log = structlog.get_logger()


class Discovery:
    """One discovery instance in the running event loop.

    Args:
        settings: where it listens, and addresses of metadata.
        server: limits of its gRPC server; the environment's if absent.
        quotas: what callers may ask for; the environment's if absent.
        trust: certificates and tokens; plain text and none if absent.
        wire: how processes reach each other.
        telemetry: where its metrics and spans go.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        *,
        server: ServerSettings | None = None,
        quotas: QuotaSettings | None = None,
        trust: Trust | None = None,
        wire: Wire = GRPC,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._settings = settings
        self._server = RpcServer(server, trust, wire, telemetry, quotas=quotas)
        self._telemetry = telemetry
        self._trust = trust
        self._wire = wire
        self._channels: Channels | None = None
        self._view: ClusterView | None = None
        self._keeper: Keeper | None = None
        self._becoming_ready: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port; 0 before `start`."""
        return self._server.port

    @property
    def address(self) -> Address:
        """The address for clients: `advertise`, or the host that it listens on with the bound port."""
        return self._settings.advertise or Address(self._settings.listen.host, self.port)

    async def start(self) -> int:
        """Listens and starts to watch metadata; health is SERVING once the first view has arrived.

        Returns:
            The bound port.

        Raises:
            StartupError: it cannot listen, or a certificate cannot be read.
        """
        self._channels = Channels(self._settings.metadata, self._trust, self._wire)
        self._view = view = ClusterView(self._channels, self._watcher())
        forwarder = Forwarder(self._channels, view, self._settings.topic_attempt_timeout_ms)
        service = DiscoveryService(
            view,
            forwarder,
            self._server.timed_writes,
            max_watchers=self._settings.max_watchers,
            access=self._server.access,
        )
        self._telemetry.add(lambda: ViewSource(view, "discovery"))
        server = self._server
        self._telemetry.add(lambda: AccessSource(server, "discovery"))
        self._telemetry.add(lambda: DiscoverySource(service))
        self._telemetry.add(lambda: QuotaSource(self._server.quotas, "discovery"))
        self._server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, service)
        self._server.on_stop(service.stop)
        try:
            port = await self._server.start(str(self._settings.listen))
        except BaseException:
            await self._channels.close()
            raise
        await view.start()
        self._keeper = self._server.access.trail.keeper = Keeper(f"discovery {self.address}")
        self._keeper.start(sends_to(self._channels))
        self._becoming_ready = asyncio.create_task(self._become_ready(view), name="discovery-ready")
        log.info("discovery_started", port=port)
        return port

    async def ready(self) -> None:
        """Waits until the first view has arrived and health is SERVING."""
        if self._becoming_ready is None:
            raise RuntimeError("start() first")
        await asyncio.shield(self._becoming_ready)

    async def stop(self) -> None:
        """Ends watchers, lets open calls finish, closes everything. May be called again."""
        if self._becoming_ready is not None:
            self._becoming_ready.cancel()
            with suppress(asyncio.CancelledError):
                await self._becoming_ready
        await self._server.stop(self._settings.stop_grace_ms)
        if self._keeper is not None:
            await self._keeper.stop()
        if self._view is not None:
            await self._view.stop()
        if self._channels is not None:
            await self._channels.close()
        log.info("discovery_stopped")

    def _watcher(self) -> Watcher:
        listen = self._settings.listen
        name = self._settings.advertise or Address(socket.gethostname(), listen.port)
        return Watcher("discovery", str(name), FEATURE_NAMES)

    async def _become_ready(self, view: ClusterView) -> None:
        await view.wait_change(0)
        await self._server.set_serving(True)
        log.info("discovery_ready")
