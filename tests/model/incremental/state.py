"""A group, its members as their processes see themselves, and what is on its way between them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from model.quick_replace import quick_replace


@dataclass(frozen=True)
class Bounds:
    """How large a space is, and how often things happen in it.

    Attributes:
        processes: how many there are; the first `members` are members at the beginning.
        partitions: how many there are.
        gives: who has each of them at the beginning; empty: in turn; -1: nobody, and a target is due.
        unary: processes that make unary calls; the others are on a stream.
        instance: processes that have one static id.
        waits: a process whose static id has a living one asks again until that is gone (on streams); else it
            replaces it at once, as one that is away.
        shared: processes that are on one stream: it breaks for all of them at once.
        joins: processes that come; who was a member joins again without counting.
        inputs: changes of a subscription, a topic, a weight: a new target is due.
        leaves: processes that leave, for good or for a while.
        breaks: streams that break.
        late: messages that are under way for any time.
        losses: unary answers that are lost.
        crashes: coordinators that die, at any point between two records.
        deadlines: revocation deadlines that pass though the process is well.
        hangs: processes that never give back.
        sleeps: processes that are paused.
        commits: commits.
        extras: lists sent without need.
        ends: processes that hear nothing for their life, and stop.
        lives: how often a process joins.
        slow_target: an assignment takes its time.
        storm: changes of the assignment's inputs keep coming, without an end.
        cuts: coordinators that die, whose successor's log lacks its end, which was shown.
        removals: members that an operator removes.
        deletions: groups without members that are deleted, and begin anew with the next join.
        room: pushes that a stream holds which the member has not read.
    """

    processes: int = 2
    partitions: int = 2
    members: int = 2
    gives: tuple[int, ...] = ()
    unary: tuple[int, ...] = ()
    instance: tuple[int, ...] = ()
    joins: int = 0
    inputs: int = 0
    leaves: int = 0
    breaks: int = 0
    late: int = 0
    losses: int = 0
    crashes: int = 0
    deadlines: int = 0
    hangs: int = 0
    sleeps: int = 0
    commits: int = 0
    extras: int = 0
    ends: int = 0
    lives: int = 3
    slow_target: bool = False
    storm: bool = False
    cuts: int = 0
    removals: int = 0
    deletions: int = 0
    room: int = 1
    shared: tuple[int, ...] = ()
    waits: bool = False

    @property
    def streams(self) -> tuple[int, ...]:
        """Processes that are on a stream."""
        return tuple(who for who in range(self.processes) if who not in self.unary)

    @property
    def nothing(self) -> tuple[int, ...]:
        """The tokens of whoever has no partition."""
        return (0,) * self.partitions

    @property
    def is_timed(self) -> bool:
        """Whether a revocation deadline can pass."""
        return bool(self.deadlines or self.hangs)


(JOINS, INPUTS, LEAVES, BREAKS, LATE, LOSSES, CRASHES) = range(7)
(DEADLINES, HANGS, SLEEPS, COMMITS, EXTRAS, ENDS, CUTS, REMOVALS, DELETIONS) = range(7, 16)
BUDGETS = (
    "joins",
    "inputs",
    "leaves",
    "breaks",
    "late",
    "losses",
    "crashes",
    "deadlines",
    "hangs",
    "sleeps",
    "commits",
    "extras",
    "ends",
    "cuts",
    "removals",
    "deletions",
)


@quick_replace
class Member(NamedTuple):
    """A member, as the log has it.

    Attributes:
        epoch: to which it was brought.
        before: the epoch before its last record; only Kafka's rule reads it.
        held: token of each partition that it owns, given back or not; 0: it does not.
        taken: where a partition was taken away that it has not released; 0: it was not.
        join: number of its join.
        version: where its list or epoch changed last.
        away: it is static and left for a while.
        seq: of its last commit.
    """

    epoch: int
    before: int
    held: tuple[int, ...]
    taken: tuple[int, ...]
    join: int
    version: int
    away: bool = False
    seq: int = 0


@quick_replace
class Group(NamedTuple):
    """A group, as the log has it: a function of its records.

    Attributes:
        epoch: of the group.
        target_epoch: for which the target was computed.
        target: who should have each partition; -1: nobody.
        members: by process.
        commits: token and number of the last commit of each partition.
        position: of the last record.
    """

    epoch: int
    target_epoch: int
    target: tuple[int, ...]
    members: tuple[Member | None, ...]
    commits: tuple[tuple[int, int], ...]
    position: int


@quick_replace
class Process(NamedTuple):
    """A member as its own process sees itself.

    Attributes:
        mode: `out`, `joining`, `in`, or `stopped` (another process has its static id).
        join: number of its last join.
        epoch: newest that it has heard.
        version: newest that it has heard.
        owns: tokens of what it runs.
        news: the list that it has heard and not applied.
        conn: number of its connection; 0: none.
        dead: the connection is broken, which it has not noticed.
        settled: its join or resumption on this connection was answered, so that its beats count; of unary
            calls, one was answered since the log lost its end.
        over: its life has ended by its own clock.
        asleep: it is paused: it believes what it believed, beyond any clock.
        hung: it will not give back.
        ousted: a record removed it that it has not heard of.
        unsure: the log lost records, and it has not yet applied what the new coordinator said.
        seq: number of its last commit in this join.
        era: which of its lives it is in; an answer to an earlier one does not count. On streams: its last
            connection.
        load: the newest coordinator that it has heard of; one is another where the log lost its end.
    """

    mode: str = "out"
    join: int = 0
    epoch: int = 0
    version: int = 0
    owns: tuple[int, ...] = ()
    news: tuple[int, ...] | None = None
    conn: int = 0
    dead: bool = False
    settled: bool = False
    over: bool = False
    asleep: bool = False
    hung: bool = False
    ousted: bool = False
    unsure: bool = False
    seq: int = 0
    era: int = 0
    load: int = 0


@quick_replace
class Message(NamedTuple):
    """A request (`join`, `beat`, `resume`, `leave`, `away`, `commit`) or an answer.

    Answers are `list`, `same` (nothing has changed), `fenced` and `replaced`; they name the epoch of their
    coordinator (`load`).
    """

    kind: str
    who: int
    join: int
    conn: int = 0
    epoch: int = 0
    version: int = 0
    owned: tuple[int, ...] = ()
    commit: tuple[int, int, int] = (0, 0, 0)
    era: int = 0
    load: int = 0


@quick_replace
class State(NamedTuple):
    """Everything.

    Attributes:
        group: the log.
        processes: the members' own view.
        attached: connection on which the coordinator has each member; 0: none.
        seen: highest number of a connection of each member.
        dirty: who is to be told something; what, is decided when it is sent.
        timers: member, epoch and record of each revocation deadline.
        up: frames under way on each stream to the coordinator, in order.
        down: pushes under way on each stream to the member, in order.
        late: messages under way for any time, in any order.
        computing: group epoch of an assignment that is computed, and its members.
        checked: a commit that is checked and not written.
        left: how often things may still happen.
        wrong: the promise that the last step broke.
        past: the log without what may still be lost.
    """

    group: Group
    processes: tuple[Process, ...]
    attached: tuple[int, ...]
    seen: tuple[int, ...]
    dirty: tuple[bool, ...]
    timers: tuple[tuple[int, int, int], ...]
    up: tuple[tuple[Message, ...], ...]
    down: tuple[tuple[Message, ...], ...]
    late: tuple[Message, ...]
    computing: tuple[int, tuple[int, ...]] | None
    checked: Message | None
    left: tuple[int, ...]
    wrong: str = ""
    past: Group | None = None


Step = tuple[str, State]
FENCES = ("fenced", "replaced")
ANSWERS = ("list", "same", *FENCES)
OUT_OF_DATE = "the assignment is out of date"
NEW_TARGET = "the target is"
NOBODY = (-2, ())
"""In place of an assignment that is computed: one is due, but nobody will begin it."""


def put(items: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    """The tuple with one item replaced."""
    return (*items[:place], value, *items[place + 1 :])


def spend(state: State, what: int) -> State:
    """One less of what may happen."""
    return state._replace(left=put(state.left, what, state.left[what] - 1))


def change(state: State, who: int, **what: Any) -> State:
    """A process with something changed."""
    return state._replace(processes=put(state.processes, who, state.processes[who]._replace(**what)))


def delay(state: State, message: Message) -> State:
    """A message is under way for any time."""
    return spend(state, LATE)._replace(late=tuple(sorted((*state.late, message))))
