"""Clusters of real processes for tests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from kit.waiting import until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_server.dev.cluster import DevCluster

FAST_GROUPS = {
    "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "500",
    "MUSTER_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
}
"""Settings under which groups are quick to form and members quick to expire."""


@asynccontextmanager
async def running(
    folder: Path,
    *,
    redis_nodes: int = 3,
    coordinators: int = 2,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[DevCluster]:
    """A cluster whose processes are ready, and take the shards; it is gone at the end."""
    cluster = DevCluster(
        folder,
        redis_nodes=redis_nodes,
        coordinators=coordinators,
        settings={**FAST_GROUPS, **(settings or {})},
    )
    async with cluster:
        yield cluster


async def all_served(servers: str) -> None:
    """Waits until discovery sees every shard served."""
    async with grpc.aio.insecure_channel(servers) as channel:
        discovery: discovery_pb2_grpc.CoordinatorDiscoveryServiceAsyncStub = (
            discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        )

        async def served() -> bool:
            view = (
                await discovery.DescribeCluster(discovery_pb2.DescribeClusterRequest(), timeout=5)
            ).cluster
            return sum(shard.serving for shard in view.shards) == view.shard_count

        await until(served, "every shard is served")


async def find(servers: str, group: str) -> str:
    """Address of the group's coordinator, once it serves the shard: it is named while it still loads."""
    async with grpc.aio.insecure_channel(servers) as channel:
        discovery: discovery_pb2_grpc.CoordinatorDiscoveryServiceAsyncStub = (
            discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        )

        async def found() -> str:
            request = discovery_pb2.FindCoordinatorRequest(group_ids=[group])
            result = (await discovery.FindCoordinator(request, timeout=5)).results[0]
            if result.error_code:
                return ""
            where = result.coordinator
            view = await discovery.DescribeCluster(discovery_pb2.DescribeClusterRequest(), timeout=5)
            serves = any(shard.serving for shard in view.cluster.shards if shard.shard == where.shard)
            return f"{where.host}:{where.port}" if serves else ""

        return await until(found, f"there is a coordinator for {group}")
