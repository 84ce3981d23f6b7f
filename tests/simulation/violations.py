"""What a run found wrong."""

from collections import Counter
from dataclasses import dataclass, field

from simulation.world import World


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: its id.
        at_s: virtual time.
        detail: what is wrong, in words.
    """

    invariant: str
    at_s: float
    detail: str


@dataclass
class Violations:
    """Collects them.

    Attributes:
        found: the first ones, in the order in which they showed.
        checked: how often each invariant was looked at.
    """

    world: World
    found: list[Violation] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)

    def expect(self, invariant: str, holds: object, detail: str) -> None:
        """Looks at an invariant."""
        self.checked[invariant] += 1
        if not holds and len(self.found) < 50:
            self.found.append(Violation(invariant, self.world.now_s, detail))
            self.world.note("VIOLATION", invariant, detail)
