"""The assignors of Kafka's clients, by name, and the types for an assignor of your own.

An assignor is a function from a `GroupSnapshot` to an `Assignment`; give it a name with `Assignor` and pass
it in `assignors=`. The rules are Kafka's; the package `muster_assignors` has them.
"""

from collections.abc import Sequence

from muster_assignors import (
    COOPERATIVE_STICKY,
    KAFKA,
    RANGE,
    ROUNDROBIN,
    STICKY,
    AssignFunction,
    Assignment,
    Assignor,
    GroupSnapshot,
    MemberSnapshot,
    TopicSnapshot,
)
from muster_protos.limits import ID_MAX_BYTES, PROTOCOLS_MAX

from muster._errors import SettingsError

BUILT_IN: dict[str, Assignor] = KAFKA
"""The assignors that can be named in settings."""


def resolve(assignors: Sequence[str | Assignor]) -> tuple[Assignor, ...]:
    """Replaces names by assignors, in order of preference.

    Raises:
        SettingsError: none was given, a name is not known, or one comes twice.
    """
    if isinstance(assignors, str):
        assignors = (assignors,)
    if not isinstance(assignors, Sequence):
        raise SettingsError("assignors", f"must be a list, preferred first, not {assignors!r}")
    if not 1 <= len(assignors) <= PROTOCOLS_MAX:
        raise SettingsError("assignors", f"1 to {PROTOCOLS_MAX} of them, not {len(assignors)}")
    found: dict[str, Assignor] = {}
    for entry in assignors:
        if isinstance(entry, str):
            if entry not in BUILT_IN:
                known = ", ".join(sorted(BUILT_IN))
                raise SettingsError(
                    "assignors", f"{entry!r} is not one of {known}; pass your own as an Assignor"
                )
            assignor = BUILT_IN[entry]
        elif isinstance(entry, Assignor):
            assignor = entry
        else:
            raise SettingsError("assignors", f"{entry!r} is neither a name nor an Assignor")
        if not 1 <= len(assignor.name.encode()) <= ID_MAX_BYTES:
            raise SettingsError("assignors", f"a name has 1 to {ID_MAX_BYTES} bytes")
        if assignor.name in found:
            raise SettingsError("assignors", f"{assignor.name!r} comes twice")
        found[assignor.name] = assignor
    return tuple(found.values())


__all__ = [
    "BUILT_IN",
    "COOPERATIVE_STICKY",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "AssignFunction",
    "Assignment",
    "Assignor",
    "GroupSnapshot",
    "MemberSnapshot",
    "TopicSnapshot",
    "resolve",
]
