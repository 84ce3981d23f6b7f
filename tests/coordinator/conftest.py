from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from coordinator.coordinator_cluster import MemoryCluster
from coordinator.real_cluster import RealCluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """For what must fail on command."""
    cluster = MemoryCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """For everything else."""
    cluster = RealCluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def single(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """As `real`, on one server and one instance of metadata, where a test is about neither."""
    cluster = RealCluster(tmp_path, nodes=1, instances=1)
    await cluster.start()
    yield cluster
    await cluster.stop()
