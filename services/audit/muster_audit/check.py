"""The audit of a log: one Spark job, and what it found."""

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from muster_core.audit.anchor import Anchor, End, Restore, excusing
from muster_core.audit.invariants import Findings
from muster_core.position import Position
from muster_server.verify.anchors import NO_ANCHORS, Anchoring, in_words, stated_ends
from muster_server.verify.reader import PAGE_ENTRIES
from muster_server.verify.verifier import uncut_ends

from muster_audit.promises import ALL, Rules
from muster_audit.reading.comparison import check_acknowledgements, compare_copies, read_acknowledgements
from muster_audit.reading.facts import (
    KINDS,
    Broken,
    LogRead,
    Looked,
    NodeHolds,
    Note,
    Restored,
    Segment,
    Unread,
)
from muster_audit.reading.reads import check_reads, read_reads
from muster_audit.reading.sources import LogSource, open_source, steadily
from muster_audit.spark.plan import task_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POINTS = 120
_SPANS_MS = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000)
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check and how.

    Attributes:
        rules: which rules.
        all_nodes: whether the copies of all nodes are compared.
        memory_mb: memory for the nonces of one task, MiB.
        page_entries: entries that are asked for at a time.
        max_group_size: members that a group may have.
        acknowledgements: file of acknowledgements that were noted elsewhere; None: there is none.
        reads: file of reads that were noted elsewhere; None: there is none.
        tasks: how many tasks read; 0: as many as `task_count` says.
        anchoring: what to do about anchors.
    """

    rules: Rules = Rules.ALL
    all_nodes: bool = False
    memory_mb: int = 256
    page_entries: int = PAGE_ENTRIES
    max_group_size: int = 5_000
    acknowledgements: Path | None = None
    reads: Path | None = None
    tasks: int = 0
    anchoring: Anchoring = NO_ANCHORS


@dataclass(slots=True)
class Result:
    """What an audit found.

    Attributes:
        cluster_id: identity of the cluster.
        address: what was read, without a password.
        nodes: how many nodes the log has.
        problems: why nodes were not read, by number.
        compared: whether the nodes were to be compared.
        compared_nodes: those of which all logs were.
        logs: one entry for each log.
        checked: how often each promise was looked at.
        broken: how often each was broken.
        violations: the first of each promise and log.
        notes: what breaks no promise but is worth knowing, in sentences.
        to_repair: ends of nodes that were never acknowledged, in sentences.
        period_ms: when the first and the last entry were written, by their writers' clocks; 0, 0: not known.
        span_ms: width of the spans of time in what is counted over time; the first begins with the period.
        seconds: how long it took.
        tables: the folder with one Parquet table for each kind of fact.
    """

    cluster_id: str
    address: str
    nodes: int
    problems: dict[int, str]
    compared: bool
    compared_nodes: set[int] = field(default_factory=set)
    logs: list[LogRead] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    violations: list[Broken] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    to_repair: list[str] = field(default_factory=list)
    period_ms: tuple[int, int] = (0, 0)
    span_ms: int = 60_000
    seconds: float = 0.0
    tables: Path = Path()

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not self.broken

    @property
    def ends(self) -> dict[int, End]:
        """Where each log ended."""
        return {
            log.shard: End(Position(log.last_epoch, log.last_offset), bytes.fromhex(log.last_hash))
            for log in self.logs
        }

    @property
    def entries(self) -> int:
        """Number of entries that were checked."""
        return sum(log.entries for log in self.logs)


Progress = Callable[[str], None]


def check(
    spark: "SparkSession",
    address: str,
    options: CheckOptions,
    tables: Path,
    progress: Progress = lambda _: None,
) -> Result:
    """Audits every log at an address.

    Args:
        spark: the session; both data sources are registered in it.
        address: nodes of a log, or the folder of an export.
        options: what to check.
        tables: folder for the Parquet tables, new or empty.
        progress: called with a sentence that says how far it is.

    Raises:
        LogUnreadableError: there is nothing to read.
        ValueError: the acknowledgements or the reads cannot be used.
    """
    from muster_audit.spark.data_source import register

    register(spark)
    began = time.perf_counter()
    source = open_source(address)
    try:
        period_ms = steadily(source, partial(_period_ms, source))
        result = Result(
            source.cluster_id,
            address.rpartition("@")[2],
            source.count,
            dict(source.problems),
            options.all_nodes and source.count > 1,
            period_ms=period_ms,
            span_ms=_span_ms(*period_ms),
            tables=tables,
        )
        anchor = options.anchoring.read(source.cluster_id)
        found = _found(spark, address, options, result, source, progress, anchor)
        progress("putting the findings together")
        _read_findings(found, result)
        ends = {log.shard: Position(log.last_epoch, log.last_offset) for log in result.logs}
        if result.compared:
            segments = spark.createDataFrame(found[Segment.kind])
            reach: dict[int, dict[int, Position]] = {}
            for row in found[NodeHolds.kind].to_pylist():
                place = Position(row["reach_epoch"], row["reach_offset"])
                reach.setdefault(row["shard"], {})[row["node"]] = place
            source.leave_silent()
            read: dict[int, set[int]] = {}
            for row in found[LogRead.kind].to_pylist():
                read.setdefault(row["shard"], set()).add(row["node"])
            for shard, findings in compare_copies(segments, source, ends, reach, read):
                _note(result, source, shard, findings)
            result.problems |= source.problems
            result.compared_nodes = set.intersection(*read.values()) - result.problems.keys()
        if options.acknowledgements is not None or options.reads is not None:
            _check_notes(spark, address, options, result, source, found)
        if anchor is not None and options.anchoring.accept_restore and result.broken["L12"]:
            _excuse(found, result, anchor, source.shard_count)
        if result.clean:
            options.anchoring.store(source.cluster_id, result.ends)
    finally:
        source.close()
    result.violations.sort(key=lambda one: (one.shard, one.epoch, one.offset))
    result.seconds = time.perf_counter() - began
    _write_tables(found, result)
    return result


def _excuse(found: dict[str, pa.Table], result: Result, anchor: Anchor, catalog: int) -> None:
    """Accepts that a log was set back, if the catalog records a restore that was meant."""
    restores = [
        Restore(Position(row["epoch"], row["offset"]), row["at_ms"], row["reason"])
        for row in found[Restored.kind].to_pylist()
    ]
    restore = excusing(anchor, catalog, restores)
    if restore is not None:
        result.violations = [one for one in result.violations if one.invariant != "L12"]
        result.notes.append(in_words(restore, result.broken.pop("L12")))


def _period_ms(source: LogSource) -> tuple[int, int]:
    """When the first and the last entry of all logs were written."""
    times = [source.times_ms(shard) for shard in source.logs()]
    return min((first for first, _ in times if first > 0), default=0), max(
        (last for _, last in times), default=0
    )


def _span_ms(first: int, last: int) -> int:
    """A width that gives at most so many points over the life of the logs."""
    return next((span for span in _SPANS_MS if last - first <= span * _POINTS), _SPANS_MS[-1])


def _found(
    spark: "SparkSession",
    address: str,
    options: CheckOptions,
    result: Result,
    source: LogSource,
    progress: Progress,
    anchor: Anchor | None,
) -> dict[str, pa.Table]:
    """Runs the one pass over all logs: what it found, by kind."""
    entries = steadily(source, lambda: sum(_best_length(source, shard) for shard in source.logs()))
    tasks = options.tasks or task_count(entries, spark.sparkContext.defaultParallelism)
    rows = (
        spark.read.format("muster-audit")
        .option("address", address)
        .option("tasks", tasks)
        .option("rules", options.rules.value)
        .option("all_nodes", "true" if result.compared else "false")
        .option("memory_mb", options.memory_mb)
        .option("page_entries", options.page_entries)
        .option("span_ms", result.span_ms)
        .option("began_ms", result.period_ms[0])
        .option("max_group_size", options.max_group_size)
        .option("anchor", json.dumps(stated_ends(anchor.ends if anchor is not None else {})))
        .load()
    )
    with _reported(spark, f"checking {entries:,} entries of {len(source.logs())} logs", progress):
        facts = rows.toArrow()
    return {kind.kind: _of_kind(facts, kind.kind) for kind in KINDS}


def _best_length(source: LogSource, shard: int) -> int:
    return source.length(shard, source.best_node(shard))


def _of_kind(facts: pa.Table, kind: str) -> pa.Table:
    """The facts of one kind, as a table of their own."""
    column = facts.column(kind).combine_chunks()
    present = column.filter(pc.is_valid(column))
    return pa.Table.from_arrays(present.flatten(), names=[field.name for field in present.type])


@contextmanager
def _reported(spark: "SparkSession", what: str, progress: Progress) -> Iterator[None]:
    """Reports how many tasks are done while a job runs."""
    done = threading.Event()

    def report() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(_PROGRESS_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            finished = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            tasks = sum(stage.numTasks for stage in stages if stage is not None)
            progress(f"{what}: {finished} of {tasks} tasks done")

    progress(what)
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _read_findings(found: dict[str, pa.Table], result: Result) -> None:
    """Takes over the promises, the violations and the logs."""
    for row in found[Looked.kind].to_pylist():
        result.checked[row["id"]] += row["looked_at"]
        if row["broken"]:
            result.broken[row["id"]] += row["broken"]
    result.violations += [Broken(**row) for row in found[Broken.kind].to_pylist()]
    result.notes += [row["text"] for row in found[Note.kind].to_pylist()]
    unread: dict[int, list[Unread]] = {}
    for row in found[Unread.kind].to_pylist():
        unread.setdefault(row["node"], []).append(Unread(**row))
    for node, copies in unread.items():
        result.problems.setdefault(
            node, f"its copies of {len(copies)} logs were not compared: {copies[0].problem}"
        )
    logs = [LogRead(**row) for row in found[LogRead.kind].to_pylist()]
    result.logs = sorted((log for log in logs if not log.copy), key=lambda log: log.shard)


def _around(source: LogSource, shard: int, place: Position) -> list[str]:
    return list(source.around(shard, place))


def _note(result: Result, source: LogSource, shard: int, findings: Findings) -> None:
    result.checked.update(findings.checked)
    result.broken.update(findings.broken)
    result.to_repair += uncut_ends(source.name(shard), findings)
    for violation in findings.violations:
        around = steadily(source, partial(_around, source, shard, violation.position))
        result.violations.append(
            Broken(
                shard, source.name(shard), violation.invariant, *violation.position, violation.detail, around
            )
        )


def _check_notes(
    spark: "SparkSession",
    address: str,
    options: CheckOptions,
    result: Result,
    source: LogSource,
    tables: dict[str, pa.Table],
) -> None:
    """Compares what clients noted with the log."""
    ends = spark.createDataFrame(
        [(log.shard, log.last_epoch, log.last_offset, log.first_offset) for log in result.logs],
        "shard bigint, epoch bigint, offset bigint, first bigint",
    )
    if options.acknowledgements is None:
        acks = spark.createDataFrame([], "shard bigint, epoch bigint, offset bigint, at_ms bigint")
    else:
        acks = read_acknowledgements(spark, options.acknowledgements)
        entries = (
            spark.read.format("muster-log").option("address", address).option("payload", "false").load()
        ).select("shard", "epoch", "offset", "written_at_ms")
        found, joined = check_acknowledgements(spark, acks, entries, ends)
        for shard, findings in found.items():
            _note(result, source, shard, findings)
        tables["latency"] = _latencies(spark, joined, result)
    if options.reads is not None:
        reads = read_reads(spark, options.reads, source.shard_count)
        changes = spark.read.format("muster-offsets").option("address", address).load()
        for shard, findings in check_reads(spark, reads, acks, changes, ends).items():
            _note(result, source, shard, findings)


def _latencies(spark: "SparkSession", acknowledged: "DataFrame", result: Result) -> pa.Table:
    """How long acknowledgements took, by spans of time."""
    latencies = acknowledged.where("there AND at_ms IS NOT NULL").selectExpr(
        f"written_at_ms - pmod(written_at_ms - {result.period_ms[0]}, {result.span_ms}) AS span_ms",
        "at_ms - written_at_ms AS latency_ms",
    )
    latencies.createOrReplaceTempView("latencies")
    return spark.sql(
        "SELECT span_ms AS at_ms, count(*) AS records, percentile(latency_ms, 0.5) AS p50_ms, "
        "percentile(latency_ms, 0.99) AS p99_ms FROM latencies GROUP BY span_ms ORDER BY span_ms"
    ).toArrow()


def _write_tables(found: dict[str, pa.Table], result: Result) -> None:
    """One Parquet table for each kind of fact, and the promises with their verdicts."""
    found[Broken.kind] = pa.Table.from_pylist(
        [asdict(one) for one in result.violations], schema=found[Broken.kind].schema
    )
    found[Looked.kind] = pa.Table.from_pylist(
        [
            {**asdict(row), "looked_at": result.checked[row.id], "broken": result.broken[row.id]}
            for row in ALL.values()
        ]
    )
    result.tables.mkdir(parents=True, exist_ok=True)
    for name, table in found.items():
        pq.write_table(table, result.tables / f"{name}.parquet")


@contextmanager
def tables_folder(report: Path | None) -> Iterator[Path]:
    """Where the tables go: into the report, or into a folder that goes afterwards."""
    if report is not None:
        yield report / "tables"
        return
    with tempfile.TemporaryDirectory(prefix="muster-audit-") as folder:
        yield Path(folder) / "tables"
