"""The coordinator: owns shards of groups by claim, and drives their cores.

`coordinator` puts the rooms together. A call goes through `api` or `session` to the core of its shard in
`shard`, and what the core stores through `log`; `ownership` decides which shards are here, `failstop` what
happens when a core raises, `telemetry` watches. Which rooms may use which is in the import contracts
(pyproject.toml).
"""

from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import (
    CoordinatorSettings,
    FaultSettings,
    GroupSettings,
    SessionSettings,
    ShardLogSettings,
)

__all__ = [
    "Coordinator",
    "CoordinatorSettings",
    "FaultSettings",
    "GroupSettings",
    "SessionSettings",
    "ShardLogSettings",
]
