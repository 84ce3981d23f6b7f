"""The spaces that are walked, and for each rule the space in which something breaks without it."""

from dataclasses import dataclass

from model.explore import Goal
from model.quorum import CLAIMS
from model.state import Bounds, Rules, State, without

ALL = Rules()


def _stands_for_good(state: State) -> bool:
    """Whether an owner's claim stands on a majority of nodes that are sure, and nobody claims any more."""
    if state.left[CLAIMS] or any(coordinator.mode == "prepare" for coordinator in state.coordinators):
        return False
    sure = [node.promise for node in state.nodes if node.sure and node.configuration]
    return any(
        coordinator.mode == "own" and sure.count((coordinator.epoch, coordinator.nonce)) >= 2
        for coordinator in state.coordinators
    )


GOES_ON = Goal[State](
    "nothing more can be acknowledged",
    lambda state: bool(state.left[CLAIMS]),
    lambda state, after: after.acknowledged != state.acknowledged,
)
"""While claims are left, more can be acknowledged."""

COMES_BACK = Goal[State](
    "a node that restarted never votes again, although a claim stands",
    lambda state: _stands_for_good(state) and not all(node.sure for node in state.nodes),
    lambda _, after: all(node.sure for node in after.nodes),
)
"""A node that restarted votes again under the claim that stands: nobody has to claim anew."""


def _promised_above(state: State) -> bool:
    """Whether a node has promised a claim above all that stand."""
    owned = [coordinator.epoch for coordinator in state.coordinators if coordinator.mode == "own"]
    return any(node.promise[0] > max(owned, default=0) for node in state.nodes)


TAKES_PART = Goal[State](
    "a node that promised a dead claimant never takes part again, although a claim stands",
    lambda state: _stands_for_good(state) and _promised_above(state),
    lambda _, after: not _promised_above(after),
)
"""A node comes under the claim that stands, whatever it promised: nobody has to claim anew."""


@dataclass(frozen=True)
class Case:
    """One walk.

    Attributes:
        name: what it is about.
        bounds: how often things happen.
        rules: all, or all but one.
        dropped: the rule that is missing; empty: none, and nothing may break.
        goals: what must stay possible as well.
    """

    name: str
    bounds: Bounds
    rules: Rules = ALL
    dropped: str = ""
    goals: tuple[Goal[State], ...] = ()


SHALLOW = (
    Case("two owners, one dies", Bounds(records=1, claims=1, crashes=1)),
    Case("a message is delayed for any time", Bounds(records=1, claims=1, late=1, lost=False)),
    Case("a node loses its data", Bounds(records=1, claims=1, wipes=1)),
    Case("snapshots and trims", Bounds(records=1, claims=1, trims=1, lost=False)),
    Case("a trimmed node loses its data", Bounds(records=1, claims=0, trims=1, wipes=1, lost=False)),
    Case("settings that name a part of the nodes", Bounds(records=1, claims=1, part=True)),
    Case("settings that name an empty server", Bounds(records=1, claims=1, stranger=True)),
    Case("a node is replaced", Bounds(records=1, claims=1, replacements=True, lost=False)),
    Case("a node loses its data again", Bounds(1, 1, wipes=1, lost=False, wiped_before=True)),
    Case("a node forgets its last second", Bounds(records=1, claims=1, forgets=1, lost=False)),
    Case(
        "a Claim reaches one node, one forgets",
        Bounds(records=1, claims=1, crashes=1, forgets=1, lost=False),
        goals=(GOES_ON,),
    ),
    Case("a node forgets, one loses its data", Bounds(1, 0, wipes=1, forgets=1, lost=False)),
    Case(
        "a claimant died, a node restarts",
        Bounds(0, 1, crashes=1, forgets=1, lost=False),
        goals=(COMES_BACK,),
    ),
    Case(
        "a claimant died, an owner waits",
        Bounds(records=1, claims=1, crashes=1, lost=False, patient=True),
        goals=(TAKES_PART,),
    ),
    Case("a claimant lives, an owner waits", Bounds(records=1, claims=2, lost=False, patient=True)),
    Case(
        "a claimant died, an owner waits, a node restarts",
        Bounds(records=1, claims=1, crashes=1, forgets=1, lost=False, patient=True),
        goals=(COMES_BACK, TAKES_PART),
    ),
    Case("an owner waits, a node loses its data", Bounds(1, 1, wipes=1, lost=False, patient=True)),
    Case("an owner waits, a message is delayed", Bounds(1, 1, late=1, lost=False, patient=True)),
    Case(
        "a claimant died, then a node",
        Bounds(records=1, claims=2, crashes=1, dead=0, lost=False),
        goals=(GOES_ON,),
    ),
)
"""Spaces that are walked to their end in seconds; nothing may break."""

DEEP = (
    Case("three owners", Bounds(records=1, claims=2)),
    Case("two records, two owners, one dies", Bounds(records=2, claims=1, crashes=1)),
    Case("a message is delayed, answers are lost", Bounds(records=2, claims=1, late=1)),
    Case("two messages are delayed", Bounds(records=1, claims=1, late=2, lost=False)),
    Case("a node loses its data under three owners", Bounds(records=1, claims=2, wipes=1, lost=False)),
    Case("nodes lose their data twice", Bounds(records=1, claims=1, wipes=2)),
    Case("a node loses its data, a message is delayed", Bounds(records=1, claims=1, wipes=1, late=1)),
    Case("a node loses its data twice more", Bounds(1, 2, wipes=2, lost=False, wiped_before=True)),
    Case("a node forgets its last second, answers are lost", Bounds(1, 1, crashes=1, forgets=1, depth=2)),
    Case("a node forgets, a message is delayed", Bounds(1, 1, late=1, forgets=1, depth=2, lost=False)),
    Case("a node forgets, one loses its data, two owners", Bounds(1, 1, wipes=1, forgets=1, lost=False)),
    Case("nodes forget one after the other", Bounds(1, 1, forgets=2, depth=2, lost=False)),
    Case("a node forgets under three owners", Bounds(1, 2, forgets=1, lost=False)),
    Case("two records and a trim", Bounds(records=2, claims=1, trims=1, lost=False)),
    Case(
        "a trimmed node loses its data, two owners", Bounds(records=1, claims=1, trims=1, wipes=1, lost=False)
    ),
    Case("a node is replaced, answers are lost", Bounds(records=1, claims=1, replacements=True)),
    Case("a node is replaced, a message is delayed", Bounds(1, 1, late=1, replacements=True, lost=False)),
    Case("a node is replaced, one loses its data", Bounds(1, 1, wipes=1, replacements=True, lost=False)),
    Case("a node of a trimmed log is replaced", Bounds(1, 1, trims=1, replacements=True, lost=False)),
    Case("a node is replaced, an owner waits", Bounds(1, 1, replacements=True, lost=False, patient=True)),
    Case("two replacements at once", Bounds(records=1, claims=1, replacements=True, twice=True, lost=False)),
)
"""Spaces that take minutes."""


def _dropped(name: str, bounds: Bounds, *goals: Goal[State]) -> Case:
    return Case(f"without `{name}`", bounds, without(name), name, goals)


DROPPED = (
    _dropped("nonce", Bounds(records=1, claims=2, lost=False)),
    _dropped("guard", Bounds(records=1, claims=1, late=1, lost=False)),
    _dropped("behind", Bounds(records=2, claims=0, late=1, lost=False)),
    _dropped("best", Bounds(records=1, claims=1, lost=False)),
    _dropped("claim_first", Bounds(records=1, claims=1, lost=False)),
    _dropped("prepared", Bounds(records=1, claims=1, lost=False)),
    _dropped("committed", Bounds(records=1, claims=0, lost=False)),
    _dropped("above", Bounds(records=1, claims=2, crashes=1, dead=0, lost=False), GOES_ON),
    _dropped("placed", Bounds(records=1, claims=1, part=True)),
    _dropped("silent", Bounds(records=1, claims=1, wipes=1)),
    _dropped("excluding", Bounds(records=1, claims=1, wipes=1)),
    _dropped("whole", Bounds(records=1, claims=1, wipes=1)),
    _dropped("delayed", Bounds(records=1, claims=1, wipes=1)),
    _dropped("marked", Bounds(records=1, claims=0, trims=1, lost=False)),
    _dropped("stored", Bounds(records=1, claims=0, trims=1, lost=False)),
    _dropped("furnished", Bounds(records=1, claims=0, trims=1, wipes=1, lost=False)),
    _dropped("replaced_whole", Bounds(records=1, claims=1, trims=1, lost=False)),
    _dropped("numbered", Bounds(records=1, claims=1, replacements=True, lost=False)),
    _dropped("named", Bounds(records=1, claims=1, stranger=True, lost=False)),
    _dropped("counted", Bounds(records=1, claims=1, replacements=True, lost=False)),
    _dropped("continuous", Bounds(records=1, claims=1, wipes=1, lost=False, wiped_before=True)),
    _dropped("doubted", Bounds(records=1, claims=1, forgets=1, lost=False)),
    _dropped("raised", Bounds(records=1, claims=1, forgets=1, lost=False)),
    _dropped("recovered", Bounds(records=1, claims=1, forgets=1, lost=False)),
    _dropped("lowered", Bounds(records=0, claims=1, crashes=1, forgets=1, lost=False), COMES_BACK),
    _dropped("below", Bounds(records=1, claims=1, forgets=1, lost=False)),
    _dropped("noted", Bounds(records=1, claims=1, forgets=1, lost=False, unnoted=True)),
    _dropped("floored", Bounds(records=1, claims=0, wipes=1, forgets=1, lost=False)),
    _dropped("decided", Bounds(records=0, claims=1, replacements=True, twice=True, lost=False)),
)
"""Each rule dropped, with bounds in which that breaks something."""
