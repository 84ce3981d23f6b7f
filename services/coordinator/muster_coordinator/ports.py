"""The ports of a coordinator: for its clients, and for the other processes of the cluster."""

from collections.abc import Callable
from typing import Any

from muster_runtime.addresses import Address
from muster_runtime.errors import StartupError
from muster_runtime.rpc.server import PortUse, RpcServer

from muster_coordinator.api.servicer import LARGEST_REQUEST_BYTES
from muster_coordinator.settings import CoordinatorSettings

_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  they are recognised, not bound


class Ports:
    """The gRPC servers of a coordinator.

    Internal services are served on the internal port if there is one, and on the public one unless
    `internal_on_public` says no. A port answers UNIMPLEMENTED for services that it does not have.

    Args:
        settings: where it listens, and which addresses others are told.
        make: makes a server for a use.

    Raises:
        StartupError: an address is of no use to others.
    """

    def __init__(self, settings: CoordinatorSettings, make: Callable[[PortUse], RpcServer]) -> None:
        self._settings = settings
        advertised = settings.advertise
        if advertised is None and settings.listen.host in _EVERYWHERE:
            raise _not_told("listen", "advertise", "clients")
        inside = settings.internal_listen
        if inside is None:
            self._public, self._internal = make(PortUse.ALL), None
        else:
            told = settings.internal_advertise or advertised or inside
            if told.host in _EVERYWHERE:
                raise _not_told("internal_listen", "internal_advertise", "other processes of the cluster")
            self._public = make(PortUse.ALL if settings.internal_on_public else PortUse.PUBLIC)
            self._internal = make(PortUse.INTERNAL)

    @property
    def port(self) -> int:
        """The bound public port; 0 before `bind`."""
        return self._public.port

    @property
    def address(self) -> Address:
        """What clients are told: `advertise`, or the host it listens on with the bound port."""
        return self._settings.advertise or Address(self._settings.listen.host, self._public.port)

    @property
    def internal_address(self) -> Address | None:
        """What other processes are told, if they have a port of their own.

        `internal_advertise`, or else the host of `advertise` or `internal_listen` with the bound port.
        """
        settings = self._settings
        if self._internal is None or settings.internal_listen is None:
            return None
        told = settings.advertise or settings.internal_listen
        return settings.internal_advertise or Address(told.host, self._internal.port)

    async def bind(self) -> None:
        """Takes the ports; who connects waits for `serve`.

        Raises:
            ListenError: an address is taken, or is none of this machine's.
        """
        await self._public.bind(str(self._settings.listen), LARGEST_REQUEST_BYTES)
        if self._internal is not None:
            await self._internal.bind(str(self._settings.internal_listen), LARGEST_REQUEST_BYTES)

    @property
    def public(self) -> RpcServer:
        """Where clients call."""
        return self._public

    def add_internal(self, add_servicer: Callable[[Any, Any], None], servicer: Any) -> None:
        """Adds an internal servicer wherever internal calls are answered."""
        if self._internal is not None:
            self._internal.add(add_servicer, servicer)
        if self._internal is None or self._settings.internal_on_public:
            self._public.add(add_servicer, servicer)

    async def serve(self) -> None:
        """Serves on the ports that were bound; health is NOT_SERVING until `set_serving`."""
        for server in self._servers:
            await server.serve()

    async def set_serving(self, serving: bool) -> None:
        """Sets what health says on every port."""
        for server in self._servers:
            await server.set_serving(serving)

    async def stop(self, grace_ms: int) -> None:
        """Stops the public port, then the internal one; see `RpcServer.stop`."""
        for server in self._servers:
            await server.stop(grace_ms)

    @property
    def _servers(self) -> list[RpcServer]:
        return [self._public] if self._internal is None else [self._public, self._internal]


def _not_told(listen: str, advertise: str, whom: str) -> StartupError:
    variable = CoordinatorSettings.variable
    return StartupError(
        f"{variable(listen)} is every address of this machine: {whom} cannot be told that; set "
        f"{variable(advertise)} to the host and port that they can reach"
    )
