"""The servers of a simulated cluster: real roles in simulated processes."""

from dataclasses import replace
from typing import Any, Protocol

from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import CoordinatorSettings, GroupSettings, SessionSettings, ShardLogSettings
from muster_core.config import GroupConfig
from muster_discovery.role import Discovery
from muster_discovery.settings import DiscoverySettings
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_runtime.addresses import Address
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.settings import load
from pydantic import SecretStr
from simulation.processes import Process
from simulation.redis_node import PORT
from simulation.wires import SimulatedLeaseLine, SimulatedWire

NODES = 3
SHARDS = 4
METADATA = tuple(Address(f"10.0.2.{number}", 7420) for number in (1, 2))
COORDINATORS = tuple(Address(f"10.0.3.{number}", 7410) for number in (1, 2, 3))
DISCOVERY = tuple(Address(f"10.0.4.{number}", 7400) for number in (1, 2))
URLS = "redis://" + ",".join(f"10.0.1.{number}:{PORT}" for number in range(1, NODES + 1))

LEASE_MS = 3_000
MARGIN_MS = 600
GROUP_MAX_SIZE = 16
# Short, so that what crashed is gone when a group is to be whole.
INCREMENTAL_SESSION_MS = 10_000
INCREMENTAL_GRACE_MS = 4_800
INCREMENTAL_PATIENCE_MS = min(INCREMENTAL_SESSION_MS, INCREMENTAL_GRACE_MS)
CONVERT_AFTER_MS = 5_000
# Small, so that snapshots are taken, loaded and trimmed behind within minutes.
SNAPSHOT_RECORDS = 100
RETENTION_MS = 30_000

_SERVER = ServerSettings()


class Role(Protocol):
    """What runs in a server's process."""

    async def start(self) -> int:
        """Begins."""

    async def end(self) -> None:
        """Ends in order, as at SIGTERM."""


class MetadataRole:
    """An instance of metadata."""

    def __init__(self, process: Process, address: Address) -> None:
        settings = load(
            MetadataSettings,
            redis_url=SecretStr(URLS),
            listen=str(address),
            poll_ms=900,
            lease_ms=LEASE_MS,
        )
        self.server = MetadataServer(settings, RpcServer(_SERVER, None, SimulatedWire(process)))

    async def start(self) -> int:
        """See `Role`."""
        return await self.server.start()

    async def end(self) -> None:
        """See `Role`."""
        await self.server.stop()


class DiscoveryRole:
    """An instance of discovery."""

    def __init__(self, process: Process, address: Address) -> None:
        self.server = Discovery(
            DiscoverySettings(listen=address, metadata=METADATA), server=_SERVER, wire=SimulatedWire(process)
        )

    async def start(self) -> int:
        """See `Role`."""
        return await self.server.start()

    async def end(self) -> None:
        """See `Role`."""
        await self.server.stop()


class _ShortSessions(GroupSettings):
    """Incremental members are silent for less than the product's time, which no setting has."""

    def to_config(self) -> GroupConfig:
        """The values as the core takes them."""
        return replace(
            super().to_config(),
            incremental_session_timeout_ms=INCREMENTAL_SESSION_MS,
            incremental_disconnect_grace_ms=INCREMENTAL_GRACE_MS,
        )


class CoordinatorRole:
    """A coordinator.

    Attributes:
        coordinator: the real one.
    """

    def __init__(self, process: Process, address: Address, **group: Any) -> None:
        self.coordinator = Coordinator(
            CoordinatorSettings(
                listen=address,
                node_id=process.name,
                metadata=METADATA,
                lease_margin_ms=MARGIN_MS,
                lease_interval_ms=900,
            ),
            group=_ShortSessions(
                max_size=GROUP_MAX_SIZE, convert="auto", convert_after_ms=CONVERT_AFTER_MS, **group
            ),
            session=SessionSettings(),
            shard_log=ShardLogSettings(snapshot_records=SNAPSHOT_RECORDS, retention_ms=RETENTION_MS),
            server=_SERVER,
            wire=SimulatedWire(process),
            lease_line=SimulatedLeaseLine(process),
        )

    async def start(self) -> int:
        """See `Role`."""
        return await self.coordinator.start()

    async def end(self) -> None:
        """See `Role`."""
        await self.coordinator.drain_and_stop()
