"""A cluster in this process: discovery, and one coordinator at a time."""

import logging
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from muster_coordinator.settings import GroupSettings
from muster_core.clock import Now
from muster_core.events import TopicsChanged
from muster_discovery.service import DiscoveryService
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.rpc.refusals import Refused
from muster_runtime.rpc.unread import TimedWrites

from muster_testing.directory import Directory, TopicChanges
from muster_testing.handlers import Handlers
from muster_testing.memory_log import MemoryLog
from muster_testing.node import NUMBER, Node

DISCOVERY = "discovery.muster.test:7400"
MAX_WATCHERS = 100
READ_TIMEOUT_MS = 30_000


class Servers:
    """See `muster.testing._servers.Servers`.

    Args:
        boot_ms: the boot clock.
        wall_ms: the wall clock.
    """

    def __init__(self, boot_ms: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        self._quietened = not structlog.is_configured()
        if self._quietened:  # each line would be printed among those of the test
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        self._now = lambda: Now(boot_ms(), wall_ms())
        self._config = GroupSettings().to_config()
        self._log = MemoryLog()
        self._directory = Directory()
        self._nodes = 0
        self._node: Node | None = None
        self._discovery = Handlers()
        service = DiscoveryService(
            self._directory,
            TopicChanges(self._directory, self._notify),
            TimedWrites(READ_TIMEOUT_MS),
            max_watchers=MAX_WATCHERS,
        )
        self._service = service
        discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server(service, self._discovery)

    @property
    def servers(self) -> str:
        """Address of discovery."""
        return DISCOVERY

    @property
    def coordinator(self) -> str | None:
        """Address of the coordinator; None: there is none now."""
        return None if self._node is None else self._node.address

    @property
    def hosts(self) -> frozenset[tuple[str, str]]:
        """Group and host of each member, as the coordinator knows them."""
        return frozenset() if self._node is None else self._node.hosts

    def listens(self, address: str) -> bool:
        """Whether a server has this address now."""
        return address in (DISCOVERY, self.coordinator)

    def handler(self, address: str, path: str) -> Any:
        """The gRPC handler of a method; None: there is no such method."""
        if address == DISCOVERY:
            return self._discovery.find(path)
        return self._node.handlers.find(path) if self._node and address == self._node.address else None

    def status_of(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """The gRPC status that a call ends with when its handler raised."""
        if isinstance(error, Refused):
            return error.status, error.message
        return grpc.StatusCode.INTERNAL, repr(error)

    async def start_coordinator(self) -> None:
        """A new coordinator takes over; the one before it must have been killed."""
        self._nodes += 1
        node = Node(self._nodes, self._log, self._directory, self._now, self._config)
        await node.start()
        self._node = node

    def kill_coordinator(self) -> None:
        """The coordinator is gone, without a word to anybody."""
        node, self._node = self._node, None
        if node is not None:
            epoch = node.shards[NUMBER].epoch
            node.kill()
            self._directory.show([], discovery_pb2.ShardOwner(shard=NUMBER, shard_epoch=epoch))

    def stop(self) -> None:
        """Ends everything."""
        self._service.stop()
        self.kill_coordinator()
        if self._quietened:
            structlog.reset_defaults()

    def _notify(self, news: TopicsChanged) -> None:
        if self._node is not None:
            self._node.notify(news)
