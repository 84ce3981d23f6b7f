"""The coordinator: owns shards of groups by claim, and drives their cores."""

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
