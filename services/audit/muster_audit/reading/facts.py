"""What a pass over a log finds: facts of several kinds, in one table whose columns are the kinds.

Each row of the table has exactly one column set. So one pass over a shard fills all tables, and Spark needs
to read it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the table; each subclass is a kind, its fields are the columns of the kind's table."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class LogRead(Fact):
    """A log was read to its acknowledged end at one node; `copy`: only to be compared."""

    kind: ClassVar[str] = "log"
    shard: int
    name: str
    node: int
    first_offset: int
    last_epoch: int
    last_offset: int
    last_hash: str
    entries: int
    groups: int
    bytes: int
    trimmed: bool
    copy: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Looked(Fact):
    """How often a promise was looked at in a log, and how often it was broken."""

    kind: ClassVar[str] = "invariant"
    shard: int
    id: str
    looked_at: int
    broken: int


@dataclass(frozen=True, slots=True)
class Broken(Fact):
    """A place where a log breaks a promise, with the entries around it."""

    kind: ClassVar[str] = "violation"
    shard: int
    log: str
    invariant: str
    epoch: int
    offset: int
    detail: str
    around: list[str]


@dataclass(frozen=True, slots=True)
class Activity(Fact):
    """Records of one kind that were written in a span of time."""

    kind: ClassVar[str] = "activity"
    shard: int
    at_ms: int
    record: str
    records: int


@dataclass(frozen=True, slots=True)
class Rebalances(Fact):
    """Generations that were started for one cause in a span of time, and how many members came or went.

    An epoch of an incremental group counts as one where its target moves something.
    """

    kind: ClassVar[str] = "rebalance"
    shard: int
    at_ms: int
    cause: str
    generations: int
    members_change: int


@dataclass(frozen=True, slots=True)
class Owned(Fact):
    """A Claim: an owner took the log.

    `unowned_ms` is the time since the last record before it: a bound from above unless it was handed over.
    `session` is the owner's process, `before` that of the last owner; empty: there was none.
    """

    kind: ClassVar[str] = "ownership"
    shard: int
    epoch: int
    at_ms: int
    owner: str
    planned: bool
    unowned_ms: int
    session: str
    before: str


@dataclass(frozen=True, slots=True)
class GroupSeen(Fact):
    """A group as the end of the log shows it, and what it went through.

    Where it is gone, `group_kind` is empty and `generation` 0.
    Of an incremental group `generation` is its epoch.
    """

    kind: ClassVar[str] = "group"
    shard: int
    group_id: str
    group_kind: str
    state: str
    generation: int
    members: int
    offsets: int
    rebalances: int
    unexpected: int
    commits: int
    last_cause: str


@dataclass(frozen=True, slots=True)
class Segment(Fact):
    """A digest of what a node holds in a range of offsets: equal where the nodes agree."""

    kind: ClassVar[str] = "segment"
    shard: int
    node: int
    number: int
    entries: int
    digest: str


@dataclass(frozen=True, slots=True)
class NodeHolds(Fact):
    """What a node holds of a log: its first and last entry, and how far a right snapshot there covers it."""

    kind: ClassVar[str] = "node"
    shard: int
    node: int
    first_epoch: int
    first_offset: int
    last_epoch: int
    last_offset: int
    reach_epoch: int
    reach_offset: int


@dataclass(frozen=True, slots=True)
class Unread(Fact):
    """A copy of a log that could not be compared, and why."""

    kind: ClassVar[str] = "unread"
    shard: int
    node: int
    problem: str


@dataclass(frozen=True, slots=True)
class Restored(Fact):
    """A restore from a backup that the catalog's log tells of."""

    kind: ClassVar[str] = "restore"
    shard: int
    epoch: int
    offset: int
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note(Fact):
    """A sentence about a log that is no broken promise."""

    kind: ClassVar[str] = "note"
    shard: int
    text: str


KINDS: tuple[type[Fact], ...] = (
    LogRead,
    Looked,
    Broken,
    Activity,
    Rebalances,
    Owned,
    GroupSeen,
    Segment,
    NodeHolds,
    Unread,
    Restored,
    Note,
)
_SPARK: dict[object, str] = {
    int: "bigint",
    str: "string",
    bool: "boolean",
    float: "double",
    list[str]: "array<string>",
}


def columns(kind: type[Fact]) -> list[tuple[str, str]]:
    """Names and Spark types of a kind's columns."""
    return [(field.name, _SPARK[field.type]) for field in fields(kind)]


DDL = ", ".join(
    f"{kind.kind} struct<{', '.join(f'{name}: {type_}' for name, type_ in columns(kind))}>" for kind in KINDS
)
"""The table as Spark declares it."""


def batches(facts: Iterable[Fact], rows: int = 2_000) -> "Iterable[pa.RecordBatch]":
    """Facts as Arrow batches of the table."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "double": pa.float64(),
        "array<string>": pa.list_(pa.string()),
    }
    schema = pa.schema(
        [(kind.kind, pa.struct([(name, types[type_]) for name, type_ in columns(kind)])) for kind in KINDS]
    )
    names = {kind: [name for name, _ in columns(kind)] for kind in KINDS}
    waiting: list[dict[str, Any]] = []
    for fact in facts:
        waiting.append({fact.kind: {name: getattr(fact, name) for name in names[type(fact)]}})
        if len(waiting) == rows:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)
