"""What several seeds found, in words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulation.run import Outcome


@dataclass
class Totals:
    """Adds outcomes up."""

    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Takes the next one."""
        self.outcomes.append(outcome)

    @property
    def failed(self) -> Sequence[Outcome]:
        """Those that found something."""
        return [outcome for outcome in self.outcomes if not outcome.good]

    def table(self) -> Iterable[str]:
        """How often each fault happened and each invariant was looked at."""
        faults: Counter[str] = Counter()
        checked: Counter[str] = Counter()
        for outcome in self.outcomes:
            faults.update(outcome.faults)
            checked.update(outcome.checked)
        yield "faults      " + ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items()))
        yield "invariants  " + ", ".join(f"{name} {count:,}" for name, count in sorted(checked.items()))

    def line(self, wall_s: float, minutes: float) -> str:
        """Everything in one line."""
        outcomes = self.outcomes
        slowest = max((outcome.settled_s for outcome in outcomes), default=0.0)
        return (
            f"simulate: {len(outcomes)} seeds of {minutes:g} virtual minutes, {len(self.failed)} failed; "
            f"{sum(sum(o.faults.values()) for o in outcomes):,} faults, "
            f"{sum(o.delivered for o in outcomes):,} messages, {sum(o.commits for o in outcomes):,} "
            f"acknowledged commits, {sum(o.generations for o in outcomes):,} generations, "
            f"{sum(o.conversions for o in outcomes):,} groups made incremental and "
            f"{sum(o.reversions for o in outcomes):,} classic again, "
            f"{sum(sum(o.checked.values()) for o in outcomes):,} checks; slowest recovery {slowest:.1f} s; "
            f"{wall_s:.0f} s"
        )


def told(outcome: Outcome, command: str) -> Iterable[str]:
    """A failed seed: what was violated, and how to see it again."""
    for violation in outcome.violations[:3]:
        detail = violation.detail[:2_000]
        yield f"seed {outcome.seed}: {violation.invariant} at {violation.at_s:.3f} s: {detail}"
    yield f"seed {outcome.seed}: repeat it with {command}"
