"""Checks every log of a cluster."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from muster_core.audit.anchor import Anchor, End, Restore, excusing
from muster_core.audit.catalog_audit import CatalogAudit
from muster_core.audit.invariants import Findings, Violation
from muster_core.audit.log_audit import LogAudit, compare_nodes
from muster_core.audit.node_log import proven
from muster_core.audit.nonce_spans import NonceSpans, NoncesUnclear
from muster_core.audit.nonces import NonceBook, NonceSet
from muster_core.config import GroupConfig
from redis.exceptions import RedisError

from muster_server.verify.anchors import NO_ANCHORS, Anchoring, in_words
from muster_server.verify.reader import LogTrimmedError, LogUnreadableError
from muster_server.verify.stored_logs import StoredLogs

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """A violation with the entries around it.

    Attributes:
        log: name of the log.
        violation: what is wrong, and where.
        around: the entries before and after, and the entry itself, as text.
    """

    log: str
    violation: Violation
    around: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """The findings in all logs."""

    cluster_id: str
    nodes: int
    problems: dict[int, str]
    compared: bool
    logs: int = 0
    entries: int = 0
    unacknowledged: int = 0
    groups: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    evidence: list[Evidence] = field(default_factory=list)
    to_repair: list[str] = field(default_factory=list)
    anchor: Anchor | None = None
    ends: dict[int, End] = field(default_factory=dict)
    restores: list[Restore] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: GroupConfig = field(default_factory=GroupConfig)

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not self.broken


def verify(
    url: str, *, all_nodes: bool = True, anchoring: Anchoring = NO_ANCHORS, limits: GroupConfig | None = None
) -> Report:
    """Reads and checks every log of a cluster.

    Args:
        url: `redis://host:port,…`.
        all_nodes: also compare what the nodes hold.
        anchoring: what to do about anchors.
        limits: what a group may be; absent: as by default.

    Raises:
        LogUnreadableError: there is nothing to read, or too many nodes were lost during the read.
        AnchorError: the anchor cannot be read or trusted, or not be kept.
    """
    try:
        with StoredLogs(url) as reader:
            report = Report(reader.cluster_id, reader.count, reader.problems, all_nodes)
            report.limits = limits or report.limits
            report.anchor = anchoring.read(reader.cluster_id)
            for shard in reader.logs():
                _verify_log(reader, shard, report)
            if report.anchor is not None and report.broken["L12"] and anchoring.accept_restore:
                _excuse(report, report.anchor, reader.shard_count)
            if report.clean:
                anchoring.store(reader.cluster_id, report.ends)
            return report
    except RedisError as error:
        raise LogUnreadableError(f"the log could not be read to its end: {error}") from error


def _verify_log(reader: StoredLogs, shard: int, report: Report) -> None:
    """Checks one log; starts again if it was trimmed, or a node was lost, during the read."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _note(reader, shard, _checked(reader, shard, report), report)
        except (LogTrimmedError, RedisError):
            if attempt == _ATTEMPTS:
                raise
            reader.leave_silent()
        else:
            return


def _excuse(report: Report, anchor: Anchor, catalog: int) -> None:
    """Accepts that a log was set back, if the catalog records a restore that was meant."""
    restore = excusing(anchor, catalog, report.restores)
    if restore is not None:
        report.evidence = [one for one in report.evidence if one.violation.invariant != "L12"]
        report.notes.append(in_words(restore, report.broken.pop("L12")))


def _checked(reader: StoredLogs, shard: int, report: Report) -> LogAudit:
    """A pass over a log; a second one follows where spans cannot say whether nonces repeat."""
    with suppress(NoncesUnclear):
        return _checked_with(NonceSpans(), reader, shard, report)
    return _checked_with(NonceSet(), reader, shard, report)


def _checked_with(nonces: NonceBook, reader: StoredLogs, shard: int, report: Report) -> LogAudit:
    nodes = reader.node_logs(shard)
    acknowledged = proven(nodes)
    snapshots = reader.snapshots(shard)
    audit = (
        LogAudit(shard, cluster=reader.genesis, nonces=nonces, snapshots=snapshots, limits=report.limits)
        if shard < reader.shard_count
        else CatalogAudit(shard, cluster=reader.genesis, nonces=nonces, snapshots=snapshots)
    )
    end = None if report.anchor is None else report.anchor.ends.get(shard)
    there = None if end is None else reader.entry_at(shard, end.position)  # it may be trimmed meanwhile
    for page in reader.pages(shard, reader.best(shard, nodes), acknowledged):
        audit.add_page(page)
    reader.check_nodes(audit, nodes, acknowledged)
    if end is not None:
        audit.check_anchor(end, reader.entry_at(shard, end.position) or there, acknowledged)
    findings = audit.finish(acknowledged)
    if report.compared:
        logs = {node.index: reader.pages(shard, node, acknowledged) for node in reader.nodes}
        marks, reach = reader.marks(shard), audit.snapshots.reach
        compare_nodes(logs, reader.count, acknowledged, findings, marks=marks, reach=reach)
        reader.require_still_there(shard, nodes)
    for problem in reader.damage(shard):
        findings.expect("L6n", False, acknowledged, problem)
    return audit


def _note(reader: StoredLogs, shard: int, audit: LogAudit, report: Report) -> None:
    findings = audit.findings
    report.ends[shard] = End(audit.checker.end, audit.checker.end_hash)
    report.restores += audit.restores if isinstance(audit, CatalogAudit) else ()
    report.groups += len(audit.groups)
    report.logs += 1
    report.notes += [f"{reader.name(shard)}: {note}" for note in audit.notes]
    report.entries += audit.checker.entries
    report.unacknowledged += audit.unacknowledged
    report.kinds.update(audit.checker.kinds)
    report.checked.update(findings.checked)
    report.broken.update(findings.broken)
    report.to_repair += uncut_ends(reader.name(shard), findings)
    report.evidence += [
        Evidence(reader.name(shard), violation, tuple(reader.around(shard, violation.position)))
        for violation in findings.violations
    ]


def uncut_ends(log: str, findings: Findings) -> list[str]:
    """The ends of nodes that are to be repaired in a log of this name, in sentences."""
    return [
        f"{log}: node {node} has an end from {first.stream_id} on that was never acknowledged"
        for node, first in findings.uncut.items()
    ]
