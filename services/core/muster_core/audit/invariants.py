"""What a log must never show: the promises that can be checked from what the nodes hold.

`LogChecker` and `GroupChecker` make most of the checks; `muster verify` and the audit share the rest.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from muster_core.position import Position


class Severity(StrEnum):
    """How bad a broken promise is."""

    CRITICAL = "critical"
    """Acknowledged data may be lost, or a piece of work may have had two owners."""
    SERIOUS = "serious"
    """A member or a worker got a wrong answer."""
    MINOR = "minor"
    """A limit or a time was not kept."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise about logs.

    Attributes:
        id: short name in reports.
        promise: one sentence that holds for every log.
        counted: what a check counts, in the plural.
        severity: how bad a break is.
        computed: how it is computed, in words.
    """

    id: str
    promise: str
    counted: str
    severity: Severity
    computed: str


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
    invariant.id: invariant
    for invariant in (
        Invariant(
            "L1",
            "Offsets of a log are dense: each is one more than the one before.",
            "entries",
            Severity.CRITICAL,
            "Each entry's offset against the one before it.",
        ),
        Invariant(
            "L2",
            "Epochs never decrease along a log.",
            "entries",
            Severity.CRITICAL,
            "Each entry's epoch against the one before it.",
        ),
        Invariant(
            "L3",
            "The epoch changes only at a Claim, grows there, and the Claim names the entry before it.",
            "claims",
            Severity.CRITICAL,
            "Each Claim, and each change of the epoch, against the entry before it.",
        ),
        Invariant(
            "L4",
            "Only the owner of an epoch writes in it, and nothing after its Handoff.",
            "records",
            Severity.CRITICAL,
            "Each record against the Claim and the Handoff of its epoch.",
        ),
        Invariant(
            "L5",
            "A majority of the nodes has every acknowledged entry.",
            "entries",
            Severity.CRITICAL,
            "The nodes' entries up to the acknowledged position, counted; and every exported "
            "acknowledgement of such an entry looked up in the log.",
        ),
        Invariant(
            "L6",
            "An entry is never changed: the chain of hashes over all entries is unbroken.",
            "hashes",
            Severity.CRITICAL,
            "SHA-256 over the hash before, place, nonce and record of each entry, against its stored hash.",
        ),
        Invariant(
            "L6n",
            "At or below the acknowledged position no two nodes hold different entries, and none has a hole; "
            "after it none hold different entries of one claim.",
            "entries of nodes",
            Severity.CRITICAL,
            "The entries of all nodes side by side.",
        ),
        Invariant(
            "L7",
            "Each entry has a nonce, and none appears twice: a repeated append is applied once.",
            "nonces",
            Severity.CRITICAL,
            "The length of each nonce, and each against all before it in its log.",
        ),
        Invariant(
            "L8",
            "A log begins with the Genesis that `init` wrote for it, and has no other.",
            "logs",
            Severity.CRITICAL,
            "The first entry against the cluster's identity; a trimmed log must hold a snapshot marker.",
        ),
        Invariant(
            "L9",
            "Trimming removes nothing that no snapshot covers.",
            "snapshots",
            Severity.CRITICAL,
            "The first entry that is left against the reach of the snapshots named in the log; each "
            "marker against its own place.",
        ),
        Invariant(
            "L10",
            "Every record can be decoded, and is of a kind that this version knows and that its log has.",
            "records",
            Severity.SERIOUS,
            "Each record decoded; one of an unknown kind is broken only where it is marked critical, or "
            "where it has no kind at all. Topics and nodes are in the catalog's log alone, groups never.",
        ),
        Invariant(
            "L11",
            "No node has entries above the epoch that it promised, or of another claim of that epoch.",
            "promises",
            Severity.CRITICAL,
            "The promise of each node against the epoch of its last entry and the nonce of its Claim.",
        ),
        Invariant(
            "L12",
            "The log contains what an earlier audit saw at its end: nobody set it back, or wrote it anew.",
            "ends",
            Severity.CRITICAL,
            "The place and hash of each end in the anchor against the entry there or, where that was "
            "trimmed, against the snapshots.",
        ),
        Invariant(
            "E3",
            "Nothing of an older epoch is stored after a newer Claim.",
            "claims",
            Severity.CRITICAL,
            "The epoch of every record after a Claim against the Claim's.",
        ),
        Invariant(
            "G1",
            "A group's generation grows by one and is never used twice while the group lives.",
            "generations",
            Severity.CRITICAL,
            "Each GenerationStarted against the one before it of its group, over all epochs.",
        ),
        Invariant(
            "G2",
            "A generation has at most one assignment, and it comes after its start.",
            "assignments",
            Severity.CRITICAL,
            "Each AssignmentCommitted against the group's generation.",
        ),
        Invariant(
            "G3",
            "An assignment names the members of its generation, and nobody else.",
            "assignments",
            Severity.SERIOUS,
            "Its member ids against those of its GenerationStarted.",
        ),
        Invariant(
            "G4",
            "A stored assignment is never followed by other bytes for its generation.",
            "assignments",
            Severity.CRITICAL,
            "A second assignment of a generation against the first one, member by member.",
        ),
        Invariant(
            "G5",
            "A generation has one leader, a member of it, and only the leader assigns.",
            "generations",
            Severity.SERIOUS,
            "The leader against the members; an assignment's author against the leader.",
        ),
        Invariant(
            "G6",
            "The chosen protocol is supported by every member of the generation.",
            "generations",
            Severity.SERIOUS,
            "The protocol against each member's list.",
        ),
        Invariant(
            "G7",
            "Records of a group come only in states that allow them.",
            "records",
            Severity.SERIOUS,
            "Departures, assignments and removals against the members of the generation.",
        ),
        Invariant(
            "G9",
            "No partition is given to two members of one generation.",
            "partitions",
            Severity.CRITICAL,
            "The partitions of each published assignment, each once.",
        ),
        Invariant(
            "G10",
            "A static id belongs to one member at a time, and in a classic group for its life.",
            "generations",
            Severity.SERIOUS,
            "The static ids of each generation, each once, and against those that members had before; each "
            "take-over against the holder, and against all members.",
        ),
        Invariant(
            "G11",
            "A group never exceeds its limits.",
            "generations",
            Severity.MINOR,
            "Members, bytes of each record and bytes of commit metadata against the limits.",
        ),
        Invariant(
            "G12",
            "The records replay into a state as a coordinator's load does, and each stored snapshot is "
            "that state.",
            "logs",
            Severity.CRITICAL,
            "The coordinator's own replay; the bytes of each snapshot against a snapshot made from the "
            "replay at its place.",
        ),
        Invariant(
            "G13",
            "A removed group stays removed, and tokens of a group only grow.",
            "tokens",
            Severity.CRITICAL,
            "What follows a tombstone; each kept token against the record that gave it and against "
            "earlier lives of the group.",
        ),
        Invariant(
            "G14",
            "A group is in one log, that of the shard which its id is hashed into.",
            "groups",
            Severity.CRITICAL,
            "The hash of each group id against the number of the log.",
        ),
        Invariant(
            "G15",
            "No assignment gives a member what another member of its generation keeps.",
            "kept partitions",
            Severity.CRITICAL,
            "Each partition of an assignment against what members said that they keep when they joined.",
        ),
        Invariant(
            "G16",
            "A record of a group says only what a coordinator writes.",
            "records",
            Severity.SERIOUS,
            "Each record by itself: nothing is empty, negative or named twice that cannot be, and its cause "
            "is one that such a record has. A group that is removed must be there, one with members keeps "
            "its type, joins of a member are numbered upwards and say what they ask for once, and how far "
            "the catalog was seen never goes back.",
        ),
        Invariant(
            "G17",
            "Nobody is given a partition that was removed, and nothing is committed in one.",
            "records",
            Severity.CRITICAL,
            "Each assignment and commit against the removals that the log of its shard noted before it, "
            "until their topic is deleted.",
        ),
        Invariant(
            "G18",
            "A member belongs to one identity and is known by one secret until it is gone, and a static "
            "member's place stays with its identity.",
            "members",
            Severity.SERIOUS,
            "The identity and the secret's hash of each member of a generation against those that it had in "
            "the one before; the identity of a take-over against the holder's. A member that had none may "
            "get one.",
        ),
        Invariant(
            "I1",
            "A partition of an incremental group has one owner: nobody is given what another one has, taken "
            "from that one or not.",
            "partitions",
            Severity.CRITICAL,
            "Each partition that a step gives against all that the members have at its place.",
        ),
        Invariant(
            "I2",
            "A member gives back what was taken from it, and what is taken from it, it had.",
            "partitions",
            Severity.CRITICAL,
            "Each partition that a step releases or takes against what its member has. Who names no join, or "
            "is away, may give back what was not taken yet.",
        ),
        Invariant(
            "I3",
            "Members are brought towards their targets, and no further than these go.",
            "steps",
            Severity.SERIOUS,
            "Each step's partitions and epoch against the member's target and its epoch.",
        ),
        Invariant(
            "I4",
            "Epochs of a group rise by one, and go on where it changes its kind; targets are of later ones.",
            "epochs",
            Severity.CRITICAL,
            "Each EpochRaised against the epoch or generation before it; each target's epoch against the "
            "group's and the last target's.",
        ),
        Invariant(
            "I5",
            "A target gives a partition to one member, and is for members of the group.",
            "targets",
            Severity.SERIOUS,
            "What each target gives and takes against the targets of all members.",
        ),
        Invariant(
            "I6",
            "Whoever left for a while is a static member, and is given nothing until it is back.",
            "departures and steps",
            Severity.SERIOUS,
            "Each such departure, and each step of a member that is away.",
        ),
        Invariant(
            "I7",
            "The token of a partition of an incremental group is the place of the record that gave it.",
            "groups in snapshots",
            Severity.CRITICAL,
            "Who has what since which record, and what was taken by which, in each stored snapshot against "
            "the records.",
        ),
        Invariant(
            "I8",
            "A member is removed for what it did not give back only while there is such, and after its time.",
            "removals",
            Severity.SERIOUS,
            "Each such removal against what the member has, and the time since something was taken from it, "
            "within one owner whose clock did not move; 100 ms are allowed for.",
        ),
        Invariant(
            "I9",
            "A group changes its kind with all its members, which can be of the other; nobody gets or loses.",
            "conversions",
            Severity.CRITICAL,
            "The members and the generation of each conversion, either way, against those of the group "
            "before; owners and tokens are followed across it.",
        ),
        Invariant(
            "I10",
            "While a deployment holds moves back no target moves anything between living members, and a hold "
            "is made longer by its members' joins alone, within an hour.",
            "holds and targets",
            Severity.SERIOUS,
            "Each record of a hold against the one before; what each target takes and gives against the "
            "members that name the topic.",
        ),
        Invariant(
            "C1",
            "A topic's partitions only grow, and only a topic that is there is removed.",
            "changes of topics",
            Severity.CRITICAL,
            "Each topic's record in the catalog against the catalog before it.",
        ),
        Invariant(
            "C2",
            "A change of the catalog is carried out once.",
            "changes of topics",
            Severity.SERIOUS,
            "The id of each change against the last 4,096.",
        ),
        Invariant(
            "C3",
            "Each replacement of a node makes the next configuration, of which there is one.",
            "replacements",
            Severity.CRITICAL,
            "The number of each configuration against the one before it, the replaced address against "
            "the one that the node had.",
        ),
        Invariant(
            "C4",
            "A feature is enabled once.",
            "enabled features",
            Severity.SERIOUS,
            "Each feature against those that were enabled before it; only that of the catalog's snapshots is "
            "repeated, with each of them.",
        ),
        Invariant(
            "M3",
            "A member is removed for its silence only after its time-out.",
            "removals",
            Severity.SERIOUS,
            "The time between a removal and the last record that shows the member, within one owner whose "
            "clock did not move; 100 ms are allowed for. The time-out that the removal states against the "
            "member's record. Removals by version 0.1 are not judged: it did not store the time-out.",
        ),
        Invariant(
            "M4",
            "A member that left or was left out comes back under that id in no generation and no take-over.",
            "generations and take-overs",
            Severity.SERIOUS,
            "The members of each generation, and who takes a place over, against all that were members "
            "before the last one.",
        ),
        Invariant(
            "M5",
            "Nobody is a member without an id.",
            "generations",
            Severity.SERIOUS,
            "The member ids of each generation and take-over.",
        ),
        Invariant(
            "O2",
            "Offsets change only by commits and tombstones: a snapshot holds those that the records give.",
            "snapshots",
            Severity.CRITICAL,
            "The committed offsets in each stored snapshot against those of the replay at its place.",
        ),
        Invariant(
            "O3",
            "A commit comes from a member of the group's current generation, or from outside while "
            "there is none.",
            "commits",
            Severity.CRITICAL,
            "Each commit against the generation and its members at its place.",
        ),
        Invariant(
            "O4",
            "A commit is in the log once: the number that a member gives its commits only grows.",
            "commits",
            Severity.CRITICAL,
            "The number of each commit against the last one of its member.",
        ),
        Invariant(
            "O6",
            "Offsets expire only where nobody uses them.",
            "expiries",
            Severity.SERIOUS,
            "The topics of each expiry against the subscriptions of the members.",
        ),
    )
}
"""All promises that are checked on logs, by id."""


@dataclass(slots=True)
class Findings:
    """What checks found.

    Attributes:
        limit: violations kept per invariant; all are counted.
        violations: in the order in which they were found.
        checked: how often each promise was looked at.
        broken: how often each was broken.
        uncut: nodes that have an end which was never acknowledged, with its first place: to be repaired.
    """

    limit: int = 20
    violations: list[Violation] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    uncut: dict[int, Position] = field(default_factory=dict)

    def expect(self, invariant: str, holds: bool, position: Position, detail: str) -> None:
        """Counts one look at a promise, and keeps the violation if it does not hold."""
        self.checked[invariant] += 1
        if not holds:
            self.broke(invariant, position, detail)

    def broke(self, invariant: str, position: Position, detail: str) -> None:
        """Counts a violation where the look was counted before, and keeps it."""
        self.broken[invariant] += 1
        if self.broken[invariant] <= self.limit:
            self.violations.append(Violation(invariant, position, detail))
