"""Settings of the coordinator: `groups` has those of the group protocol, `process` all others."""

from muster_coordinator.settings.groups import GroupSettings
from muster_coordinator.settings.process import (
    CoordinatorSettings,
    FaultSettings,
    SessionSettings,
    ShardLogSettings,
)

__all__ = ["CoordinatorSettings", "FaultSettings", "GroupSettings", "SessionSettings", "ShardLogSettings"]
