"""Fixtures for pytest, which finds them where the library is installed.

None of them is async, so they go with pytest-asyncio, with anyio, and with `asyncio.run`.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from muster.testing import FakeBlockingPartition, FakePartition, LocalCluster


@pytest.fixture
def muster_cluster() -> "LocalCluster":
    """A `LocalCluster`, to be opened by the test: `async with muster_cluster: …`."""
    from muster.testing import LocalCluster

    return LocalCluster()


@pytest.fixture
def fake_partition() -> "FakePartition":
    """A `FakePartition` without a position."""
    from muster.testing import FakePartition

    return FakePartition()


@pytest.fixture
def fake_blocking_partition() -> "FakeBlockingPartition":
    """A `FakeBlockingPartition` without a position, whose third `wait_ending` returns True."""
    from muster.testing import FakeBlockingPartition

    return FakeBlockingPartition(ends_after=2)
