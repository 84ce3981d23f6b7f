"""Clusters of real processes for tests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

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
    """A cluster that serves; it is gone at the end."""
    cluster = DevCluster(
        folder,
        redis_nodes=redis_nodes,
        coordinators=coordinators,
        settings={**FAST_GROUPS, **(settings or {})},
    )
    async with cluster:
        yield cluster
