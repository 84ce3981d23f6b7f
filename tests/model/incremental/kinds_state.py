"""A group that may be of either kind, its workers, and what is on its way."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from model.incremental.state import put
from model.quick_replace import quick_replace


@quick_replace
class Seat(NamedTuple):
    """A member in a group that may be of either kind.

    Attributes:
        capable: whether its join said that it can be incremental.
        number: the generation, or the epoch, that it has been brought to.
        version: where its list changed last; the conversion does not change a list.
        classic: whether its join said that it can be classic.
        keeps: of a classic member that joins without stopping: what it said that it works on.
        named: whether its join said with what it can be classic; a classic one does.
    """

    capable: bool
    number: int
    version: int
    classic: bool = True
    keeps: tuple[int, ...] = ()
    named: bool = True


@quick_replace
class Club(NamedTuple):
    """A group of either kind, as the log has it.

    Attributes:
        kind: `classic` or `incremental`.
        phase: of a classic group: `stable`, `preparing` (a member left) or `completing` (no assignment yet).
        number: generation, or group epoch.
        holders: who has each partition; -1: nobody.
        tokens: of the holders.
        taken: where a partition was taken from its holder, who has not given it back; 0: it was not.
        target: who should have each partition; empty: as it is.
        seats: the members.
        commits: token of the last commit of each partition.
        converted: where the group became incremental.
        generation: the last one that was classic.
        position: of the last record.
        reverted: it is classic again, and has no assignment since.
        replaced: whose static id another process has; they need not have heard of it.
    """

    kind: str
    phase: str
    number: int
    holders: tuple[int, ...]
    tokens: tuple[int, ...]
    taken: tuple[int, ...]
    target: tuple[int, ...]
    seats: tuple[Seat | None, ...]
    commits: tuple[int, ...]
    converted: int
    generation: int
    position: int
    reverted: bool = False
    replaced: tuple[int, ...] = ()


@quick_replace
class Worker(NamedTuple):
    """A process that may be a member of either kind.

    Attributes:
        mode: `out`, `stable` (classic), `joining`, `syncing`, `incremental`, `returning` (it has heard that
            its group is classic again, and has not stopped yet) or `refused`.
        number: generation or epoch that it has heard of.
        version: newest that it has heard of.
        owns: tokens of what it runs.
    """

    mode: str
    number: int
    version: int
    owns: tuple[int, ...]


@quick_replace
class Call(NamedTuple):
    """A call: `join`, `sync`, `heartbeat` (classic), `enter`, `beat` (incremental), `commit`, `leave`.

    `synced` and `listed` are answers.
    """

    kind: str
    who: int
    number: int = 0
    version: int = 0
    data: tuple[int, ...] = ()


@quick_replace
class Meeting(NamedTuple):
    """Everything.

    `joined` is who joined in the join phase that runs, with what it keeps; it is in no log. `slow` is an
    assignment that is computed aside, and for which life as an incremental group.
    """

    club: Club
    workers: tuple[Worker, ...]
    joined: tuple[tuple[int, ...] | None, ...] | None
    guess: bool
    late: tuple[Call, ...]
    left: tuple[int, ...]
    wrong: str = ""
    slow: tuple[int, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class ChangeBounds:
    """How large a space of two kinds is, and how often things happen in it.

    Attributes:
        processes: how many there are; `members` of them are in the group at the beginning.
        old: processes that can only be classic.
        raw: processes that can only be incremental.
        mute: processes whose incremental joins say that they can be classic, and not with what.
        kind: of the group at the beginning.
        auto: a classic client that joins makes the group classic again, if that is possible.
        answers: incremental answers may be late, too.
        keep: processes that join again without stopping what they have (cooperative).
        twins: a process, and the one that has its static id after it; -1: there are none.
        slow: assignments may be computed aside.
        stored: a coordinator that loads the group may do so from a snapshot.
    """

    processes: int = 2
    partitions: int = 2
    members: int = 2
    old: tuple[int, ...] = ()
    raw: tuple[int, ...] = ()
    mute: tuple[int, ...] = ()
    kind: str = "classic"
    auto: bool = False
    answers: bool = False
    keep: tuple[int, ...] = ()
    twins: tuple[int, int] = (-1, -1)
    slow: bool = False
    stored: bool = False
    joins: int = 0
    rejoins: int = 0
    leaves: int = 0
    late: int = 0
    crashes: int = 0
    inputs: int = 0
    commits: int = 0
    conversions: int = 1
    backs: int = 0
    gives: tuple[int, ...] = ()

    @property
    def nothing(self) -> tuple[int, ...]:
        """The tokens of whoever has no partition."""
        return (0,) * self.partitions


CHANGE_BUDGETS = (
    "joins",
    "rejoins",
    "leaves",
    "late",
    "crashes",
    "inputs",
    "commits",
    "conversions",
    "backs",
)
(M_JOINS, M_REJOINS, M_LEAVES, M_LATE, M_CRASHES, M_INPUTS, M_COMMITS, M_CONVERSIONS, M_BACKS) = range(9)


def spend(state: Meeting, what: int) -> Meeting:
    """One less of what may happen."""
    return state._replace(left=put(state.left, what, state.left[what] - 1))


def change(state: Meeting, who: int, **what: Any) -> Meeting:
    """A worker with something changed."""
    return state._replace(workers=put(state.workers, who, state.workers[who]._replace(**what)))


def store(state: Meeting, **what: Any) -> Meeting:
    """Writes a record."""
    return state._replace(club=state.club._replace(position=state.club.position + 1, **what))


def list_of(club: Club, who: int) -> tuple[int, ...]:
    """What a member has, and need not give back."""
    return tuple(
        club.tokens[p] if club.holders[p] == who and not club.taken[p] else 0
        for p in range(len(club.holders))
    )


def seat_of(club: Club, who: int) -> Seat:
    """The seat of a member that is there."""
    seat = club.seats[who]
    assert seat is not None
    return seat
