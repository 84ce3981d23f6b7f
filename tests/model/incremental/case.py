"""One walk of the model of incremental groups."""

from dataclasses import dataclass, replace
from typing import Any

from model.explore import Circle, Goal, Walk, explore
from model.incremental.group import GroupModel
from model.incremental.holds import HoldBounds, HoldModel
from model.incremental.identity import IdentityBounds, IdentityModel
from model.incremental.kinds import ChangeModel
from model.incremental.kinds_state import ChangeBounds
from model.incremental.rules import Rules
from model.incremental.state import NEW_TARGET, OUT_OF_DATE, Bounds


@dataclass(frozen=True)
class IncrementalCase:
    """One walk.

    Attributes:
        name: what it is about.
        bounds: how large it is.
        dropped: the rule that is missing; empty: none, and nothing may break.
        instead: another rule in its place.
    """

    name: str
    bounds: Bounds | IdentityBounds | ChangeBounds | HoldBounds
    dropped: str = ""
    instead: str = ""

    def walk(self, limit_s: float) -> tuple[Walk, bool]:
        """Walks it; whether it ended as it must."""
        model: Any = self.model()
        walk = explore(model, limit_s, (_reaches_its_target(model),), (STARVED,))
        return walk, bool(walk.broken) if self.dropped else walk.complete and not walk.broken

    def model(self) -> GroupModel | IdentityModel | ChangeModel | HoldModel:
        """What is walked."""
        dropped: dict[str, Any] = {self.dropped: False} if self.dropped else {}
        rules = replace(Rules(instead=self.instead), **dropped)
        match self.bounds:
            case Bounds() as bounds:
                return GroupModel(rules, bounds)
            case IdentityBounds() as bounds:
                return IdentityModel(rules, bounds)
            case HoldBounds() as bounds:
                return HoldModel(rules, bounds)
            case bounds:
                return ChangeModel(rules, bounds)


STARVED = Circle("L3 changes keep coming, and no assignment ever counts", OUT_OF_DATE, NEW_TARGET)


def _reaches_its_target(model: Any) -> Goal[Any]:
    """L1: a state in which everybody has what the target gives, without another fault on the way."""
    return Goal(
        "L1 the group cannot reach its target any more",
        demanded=lambda state: not model.settled(state),
        reached=lambda before, after: bool(after.left == before.left and model.settled(after)),
        along=lambda before, after: bool(after.left == before.left),
    )
