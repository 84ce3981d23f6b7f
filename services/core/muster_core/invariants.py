"""What a log must never show: the promises that can be checked from its entries alone.

Ids are those of the safety specification (docs/safety.md). `LogChecker` and `GroupChecker` make the checks.
"""

from collections import Counter
from dataclasses import dataclass, field

from muster_core.position import Position


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise about logs.

    Attributes:
        id: short name in reports.
        promise: one sentence that holds for every log.
        counted: what a check counts, in the plural.
    """

    id: str
    promise: str
    counted: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A place where a log breaks a promise.

    Attributes:
        invariant: id of the promise.
        position: place of the entry that shows it.
        detail: what is wrong there, in words.
    """

    invariant: str
    position: Position
    detail: str


INVARIANTS: dict[str, Invariant] = {
    row.id: row
    for row in (
        Invariant("L1", "Offsets of a log are dense: each is one more than the one before.", "entries"),
        Invariant("L2", "Epochs never decrease along a log.", "entries"),
        Invariant(
            "L3",
            "The epoch changes only at a Claim, grows there, and the Claim names the entry before it.",
            "claims",
        ),
        Invariant("L4", "Only the owner of an epoch writes in it, and nothing after its Handoff.", "records"),
        Invariant(
            "L6", "An entry is never changed: the chain of hashes over all entries is unbroken.", "hashes"
        ),
        Invariant("L7", "No nonce appears twice: a repeated append is applied once.", "nonces"),
        Invariant("L8", "A log begins with the Genesis that `init` wrote, or at a Snapshot's reach.", "logs"),
        Invariant("L10", "Every record can be decoded and is of a kind that this version knows.", "records"),
        Invariant(
            "G1",
            "A group's generation grows by one and is never used twice while the group lives.",
            "generations",
        ),
        Invariant(
            "G2", "A generation has at most one assignment, and it comes after its start.", "assignments"
        ),
        Invariant("G3", "An assignment names only members of its generation.", "assignments"),
        Invariant(
            "G5", "A generation has one leader, a member of it, and only the leader assigns.", "generations"
        ),
        Invariant("G6", "The chosen protocol is supported by every member of the generation.", "generations"),
        Invariant("G7", "Records of a group come only in states that allow them.", "records"),
        Invariant("G9", "No partition is given to two members of one generation.", "partitions"),
        Invariant("G10", "A static id belongs to one member at a time.", "generations"),
        Invariant(
            "G13",
            "Tokens of a group only grow: a kept token is older than the record that keeps it.",
            "tokens",
        ),
        Invariant("M4", "A member that left is in no later generation under that id.", "generations"),
        Invariant(
            "O2", "A commit moves only forward in the member's own count: none is applied twice.", "commits"
        ),
        Invariant(
            "O3",
            "A commit comes from a member of the group's current generation, or from outside.",
            "commits",
        ),
    )
}


@dataclass(slots=True)
class Findings:
    """What checks found.

    Attributes:
        limit: violations kept per invariant; all are counted.
        violations: in the order in which they were found.
        checked: how often each promise was looked at.
        broken: how often each was broken.
    """

    limit: int = 20
    violations: list[Violation] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)

    def expect(self, invariant: str, holds: bool, position: Position, detail: str) -> None:
        """Counts one look at a promise, and keeps the violation if it does not hold."""
        self.checked[invariant] += 1
        if not holds:
            self.broken[invariant] += 1
            if self.broken[invariant] <= self.limit:
                self.violations.append(Violation(invariant, position, detail))
