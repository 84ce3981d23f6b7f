"""What the model of the quorum log is made of: its rules, its bounds, and its states."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from model.quick_replace import quick_replace


@dataclass(frozen=True)
class Rules:
    """What keeps the log safe. Each is true, or dropped.

    Attributes:
        nonce: a promise names its claimant, not only the epoch.
        guard: a node writes only under the promise that it gave.
        behind: ... and only behind the exact end that the writer expects, by id and hash.
        best: a claimant takes the best log of its majority (dropped: any of them).
        claim_first: nothing is acknowledged before the own Claim is on a majority.
        prepared: a claim needs the promise of a majority (dropped: of one node).
        committed: an entry is acknowledged by a majority (dropped: by one node).
        above: a claimant hears of every promise and goes above it (dropped: above its own epochs only).
        placed: a node refuses a writer that counts majorities of another list of nodes.
        silent: a node that lost its data does not vote.
        excluding: it is rebuilt only while a majority without it stands by the claim (dropped: its source).
        whole: ... from the best copy of that majority (dropped: from any copy that has the Claim).
        delayed: ... and after nobody counts any more what it said before it lost its data.
        marked: a trim needs a later snapshot marker in the log.
        stored: ... whose snapshot is on a majority (dropped: on one node).
        furnished: a node is rebuilt with the snapshots that any node has (dropped: those of its source).
        replaced_whole: a node that ends before the oldest entry of the others gets everything that they have.
        numbered: a node refuses a writer of another configuration.
        named: an empty server is filled only if the configuration names it.
        counted: answers are added up within one configuration only.
        decided: one replacement of a number is decided, before any node goes over.
        continuous: of how long a node is empty only the present emptiness counts, not one that it was filled
            after.
        doubted: a node that restarted, and may have forgotten what it said last, does not vote.
        raised: ... until a floor above all that it can have promised stands on a majority of the others,
            under which no older write is taken (dropped: until the claim stands on such a majority).
        recovered: ... and until it has what that majority had (dropped: with the log that it still has).
        lowered: ... also where it promised a claim above the one that stands (dropped: that keeps it out);
            so does a node that is not doubted, whose claimant may be dead.
        below: ... and no promise above the floor is lowered (dropped: any, also by an instance that comes
            late).
        noted: a node has the run of its server noted also where nobody writes (dropped: only with the first
            write of a run, so it can be forgotten with that).
        floored: a node that is rebuilt gets the highest floor of the majority that the claim stands on.
    """

    nonce: bool = True
    guard: bool = True
    behind: bool = True
    best: bool = True
    claim_first: bool = True
    prepared: bool = True
    committed: bool = True
    above: bool = True
    placed: bool = True
    silent: bool = True
    excluding: bool = True
    whole: bool = True
    delayed: bool = True
    marked: bool = True
    stored: bool = True
    furnished: bool = True
    replaced_whole: bool = True
    numbered: bool = True
    named: bool = True
    counted: bool = True
    decided: bool = True
    continuous: bool = True
    doubted: bool = True
    raised: bool = True
    recovered: bool = True
    lowered: bool = True
    below: bool = True
    noted: bool = True
    floored: bool = True


@dataclass(frozen=True)
class Bounds:
    """How often things happen in a space.

    Attributes:
        records: records written.
        claims: claims begun.
        crashes: coordinators that die.
        late: messages that are delayed for any time.
        wipes: nodes that lose their data.
        trims: snapshots that are taken and trimmed to.
        replacements: whether the node of the last place may be replaced.
        part: whether the second coordinator counts majorities of the first node alone.
        stranger: whether the second coordinator's settings name an empty server that nobody put in place.
        twice: whether two replacements are tried at once.
        dead: a node that is away for good from the beginning; -1: none.
        lost: answers that are lost although the node did what it was asked.
        forgets: nodes that restart without the last that they were told; one at a time: where a majority
            forgets at once, nothing is promised.
        depth: how many of its last changes a node forgets at most.
        wiped_before: a node lost its data once already and was filled by the second coordinator, after the
            first one had seen it empty.
        patient: whether owners also bring back nodes that are not doubted and promised a claim above theirs,
            as one does that has waited long enough. The claimant may live all the same.
        unnoted: at the beginning no node has the run of its server noted: an older version wrote there.
    """

    records: int = 1
    claims: int = 1
    crashes: int = 0
    late: int = 0
    wipes: int = 0
    trims: int = 0
    replacements: bool = False
    part: bool = False
    stranger: bool = False
    twice: bool = False
    dead: int = -1
    lost: bool = True
    forgets: int = 0
    depth: int = 1
    wiped_before: bool = False
    patient: bool = False
    unnoted: bool = False


class Entry(NamedTuple):
    """An entry; `before` stands for the chain hash."""

    epoch: int
    offset: int
    kind: str
    nonce: int
    before: int


@quick_replace
class Node(NamedTuple):
    """A server.

    Attributes:
        configuration: of the log; 0: it has no data.
        promise: epoch and nonce.
        log: its entries.
        snapshots: how far they reach.
        floor: it promises nothing at or below this epoch any more, and takes writes only from who knows it.
        wipes: how often it lost its data.
        sure: whether it knows all that it ever said.
        noted: whether the run of its server stands there, by which a restart is known.
        past: promise, log, floor and note before its last changes, which may not be on its disk yet.
    """

    configuration: int
    promise: tuple[int, int]
    log: tuple[int, ...]
    snapshots: tuple[int, ...] = ()
    floor: int = 0
    wipes: int = 0
    sure: bool = True
    noted: bool = True
    past: tuple[tuple[tuple[int, int], tuple[int, ...], int, bool], ...] = ()


@quick_replace
class Coordinator(NamedTuple):
    """One that may own the log.

    Attributes:
        mode: `idle`, `prepare` or `own`.
        view: number of its list of nodes in `Model.views`.
        epoch: of its claim.
        nonce: of its claim.
        seen: while it prepares: pairs of node and the log there.
        log: what it takes the log to be.
        known: per node, the offset up to which that one confirmed.
        done: offset up to which it acknowledged.
        floor: the highest that it heard of under this claim.
        empties: nodes that it has seen empty, with how often each had lost its data by
            then.
        raising: nodes at which it raised the floor for another one, with the log that stood there then.
        raised_to: that floor.
        raising_for: the node that it is raised for; -1: none.
        lowering: a node whose promise an instance of metadata is about to lower under a floor that it has
            raised, and that floor.
    """

    mode: str = "idle"
    view: int = 0
    epoch: int = 0
    nonce: int = -1
    seen: tuple[tuple[int, tuple[int, ...]], ...] = ()
    log: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    done: int = 0
    floor: int = 0
    empties: tuple[tuple[int, int], ...] = ()
    raising: tuple[tuple[int, tuple[int, ...]], ...] = ()
    raised_to: int = 0
    raising_for: int = -1
    lowering: tuple[tuple[int, int], ...] = ()


@quick_replace
class Message(NamedTuple):
    """A write under way to a node."""

    node: int
    configuration: int
    promise: tuple[int, int]
    expected: tuple[int, ...]
    log: tuple[int, ...]
    floor: int = 0


@quick_replace
class State(NamedTuple):
    """Everything. `acknowledged` is the last acknowledged entry; what it is chained to is so, too."""

    nodes: tuple[Node, ...]
    coordinators: tuple[Coordinator, ...]
    acknowledged: int
    forked: bool
    late: tuple[Message, ...]
    left: tuple[int, ...]
    decided: tuple[int, ...] = ()


class View(NamedTuple):
    """A list of nodes that a coordinator counts majorities of."""

    configuration: int
    nodes: tuple[int, ...]
    majority: int


def without(*names: str) -> Rules:
    """All rules but these."""
    return replace(Rules(), **dict.fromkeys(names, False))


def name_of(index: int) -> str:
    """A coordinator's name."""
    return "AB"[index]


def spend(state: State, what: int) -> State:
    """The state in which something may happen once less."""
    left = state.left
    return state._replace(left=(*left[:what], left[what] - 1, *left[what + 1 :]))
