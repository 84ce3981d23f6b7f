"""Checks every log of a cluster."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster_core.config import GroupConfig
from muster_core.invariants import INVARIANTS, Findings, Invariant, Violation
from muster_core.log_checker import LogChecker
from muster_core.position import GENESIS, Position
from muster_core.replay import Entry
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2
from redis.exceptions import RedisError

from muster_server.verify.reader import LogReader, LogUnreadableError

SAME = Invariant(
    "L6n",
    "At or below the acknowledged position no two nodes hold different entries, and none has a hole.",
    "entries of nodes",
)
MAJORITY = Invariant("L5", "A majority of the nodes has every acknowledged entry.", "entries")
REPLAY = Invariant("G12", "The records can be replayed into a state, as a coordinator's load does.", "logs")
ALL: dict[str, Invariant] = {**INVARIANTS, **{row.id: row for row in (MAJORITY, SAME, REPLAY)}}
"""What this verifier checks, by id."""

_AROUND = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """A violation with what stands around it.

    Attributes:
        log: name of the log.
        violation: what is wrong where.
        around: the entries before and after, and the entry itself, as text.
    """

    log: str
    violation: Violation
    around: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """What was found in all logs."""

    cluster_id: str
    nodes: int
    problems: dict[int, str]
    compared: bool
    logs: int = 0
    entries: int = 0
    groups: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not self.broken


def verify(url: str, *, compare_nodes: bool = True) -> Report:
    """Reads and checks every log of a cluster.

    Args:
        url: `redis://host:port,…`.
        compare_nodes: also compare what the nodes hold.

    Raises:
        LogUnreadableError: there is nothing to read, or a node went away meanwhile.
    """
    try:
        with LogReader(url) as reader:
            report = Report(reader.cluster_id, reader.count, reader.problems, compare_nodes)
            for shard in reader.logs():
                _verify_log(reader, shard, report)
            return report
    except RedisError as error:
        raise LogUnreadableError(f"the log could not be read to its end: {error}") from error


def _verify_log(reader: LogReader, shard: int, report: Report) -> None:
    acknowledged = reader.acknowledged(shard)
    best = reader.best(shard)
    entries = list(reader.entries(shard, best, acknowledged))
    anchor = _anchor(entries)
    checker = LogChecker(shard, anchor)
    for entry in entries if anchor is None else entries[1:]:
        checker.add(entry)
    findings = checker.findings
    findings.expect(
        "L5",
        bool(entries) and entries[-1].position == acknowledged,
        acknowledged,
        f"the log was acknowledged up to {acknowledged.stream_id} and no node has that entry",
    )
    if shard < reader.shard_count:
        report.groups += _replay(shard, entries, findings, trimmed=anchor is not None)
    if report.compared:
        _compare(reader, shard, acknowledged, findings)
    for node in reader.nodes:
        for key, problem in node.damaged.items():
            findings.expect("L6n", False, acknowledged, f"{key} on node {node.index}: {problem}")
        node.damaged.clear()
    report.logs += 1
    report.entries += len(entries)
    report.kinds.update(checker.kinds)
    report.checked.update(findings.checked)
    report.broken.update(findings.broken)
    report.evidence += [
        Evidence(reader.name(shard), violation, tuple(_around(entries, violation.position)))
        for violation in findings.violations
    ]


def _anchor(entries: list[Entry]) -> tuple[Position, bytes] | None:
    """Where a trimmed log begins: at an entry that a Snapshot in the log covers.

    The first entry that is left is believed, its hash is the anchor of the chain.
    """
    if not entries or entries[0].position == GENESIS:
        return None
    first = entries[0]
    for entry in entries:
        try:
            record = records_pb2.Record.FromString(entry.record)
        except ValueError:
            continue
        if record.HasField("snapshot") and Position.from_proto(record.snapshot.upto) >= first.position:
            return first.position, first.hash
    return None


def _replay(shard: int, entries: Iterable[Entry], findings: Findings, *, trimmed: bool) -> int:
    """Replays a log with the coordinator's own code; gives the number of groups at the end."""
    state = Shard(shard, GroupConfig())
    if trimmed:
        return 0  # the state before lies in the snapshot
    for entry in entries:
        try:
            state.replay(entry.position, records_pb2.Record.FromString(entry.record))
        except Exception as error:
            findings.expect("G12", False, entry.position, f"{type(error).__name__}: {error}")
            return len(state.groups)
    findings.expect("G12", True, GENESIS, "")
    return len(state.groups)


def _compare(reader: LogReader, shard: int, acknowledged: Position, findings: Findings) -> None:
    """Compares what the nodes hold, at or below the acknowledged position."""
    holders: dict[Position, dict[bytes, list[int]]] = {}
    spans: dict[int, tuple[Position, Position]] = {}
    for node in reader.nodes:
        for entry in reader.entries(shard, node, acknowledged):
            first, _ = spans.get(node.index, (entry.position, entry.position))
            spans[node.index] = first, entry.position
            content = entry.hash + entry.nonce + entry.record
            holders.setdefault(entry.position, {}).setdefault(content, []).append(node.index)
    untrimmed = max((first for first, _ in spans.values()), default=acknowledged)
    for position, contents in sorted(holders.items()):
        told = " and ".join(f"nodes {nodes}" for nodes in contents.values())
        findings.expect("L6n", len(contents) == 1, position, f"{told} hold different entries")
        having = {index for nodes in contents.values() for index in nodes}
        holes = [i for i, (first, last) in spans.items() if first < position < last and i not in having]
        if holes:
            findings.expect("L6n", False, position, f"nodes {holes} lack it and have earlier and later ones")
        if position >= untrimmed:
            most = max(len(nodes) for nodes in contents.values())
            findings.expect(
                "L5",
                most > reader.count // 2,
                position,
                f"{most} of {reader.count} nodes have it; {len(reader.nodes)} were read",
            )


def _around(entries: list[Entry], position: Position) -> Iterable[str]:
    places = [entry.position for entry in entries]
    if position not in places:
        return
    index = places.index(position)
    for entry in entries[max(0, index - _AROUND) : index + _AROUND + 1]:
        mark = ">" if entry.position == position else " "
        yield f"{mark} {entry.position.stream_id}  {describe(entry.record)}"


def describe(data: bytes) -> str:
    """A record in one line."""
    try:
        record = records_pb2.Record.FromString(data)
    except ValueError:
        return f"{len(data)} bytes that are no record"
    kind = record.WhichOneof("kind")
    if kind is None:
        return "a record of an unknown kind"
    message = getattr(record, kind)
    told = [
        f"{field.name}={str(value)[:60]!r}"
        for field, value in message.ListFields()
        if field.type
        in (field.TYPE_STRING, field.TYPE_INT32, field.TYPE_INT64, field.TYPE_UINT32, field.TYPE_UINT64)
        and not hasattr(value, "append")
    ]
    return " ".join([kind, *told])
