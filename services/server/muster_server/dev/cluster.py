"""A whole cluster on this machine: embedded servers and one process per role instance."""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from muster_runtime.errors import StartupError

from muster_server.dev.ports import LOOPBACK, free_ports, is_free
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess, start_all
from muster_server.initialise import initialise_log
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA

_SETTINGS = {"MUSTER_COORDINATOR_INTERNAL_ON_PUBLIC": "false"}
"""What a new cluster begins with; settings that are given win."""

DESCRIPTION = "cluster.json"
"""File in a cluster's folder with its addresses."""


class UnusableDescription(StartupError):
    """The description in a cluster's folder cannot be read."""


class ClusterBusyError(Exception):
    """The folder or a port is in use; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The first port of each role; 0: free ports are picked.

    Attributes:
        discovery: of discovery.
        coordinator: of the first coordinator; the others have the ports that follow.
        metadata: of the first instance of metadata; the others have the ports that follow.
        internal: of the internal calls of the first coordinator; the others have the ports that follow.
        metrics: of the first process's metrics; the others have the ports that follow, in the order of
            `roles`.
    """

    discovery: int = 0
    coordinator: int = 0
    metadata: int = 0
    internal: int = 0
    metrics: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """The addresses of a cluster, for other programs on this machine.

    Attributes:
        servers: discovery addresses for clients.
        redis: nodes of the log.
        pid: process that runs the cluster.
        metadata: addresses of metadata, for operators.
    """

    servers: str
    redis: str
    pid: int
    metadata: str = ""

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Reads the description in a cluster's folder.

        Raises:
            FileNotFoundError: no cluster was started there.
            UnusableDescription: the file is no description.
        """
        path = folder / DESCRIPTION
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            raise
        except (OSError, TypeError, ValueError) as error:
            raise UnusableDescription(f"{path} does not describe a cluster: {error}") from None


class DevCluster:
    """Embedded servers, metadata, discovery and coordinators as processes; an async context manager.

    Args:
        folder: data, logs and the description; a cluster started there again finds its state.
        redis_nodes: 1, 3 or 5 embedded servers.
        redis_url: nodes of your own instead.
        coordinators: how many.
        metadata: how many.
        ports: where they listen.
        fsync: of the embedded servers.
        settings: further variables for every process.
        shard_count: when the log is initialised.
        metrics: whether each process serves its metrics for Prometheus, on a port of its own.

    Attributes:
        nodes: the embedded servers; None with nodes of your own.
        metadata: the processes of that role.
        discovery: the process of that role.
        coordinators: the processes of that role, in order.
        internal_ports: where coordinators answer internal calls, by name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        redis_nodes: int = 1,
        redis_url: str | None = None,
        coordinators: int = 3,
        metadata: int = 1,
        ports: Ports = Ports(),
        fsync: str = "everysec",
        settings: Mapping[str, str] | None = None,
        shard_count: int = 50,
        metrics: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._shard_count = shard_count
        self._lock: IO[str] | None = None
        self._take_folder()
        self.nodes = None if redis_url else RedisNodes(self.folder, redis_nodes, fsync)
        self.redis_url = redis_url or (self.nodes.url if self.nodes else "")
        processes = 1 + coordinators + metadata
        picked = iter(free_ports(2 * processes + coordinators))
        settings = dict(settings or {})

        def port(first: int, index: int) -> int:
            other = next(picked)
            return first + index if first else other

        metadata_ports = [port(ports.metadata, index) for index in range(metadata)]
        addresses = ",".join(f"{LOOPBACK}:{number}" for number in metadata_ports)
        logs = self.folder / "logs"
        metrics_ports = iter([port(ports.metrics, index) for index in range(processes)])

        def process(name: str, role: str, number: int, **own: str) -> RoleProcess:
            prefix = f"MUSTER_{role.upper()}_"
            listen = {f"{prefix}LISTEN": f"{LOOPBACK}:{number}"}
            own_settings = {prefix + key: value for key, value in own.items()}
            return RoleProcess(
                name,
                role,
                number,
                logs,
                {**_SETTINGS, **settings, **listen, **own_settings},
                next(metrics_ports) if metrics else 0,
            )

        self.metadata = [
            process(f"metadata-{index}", METADATA, number, REDIS_URL=self.redis_url)
            for index, number in enumerate(metadata_ports, 1)
        ]
        self.discovery = process("discovery-1", DISCOVERY, port(ports.discovery, 0), METADATA=addresses)
        self.internal_ports = {
            f"coordinator-{index + 1}": port(ports.internal, index) for index in range(coordinators)
        }
        self.coordinators = [
            process(
                name,
                COORDINATOR,
                port(ports.coordinator, index),
                METADATA=addresses,
                NODE_ID=name,
                INTERNAL_LISTEN=f"{LOOPBACK}:{internal}",
            )
            for index, (name, internal) in enumerate(self.internal_ports.items())
        ]

    @property
    def servers(self) -> str:
        """Discovery addresses for clients."""
        return self.discovery.address

    @property
    def roles(self) -> Sequence[RoleProcess]:
        """All processes but the servers, in the order of their start."""
        return [*self.metadata, self.discovery, *self.coordinators]

    @property
    def metrics_ports(self) -> Mapping[str, int]:
        """Where processes serve their metrics, by name; empty: no port was picked for that."""
        return {process.name: process.metrics_port for process in self.roles if process.metrics_port}

    def coordinator(self, node_id: str) -> RoleProcess:
        """The coordinator of that name."""
        return next(process for process in self.coordinators if process.name == node_id)

    def check_ports(self) -> None:
        """Checks that the ports of this cluster are free.

        Raises:
            ClusterBusyError: one is in use; the folder is released.
        """
        wanted = [(process.port, process.name) for process in self.roles]
        wanted += [(port, f"internal calls of {name}") for name, port in self.internal_ports.items()]
        wanted += [(process.metrics_port, f"metrics of {process.name}") for process in self.roles]
        taken = [(port, name) for port, name in wanted if port and not is_free(port)]
        if taken:
            where = ", ".join(f"{port} (for {name})" for port, name in taken)
            self._give_folder_back()
            raise ClusterBusyError(
                f"port {where} is in use: stop what listens there, or choose others (--ports free)"
            )

    def ended(self) -> list[str]:
        """One sentence for each process that has ended without being stopped here."""
        children = [process.process for process in self.roles]
        children += [node.process for node in self.nodes or ()]
        return [f"{child.name} {child.ending()}" for child in children if child.ending()]

    async def start(self) -> None:
        """Starts everything and waits until it serves.

        Raises:
            ClusterBusyError: a port is taken.
            ChildError: a process did not come up; everything is stopped again.
        """
        self.check_ports()
        try:
            if self.nodes is not None:
                await self.nodes.start()
            await initialise_log(self.redis_url, self._shard_count)
            await start_all(list(self.roles))
        except BaseException:
            await self.stop()
            raise
        metadata = ",".join(process.address for process in self.metadata)
        description = Description(self.servers, self.redis_url, os.getpid(), metadata)
        self._describe(description)

    def _describe(self, description: Description) -> None:
        """Writes the description, readable only by this user: it may contain a password."""
        path = self.folder / DESCRIPTION
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(asdict(description)))

    async def stop(self) -> None:
        """Stops all processes in reverse order of their start, and waits for them."""
        for layer in (self.coordinators, [self.discovery], self.metadata):
            await asyncio.gather(*(process.terminate() for process in layer))
        if self.nodes is not None:
            await self.nodes.stop()
        self._give_folder_back()

    def kill_roles(self) -> None:
        """Kills all processes except the servers of the log, so that `stop` need not wait for them."""
        for process in self.roles:
            process.process.signal(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _take_folder(self) -> None:
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ClusterBusyError(
                f"a cluster runs on {self.folder} already: stop it, or choose another folder with --data"
            ) from None
        self._lock = lock

    def _give_folder_back(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
