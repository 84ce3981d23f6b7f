"""The spaces of the model of kept partitions, and for each rule the one in which something breaks."""

from dataclasses import dataclass, replace

from model.keeping import KeepingBounds, KeepingRules

ALL = KeepingRules()


@dataclass(frozen=True)
class KeepingCase:
    """One walk.

    Attributes:
        name: what it is about.
        bounds: what there is, and what happens.
        rules: all, or all but one.
        dropped: the rule that is missing; empty: none.
    """

    name: str
    bounds: KeepingBounds
    rules: KeepingRules = ALL
    dropped: str = ""


HELD = (
    KeepingCase("two members, one keeps", KeepingBounds()),
    KeepingCase("three members, some keep", KeepingBounds(members=3)),
    KeepingCase("one that keeps never releases", KeepingBounds(stubborn=True)),
    KeepingCase("one never releases, one crashes", KeepingBounds(stubborn=True, crashes=1)),
)
"""Walked to their end: never two owners, and the partition can always be given to somebody."""


def _dropped(name: str, bounds: KeepingBounds | None = None) -> KeepingCase:
    return KeepingCase(f"without `{name}`", bounds or KeepingBounds(), replace(ALL, **{name: False}), name)


DROPPED = (
    _dropped("withhold"),
    _dropped("declared"),
    _dropped("numbered"),
    _dropped("owing", KeepingBounds(stubborn=True)),
    _dropped("first", KeepingBounds(stubborn=True)),
)
"""Each rule dropped, with bounds in which that breaks something."""
