"""The spaces of the model of a member's life, and for each rule the one in which something breaks."""

from dataclasses import dataclass, replace

from model.session import SessionBounds, SessionRules

ALL = SessionRules()


@dataclass(frozen=True)
class SessionCase:
    """One walk.

    Attributes:
        name: what it is about.
        bounds: how long things last and how often they happen.
        rules: all, or all but one.
        dropped: the rule that is missing; empty: none.
        riding: look for an outage that is ridden out; it must be found, or, without a rule, must not be.
    """

    name: str
    bounds: SessionBounds
    rules: SessionRules = ALL
    dropped: str = ""
    riding: bool = False

    @property
    def is_found(self) -> bool:
        """Whether the walk must find something."""
        return self.riding is not bool(self.dropped)


HELD = (
    SessionCase("a member through an outage", SessionBounds(connections=2, acks=2)),
    SessionCase("a group is handed over", SessionBounds(handed=True, connections=2, acks=2)),
    SessionCase("one that lost the group stays", SessionBounds(stale=True, connections=2, acks=2)),
    SessionCase("a static member", SessionBounds(grace=3, end=4, connections=2, acks=2)),
    SessionCase("a slow clock", SessionBounds(grace=2, session=3, drift=1, connections=2, acks=1)),
    SessionCase("join phases", SessionBounds(rebalance=2, end=4, connections=2, acks=1)),
    SessionCase("joins of its own", SessionBounds(rebalance=2, joins=True, end=4, connections=2, acks=1)),
    SessionCase(
        "joins of its own and an outage", SessionBounds(rebalance=3, joins=True, end=4, connections=1, acks=2)
    ),
    SessionCase(
        "join phases and a static member", SessionBounds(grace=3, rebalance=2, end=4, connections=1, acks=1)
    ),
    SessionCase("a blocked loop", SessionBounds(blocks=1, end=4, connections=1, acks=1)),
    SessionCase(
        "a blocked loop and an outage", SessionBounds(blocks=1, end=4, loads=0, connections=1, acks=2)
    ),
    SessionCase(
        "a blocked loop and join phases", SessionBounds(blocks=1, rebalance=2, end=4, connections=1, acks=1)
    ),
    SessionCase(
        "a blocked loop that is blocked again", SessionBounds(blocks=2, end=3, connections=1, acks=1)
    ),
)
"""Walked to their end: never two owners."""

RIDDEN = (
    SessionCase("an outage longer than the grace", SessionBounds(), riding=True),
    SessionCase("the same, with a slow clock", SessionBounds(grace=2, session=4, drift=1), riding=True),
)
"""Something is found: the rules do what they are for."""


def _dropped(name: str, bounds: SessionBounds | None = None, *, riding: bool = False) -> SessionCase:
    rules = replace(ALL, **{name: False})
    return SessionCase(f"without `{name}`", bounds or SessionBounds(), rules, name, riding)


DROPPED = (
    _dropped("extend", SessionBounds(connections=2, acks=1), riding=True),
    _dropped("server_too"),
    _dropped("confirmed"),
    _dropped("after_load"),
    _dropped("only_live", SessionBounds(end=4, connections=2, acks=1)),
    _dropped("epochs", SessionBounds(session=2, end=4, stale=True, connections=3, acks=1)),
    _dropped("margin", SessionBounds(grace=2, session=4, drift=1)),
    _dropped("phase", SessionBounds(grace=3, rebalance=1, connections=2, acks=1)),
    _dropped("own_join", SessionBounds(grace=2, rebalance=2, joins=True, connections=2, acks=3)),
    _dropped("phase_waits", SessionBounds(rebalance=2, connections=2, acks=1)),
    _dropped("spare_phase", SessionBounds(grace=3, rebalance=2, blocks=1, connections=1, acks=1)),
    _dropped("spare_apart", SessionBounds(rebalance=2, blocks=1, end=4, connections=1, acks=1)),
    _dropped("promised", SessionBounds(grace=2, session=4, blocks=1, connections=1, acks=1)),
    _dropped("spare_living", SessionBounds(blocks=1, connections=1, acks=1)),
    _dropped("looks_first", SessionBounds(blocks=1, connections=1, acks=1)),
)
"""Each rule dropped, with bounds in which that breaks something."""
