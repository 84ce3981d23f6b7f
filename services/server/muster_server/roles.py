"""Runs roles together in one process."""

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from muster_runtime.addresses import Address
from muster_runtime.errors import StartupError
from muster_runtime.garbage import COLLECTOR
from muster_runtime.logs import LogSettings, configure
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.server import PortUse, RpcServer, ServerSettings
from muster_runtime.rpc.trust.expiry import CertificateWatch
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import Settings, check_environment, load
from muster_runtime.telemetry import OFF, Telemetry, TelemetrySettings

if TYPE_CHECKING:
    from muster_coordinator.coordinator import Coordinator
    from muster_discovery.role import Discovery
    from muster_metadata.server import MetadataServer

log = structlog.get_logger()

METADATA, DISCOVERY, COORDINATOR = "metadata", "discovery", "coordinator"
ORDER = (METADATA, DISCOVERY, COORDINATOR)
"""The roles in the order in which they are started; they are stopped in reverse order."""

_LOOPBACK = "127.0.0.1"


class RoleError(StartupError):
    """There is no role of that name, or none was named."""


class Role(Protocol):
    """The interface of a role."""

    @property
    def port(self) -> int:
        """The bound port."""

    async def start(self) -> int:
        """Listens, and returns the bound port."""

    async def ready(self) -> object:
        """Waits until it serves."""

    async def over(self) -> None:
        """Waits until the role has to end by itself, which for most never happens."""

    async def stop(self) -> None:
        """Hands its shards over, if it has any, and stops."""


class _MetadataRole:
    """Metadata: it ends only when it is stopped."""

    def __init__(self, server: "MetadataServer") -> None:
        self._server = server
        self.start, self.ready = server.start, server.metadata.ready.wait

    @property
    def port(self) -> int:
        return self._server.server.port

    async def over(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await self._server.stop()


class _DiscoveryRole:
    """Discovery: it ends only when it is stopped."""

    def __init__(self, discovery: "Discovery") -> None:
        self._discovery = discovery
        self.start, self.ready, self.stop = discovery.start, discovery.ready, discovery.stop

    @property
    def port(self) -> int:
        return self._discovery.port

    async def over(self) -> None:
        await asyncio.Event().wait()


class _CoordinatorRole:
    """A coordinator: it drains before it stops, and ends when a later process of its name has replaced it."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self.start, self.ready = coordinator.start, coordinator.ready
        self.over, self.stop = coordinator.superseded, coordinator.drain_and_stop

    @property
    def port(self) -> int:
        return self._coordinator.port


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """What a role reads from the environment.

    Attributes:
        own: its own group of settings.
        others: further groups, by the name of the argument that takes them.
    """

    own: type[Settings]
    others: Mapping[str, type[Settings]] = field(default_factory=dict)


def parse_roles(text: str) -> tuple[str, ...]:
    """Reads `metadata,discovery` or `all`.

    Raises:
        RoleError: a name is unknown, or there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - {*ORDER, "all"})
    if unknown or not names:
        what = f"there is no role {unknown[0]!r}" if unknown else "no role is named"
        raise RoleError(f"--roles {text!r}: {what}; the roles are {', '.join(ORDER)}, or all")
    return tuple(role for role in ORDER if role in names or "all" in names)


def settings_of(role: str) -> RoleSettings:
    """Imports the settings of a role, and not the role, which is far larger."""
    if role == METADATA:
        from muster_metadata.settings import MetadataSettings

        return RoleSettings(MetadataSettings)
    if role == DISCOVERY:
        from muster_discovery.settings import DiscoverySettings

        return RoleSettings(DiscoverySettings)
    from muster_coordinator.settings import (
        CoordinatorSettings,
        FaultSettings,
        GroupSettings,
        SessionSettings,
        ShardLogSettings,
    )

    return RoleSettings(
        CoordinatorSettings,
        {
            "group": GroupSettings,
            "session": SessionSettings,
            "shard_log": ShardLogSettings,
            "faults": FaultSettings,
        },
    )


def maker_of(role: str) -> Callable[..., Role]:
    """Imports a role; returns what makes it of its settings and, by name, all others."""
    if role == METADATA:
        from muster_metadata.server import MetadataServer

        return lambda settings, server, quotas, trust, telemetry: _MetadataRole(
            MetadataServer(
                settings,
                RpcServer(server, trust, telemetry=telemetry, use=PortUse.INTERNAL, quotas=quotas),
                telemetry,
            )
        )
    if role == DISCOVERY:
        from muster_discovery.role import Discovery

        return lambda settings, **others: _DiscoveryRole(Discovery(settings, **others))
    from muster_coordinator.coordinator import Coordinator

    return lambda settings, **others: _CoordinatorRole(Coordinator(settings, **others))


def settings_classes(roles: Iterable[str] = ORDER) -> list[type[Settings]]:
    """Every group of settings that a process with these roles reads."""
    shared: list[type[Settings]] = [
        LogSettings,
        ServerSettings,
        QuotaSettings,
        *Trust.SETTINGS,
        TelemetrySettings,
    ]
    for role in roles:
        read = settings_of(role)
        shared += [read.own, *read.others.values()]
    return shared


class Composition:
    """The roles of one process.

    All settings are read and validated before anything is started.

    Args:
        roles: their names.
        overrides: values of fields that replace the environment's, by role.

    Raises:
        SettingsError: a variable is unknown or wrong.
    """

    def __init__(self, roles: Sequence[str], overrides: dict[str, dict[str, Any]] | None = None) -> None:
        self.roles = tuple(role for role in ORDER if role in roles)
        self._overrides = overrides or {}
        # Any role's variables may be set: one environment serves processes of several roles.
        check_environment(settings_classes())
        self._log = load(LogSettings)
        configure(self._log)
        self._server = load(ServerSettings)
        self._quotas = load(QuotaSettings)
        self._trust = Trust.load()
        self._telemetry_settings = load(TelemetrySettings)
        self._read = {role: settings_of(role) for role in self.roles}
        self._settings = {
            role: load(read.own, **self._overrides.get(role, {})) for role, read in self._read.items()
        }
        self._others = {
            name: load(other) for read in self._read.values() for name, other in read.others.items()
        }
        # A process loads only what it runs.
        self._makers = {role: maker_of(role) for role in self.roles}
        self._telemetry: Telemetry = OFF
        self._running: list[tuple[str, Role]] = []

    @property
    def settings(self) -> list[Settings]:
        """All settings in force."""
        trust = self._trust
        shared = [
            self._log,
            self._server,
            self._quotas,
            trust.tls,
            trust.internal,
            trust.identity,
            trust.access,
        ]
        return [*shared, self._telemetry_settings, *self._settings.values(), *self._others.values()]

    async def run(self, stop: asyncio.Event, ready_file: Path | None = None) -> int:
        """Starts the roles, and stops them when `stop` is set or one of them ends.

        Args:
            stop: set when the process is to end.
            ready_file: written once all roles serve: their ports as JSON, by role.

        Returns:
            The exit code: 0, or 1 when a role could not go on.
        """
        if self._trust.access.file is None and {DISCOVERY, COORDINATOR} & set(self.roles):
            log.warning("access_rules_absent", meaning="whoever reaches a port may do everything")
        watches: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait())]
        certificates = CertificateWatch(self._trust.tls)
        looking = asyncio.ensure_future(certificates.run())
        try:
            metrics_port = await self._start_telemetry()
            self._telemetry.add(lambda: certificates)
            COLLECTOR.set_aside()
            for role in self.roles:
                running = await self._start(role)
                watches.append(asyncio.ensure_future(running.over()))
            ready = asyncio.gather(*(running.ready() for _, running in self._running))
            everything: list[asyncio.Future[Any]] = [ready, *watches]
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                await ready
                self._announce(ready_file, metrics_port)
                await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            else:
                ready.cancel()
                with suppress(asyncio.CancelledError):
                    await ready
            return 0 if stop.is_set() else 1
        finally:
            for watch in (looking, *watches):
                watch.cancel()
            await self._stop()
            await self._telemetry.stop()

    async def _start(self, role: str) -> Role:
        own = self._settings[role]
        beside = dict(self._running).get(METADATA)
        if beside is not None and role != METADATA and "metadata" not in own.model_fields_set:
            own = own.model_copy(update={"metadata": (Address(_LOOPBACK, beside.port),)})
        others = {name: self._others[name] for name in self._read[role].others}
        running = self._makers[role](
            own,
            **others,
            server=self._server,
            quotas=self._quotas,
            trust=self._trust,
            telemetry=self._telemetry,
        )
        self._running.append((role, running))
        await running.start()
        return running

    async def _stop(self) -> None:
        while self._running:
            role, running = self._running.pop()
            try:
                await running.stop()
            except Exception:
                log.exception("role_stop_failed", role=role)

    async def _start_telemetry(self) -> int:
        """Starts telemetry if it is set; returns the port of the metrics, or 0."""
        settings = self._telemetry_settings
        if not settings.metrics:
            return 0
        node_id = getattr(self._settings.get(COORDINATOR), "node_id", "")
        from muster_runtime.telemetry.process_telemetry import ProcessTelemetry

        telemetry = ProcessTelemetry(settings, self.roles, version("muster-server"), node_id)
        self._telemetry = telemetry
        return await telemetry.start()

    def _announce(self, ready_file: Path | None, metrics_port: int) -> None:
        ports = {role: running.port for role, running in self._running}
        if metrics_port:
            ports["metrics"] = metrics_port
        log.info("ready", **ports)
        if ready_file is not None:
            draft = ready_file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(ports))
            draft.replace(ready_file)
