from collections.abc import AsyncIterator

import pytest
from coordinator.coordinator_cluster import MemoryCluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()
