"""Clusters of real processes for tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_server.dev.cluster import DevCluster

_FIND_SECONDS = 30.0
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
    """A cluster that serves; it is gone at the end."""
    cluster = DevCluster(
        folder,
        redis_nodes=redis_nodes,
        coordinators=coordinators,
        settings={**FAST_GROUPS, **(settings or {})},
    )
    async with cluster:
        yield cluster


async def find(servers: str, group: str) -> str:
    """Address of the group's coordinator, once there is one."""
    async with grpc.aio.insecure_channel(servers) as channel:
        discovery: discovery_pb2_grpc.CoordinatorDiscoveryServiceAsyncStub = (
            discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        )
        deadline = time.monotonic() + _FIND_SECONDS
        while True:
            answer = await discovery.FindCoordinator(
                discovery_pb2.FindCoordinatorRequest(group_ids=[group]), timeout=5
            )
            if answer.results[0].error_code == 0:
                found = answer.results[0].coordinator
                return f"{found.host}:{found.port}"
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
