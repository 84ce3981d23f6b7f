"""Puts roles together into one process."""

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from muster_runtime.channels import Address
from muster_runtime.errors import StartupError
from muster_runtime.logs import LogSettings, configure
from muster_runtime.server import ServerSettings
from muster_runtime.settings import Settings, check_environment, load
from muster_runtime.tls import TlsSettings

log = structlog.get_logger()

METADATA, DISCOVERY, COORDINATOR = "metadata", "discovery", "coordinator"
ORDER = (METADATA, DISCOVERY, COORDINATOR)
"""The roles in the order in which they are started; they are stopped the other way round."""

_LOOPBACK = "127.0.0.1"


class RoleError(StartupError):
    """A role is not one of those that exist."""


class Role(Protocol):
    """What every role is to the composition."""

    @property
    def port(self) -> int:
        """The bound port."""

    async def start(self) -> int:
        """Listens; gives the bound port."""

    async def ready(self) -> None:
        """Waits until it serves."""

    async def stop(self) -> None:
        """Hands over what it has and ends."""


@dataclass(frozen=True, slots=True)
class RoleKind:
    """How a role is made.

    Attributes:
        settings: its groups of settings, its own one first.
        make: from its settings, by class.
    """

    settings: tuple[type[Settings], ...]
    make: Callable[..., Role]


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


def kind_of(role: str) -> RoleKind:
    """Imports a role; a process loads only what it runs."""
    if role == METADATA:
        from muster_metadata import Metadata, MetadataSettings

        return RoleKind((MetadataSettings,), Metadata)
    if role == DISCOVERY:
        from muster_discovery import Discovery, DiscoverySettings

        return RoleKind((DiscoverySettings,), Discovery)
    from muster_coordinator import Coordinator, CoordinatorSettings, GroupSettings

    return RoleKind((CoordinatorSettings, GroupSettings), Coordinator)


def settings_classes(roles: Iterable[str] = ORDER) -> list[type[Settings]]:
    """Every group of settings that processes of these roles read."""
    shared: list[type[Settings]] = [LogSettings, ServerSettings, TlsSettings]
    return shared + [settings for role in roles for settings in kind_of(role).settings]


class Composition:
    """The roles of one process.

    All settings are read, and all mistakes found, before anything is started.

    Args:
        roles: their names.
        overrides: fields that do not come from the environment, by role.

    Raises:
        SettingsError: a variable is unknown or wrong.
    """

    def __init__(self, roles: Sequence[str], overrides: dict[str, dict[str, Any]] | None = None) -> None:
        self.roles = tuple(role for role in ORDER if role in roles)
        self._overrides = overrides or {}
        # Any role's variables may be set: one environment serves processes of several roles.
        check_environment(settings_classes())
        configure(load(LogSettings))
        self._server = load(ServerSettings)
        self._tls = load(TlsSettings)
        self._kinds = {role: kind_of(role) for role in self.roles}
        self._settings = {role: self._load(role) for role in self.roles}
        self._running: list[tuple[str, Role]] = []

    def _load(self, role: str) -> list[Settings]:
        own, *others = self._kinds[role].settings
        return [load(own, **self._overrides.get(role, {})), *(load(other) for other in others)]

    @property
    def settings(self) -> list[Settings]:
        """All settings in force."""
        return [self._server, self._tls, *(one for group in self._settings.values() for one in group)]

    async def run(self, stop: asyncio.Event, ready_file: Path | None = None) -> None:
        """Starts the roles, and stops them when told to.

        Args:
            stop: set when the process shall end.
            ready_file: written once all roles serve: their addresses as JSON, by role.
        """
        try:
            for role in self.roles:
                await self._start(role)
            waiting = asyncio.gather(*(running.ready() for _, running in self._running))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                await waiting
                self._announce(ready_file)
                await stopping
            else:
                waiting.cancel()
        finally:
            await self._stop()

    async def _start(self, role: str) -> None:
        own, *others = self._settings[role]
        beside = dict(self._running).get(METADATA)
        if beside is not None and role != METADATA and "metadata" not in own.model_fields_set:
            own = own.model_copy(update={"metadata": (Address(_LOOPBACK, beside.port),)})
        running = self._kinds[role].make(own, *others, server=self._server, tls=self._tls)
        self._running.append((role, running))
        await running.start()

    async def _stop(self) -> None:
        while self._running:
            role, running = self._running.pop()
            try:
                await running.stop()
            except Exception:
                log.exception("role_stop_failed", role=role)

    def _announce(self, ready_file: Path | None) -> None:
        ports = {role: running.port for role, running in self._running}
        log.info("ready", **ports)
        if ready_file is not None:
            draft = ready_file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(ports))
            draft.replace(ready_file)
