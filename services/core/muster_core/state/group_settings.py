"""Settings of a group: which values are possible, and what holds (docs/safety.md, INC-120 to INC-126)."""

from collections.abc import Iterable

from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings

from muster_core.config import GroupConfig

NO_SETTINGS = GroupSettings()
"""Nothing is set; not to be changed."""

NAMES = tuple(field.name for field in GroupSettings.DESCRIPTOR.fields)
"""Names of all settings."""

CONVERT = ("never", "auto", "always")
"""When a classic group becomes an incremental one."""

ASSIGNMENT_INTERVAL_MAX_MS = 600_000
HEARTBEAT_INTERVAL_MIN_MS = 1_000
DISCONNECT_GRACE_MAX_MS = 1_800_000

ADAPTIVE = -1
"""Pause between assignments: as the coordinator finds best."""


def is_any_set(settings: GroupSettings) -> bool:
    """Whether anything is set: a group stays then without members and offsets too (INC-122)."""
    return settings != NO_SETTINGS


def altered(before: GroupSettings, request: AlterGroupSettingsRequest) -> GroupSettings:
    """What is set for a group after a request."""
    after = GroupSettings()
    after.CopyFrom(before)
    after.MergeFrom(request.set)
    for name in request.unset:
        after.ClearField(name)  # type: ignore[arg-type]  # stubs take literals alone
    return after


def fault_of(settings: GroupSettings, config: GroupConfig, assignors: Iterable[str]) -> str:
    """Which value is not possible, with the limit, for people; empty: all are (conformance TM-06, TM-07)."""
    names = tuple(assignors)
    if settings.HasField("assignor") and settings.assignor not in names:
        return f"assignor must be {_or(names)}, not {settings.assignor!r}"
    if settings.HasField("convert") and settings.convert not in CONVERT:
        return f"convert must be {_or(CONVERT)}, not {settings.convert!r}"
    session_ms = session_ms_of(settings, config) or config.incremental_session_timeout_ms
    bounds = {
        "assignment_interval_ms": (ADAPTIVE, ASSIGNMENT_INTERVAL_MAX_MS),
        "session_timeout_ms": (config.min_session_timeout_ms, config.max_session_timeout_ms),
        "disconnect_grace_ms": (1, DISCONNECT_GRACE_MAX_MS),
        "heartbeat_interval_ms": (HEARTBEAT_INTERVAL_MIN_MS, session_ms - 1),
    }
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if settings.HasField(name) and not low <= value <= high:  # type: ignore[arg-type]  # stubs take literals alone
            why = " (below the session time-out)" if name == "heartbeat_interval_ms" else ""
            return f"{name} must be {low:,} to {high:,}{why}, not {value:,}"
    return ""


def _or(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


def session_ms_of(settings: GroupSettings, config: GroupConfig) -> int:
    """The session that is set, within the limits of now (conformance TM-09); 0: none is."""
    if not settings.HasField("session_timeout_ms"):
        return 0
    return min(max(settings.session_timeout_ms, config.min_session_timeout_ms), config.max_session_timeout_ms)


def heartbeat_ms_of(settings: GroupSettings, config: GroupConfig) -> int:
    """How often members are to send a heartbeat, whatever their sessions are."""
    if settings.HasField("heartbeat_interval_ms"):
        return settings.heartbeat_interval_ms
    return config.incremental_heartbeat_interval_ms


def convert_of(settings: GroupSettings, config: GroupConfig) -> str:
    """When the group becomes an incremental one while its members work."""
    return settings.convert if settings.HasField("convert") else config.convert
