"""Tests of workers, in milliseconds and without servers; the extra `testing` brings what it needs.

`FakePartition` and `FakeBlockingPartition` are for a work function alone. `LocalCluster` is a whole cluster
in the test's event loop: the library that runs in production, without a network, on the core that runs in
production, and on a clock that jumps. `muster._pytest` has fixtures for pytest. docs/testing.md is the guide.

`_cluster` puts the parts together, `_time` is the clock, `_wire` the network; the servers come with
`muster-server` and are found by their entry point, so that nothing here imports them.
"""

from muster.testing._cluster import LocalCluster
from muster.testing._fakes import FakeBlockingPartition, FakePartition
from muster.testing._time import StuckTest
from muster.testing._worker import Worker

__all__ = ["FakeBlockingPartition", "FakePartition", "LocalCluster", "StuckTest", "Worker"]
