"""The spaces of the model of doubts, and for each rule the one in which something breaks."""

from dataclasses import dataclass, replace

from model.doubts import DoubtBounds, DoubtRules

ALL = DoubtRules()


@dataclass(frozen=True)
class DoubtCase:
    """One walk.

    Attributes:
        name: what it is about.
        bounds: what there is, and what happens.
        rules: all, or all but one.
        dropped: the rule that is missing; empty: none.
    """

    name: str
    bounds: DoubtBounds
    rules: DoubtRules = ALL
    dropped: str = ""


HELD = (
    DoubtCase("a node without a file, of three", DoubtBounds(wipes=3)),
    DoubtCase("a node without a file, of five", DoubtBounds(nodes=5, wipes=2)),
)
"""Walked to their end: nobody believes the node, and it is judged."""


def _dropped(name: str, bounds: DoubtBounds | None = None) -> DoubtCase:
    return DoubtCase(f"without `{name}`", bounds or DoubtBounds(), replace(ALL, **{name: False}), name)


DROPPED = (
    _dropped("spread", DoubtBounds(wipes=0)),
    _dropped("asked", DoubtBounds(wipes=0)),
    _dropped("since", DoubtBounds(wipes=0)),
    _dropped("empty_silent"),
    _dropped("filled"),
)
"""Each rule dropped, with bounds in which that breaks something."""
