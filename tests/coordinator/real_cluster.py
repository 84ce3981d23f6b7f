"""Coordinators on the real metadata service and a log of three embedded servers."""

from pathlib import Path

from coordinator.coordinator_cluster import Coordinators
from muster_metadata import MetadataServer, MetadataSettings, initialise
from muster_server.dev.redis_nodes import RedisNodes

SHARDS = 8


class RealCluster(Coordinators):
    """Coordinators, two instances of metadata, three servers."""

    def __init__(self, folder: Path) -> None:
        super().__init__([])
        self.nodes = RedisNodes(folder, 3)
        self.servers: list[MetadataServer] = []

    async def start(self) -> None:
        await self.nodes.start()
        await initialise(self.nodes.url, SHARDS)
        for _ in range(2):
            server = MetadataServer(
                MetadataSettings.model_validate({"redis_url": self.nodes.url, "listen": "127.0.0.1:0"})
            )
            await server.start()
            self.servers.append(server)
            self.metadata.append(server.address)

    async def stop(self) -> None:
        await super().stop()
        for server in self.servers:
            await server.stop(0)
        await self.nodes.stop()
