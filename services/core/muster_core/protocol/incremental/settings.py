"""What the settings of a group mean for its targets and its members' clocks."""

from collections.abc import Mapping

from muster_protos.muster.v1.group_settings_pb2 import GroupSettings

from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.targets.hold import holding
from muster_core.incremental.targets.target import ServerAssignor, preferred_assignor
from muster_core.state.group_settings import session_ms_of as set_session_ms_of


def assignors_of(
    assignors: Mapping[str, ServerAssignor], settings: GroupSettings
) -> Mapping[str, ServerAssignor]:
    """What may compute the target of a group: what is set, else what its members prefer (INC-123, INC-124).

    Args:
        assignors: of the coordinator by name, the default first.
        settings: of the group. An assignor that this coordinator has not counts as not set.
    """
    if settings.assignor in assignors:
        assignors = {settings.assignor: assignors[settings.assignor]}
    if settings.hold:
        assignors = {name: holding(assignor) for name, assignor in assignors.items()}
    return assignors


def may_hold(settings: GroupSettings) -> bool:
    """Whether members of a group may hold back moves: not where an operator has said that there is none."""
    return settings.hold or not settings.HasField("hold")


def assignor_in_use(
    assignors: Mapping[str, ServerAssignor], settings: GroupSettings, group: IncrementalGroup
) -> str:
    """Name of what computes the next target of a group; empty: there is none here."""
    own = assignors_of(assignors, settings)
    return preferred_assignor(group, own)


def session_ms_of(config: GroupConfig, settings: GroupSettings, member: Member | None) -> int:
    """How long a member may be silent: what its join was granted, or what is set (INC-104, INC-121)."""
    granted_ms = 0 if member is None else member.told.session_timeout_ms
    if member is None or not member.told.is_numbered:
        granted_ms = set_session_ms_of(settings, config) or granted_ms
    return granted_ms or config.incremental_session_timeout_ms


def grace_ms_of(config: GroupConfig, settings: GroupSettings, member: Member | None) -> int:
    """How long a member may stay away when its stream broke; never longer than its session (INC-104)."""
    granted_ms = 0 if member is None else member.told.disconnect_grace_ms
    if member is None or not member.told.is_numbered:
        granted_ms = settings.disconnect_grace_ms or granted_ms
    granted_ms = granted_ms or config.incremental_disconnect_grace_ms
    return min(granted_ms, session_ms_of(config, settings, member))
