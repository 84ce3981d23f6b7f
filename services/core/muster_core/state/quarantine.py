"""Which groups of a shard no event reaches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Groups that made the core raise (docs/safety.md, "Fail-stop").

    Attributes:
        groups: their ids. Their calls are refused, but for reads of their offsets.
        unreadable: those of them whose reads failed too, and are refused as well.
    """

    groups: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()


NOBODY = Quarantine()
