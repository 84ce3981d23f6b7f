from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from coordinator.coordinator_cluster import BRIEF_LEASE_MS, PATIENT_LEASE_MS, MemoryCluster
from coordinator.real_cluster import RealCluster


@pytest.fixture
def lease_ms(request: pytest.FixtureRequest) -> int:
    """Long, but for tests with the marker `brief_lease`."""
    return BRIEF_LEASE_MS if request.node.get_closest_marker("brief_lease") else PATIENT_LEASE_MS


@pytest.fixture
async def cluster(lease_ms: int) -> AsyncIterator[MemoryCluster]:
    """For what must fail on command."""
    cluster = MemoryCluster(lease_ms)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def real(tmp_path: Path, lease_ms: int) -> AsyncIterator[RealCluster]:
    """For everything else."""
    cluster = RealCluster(tmp_path, lease_ms)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def single(tmp_path: Path, lease_ms: int) -> AsyncIterator[RealCluster]:
    """As `real`, on one server and one instance of metadata, where a test is about neither."""
    cluster = RealCluster(tmp_path, lease_ms, nodes=1, instances=1)
    await cluster.start()
    yield cluster
    await cluster.stop()
