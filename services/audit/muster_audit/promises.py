"""What the audit checks, and how much of it."""

from enum import StrEnum

from muster_core.audit.invariants import INVARIANTS, Invariant, Severity

ALL: dict[str, Invariant] = {
    **INVARIANTS,
    "E2": Invariant(
        "E2",
        "Nothing is answered as stored before the log acknowledged it.",
        "acknowledgements",
        Severity.CRITICAL,
        "Every acknowledgement that was noted elsewhere against the log's acknowledged end.",
    ),
    "O1": Invariant(
        "O1",
        "A read finds the last commit that was acknowledged before it began, or a later one; nothing only "
        "where there was none, or a tombstone.",
        "reads",
        Severity.CRITICAL,
        "Every read that was noted elsewhere against the records that changed its partition, from the last "
        "one that was acknowledged before it began.",
    ),
}
"""What the audit checks, by id."""


class Rules(StrEnum):
    """What is checked of each log."""

    LOG = "log"
    """The log itself: places, epochs, owners, chain of hashes, nonces."""
    ALL = "all"
    """That, and the groups, by their records and by a replay."""
