"""Exports logs before they are trimmed: verified entries become Parquet, and `metadata` learns how far."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from muster_core.audit.anchor import End
from muster_core.audit.invariants import Findings, Violation
from muster_core.audit.log_checker import LogChecker
from muster_core.audit.nonces import NonceBook
from muster_core.audit.stored_snapshots import SnapshotCheck
from muster_core.log.page import Page
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.rpc.channels import CHANNEL_OPTIONS
from muster_runtime.rpc.trust.trust import Trust
from muster_server.verify.reader import PAGE_ENTRIES, LogTrimmedError, LogUnreadableError
from redis.exceptions import RedisError

from muster_audit.reading.durable import HeldElsewhere, held_alone
from muster_audit.reading.exported import LOCK, Beginning, ShardExport, mark
from muster_audit.reading.nonce_books import with_nonces
from muster_audit.reading.sources import LogSource, open_source
from muster_audit.spark.plan import Piece, spread, task_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALL_SECONDS = 10.0
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Exported:
    """What became of one log.

    Attributes:
        shard: number of the log.
        written: entries that were written now.
        end: place of the last entry that the export has.
        end_hash: its chain hash, as hexadecimal digits; empty: nothing is kept that may be trimmed.
        problem: why it goes no further; empty: it reaches the acknowledged end.
        broken: whether that is a broken promise of the log; else it could not be read, or not be written.
    """

    shard: int
    written: int
    end: Position
    end_hash: str
    problem: str
    broken: bool = False


class _Broken(Exception):
    """The log is not what was exported, or breaks a promise; the message says how."""


def export_log(source: LogSource, folder: Path, shard: int) -> Exported:
    """Writes what is new of one log, up to its acknowledged end, as far as it can be verified.

    Entries are written only if they continue what was exported before: the same entry at its end, the same
    chain of hashes, no gap. A log that was trimmed before its first export begins with a right snapshot.

    Raises:
        LogUnreadableError: another process writes to it.
    """
    try:
        return _export_alone(source, folder, shard)
    except OSError as error:  # as on a full disk: the other logs are exported
        return Exported(shard, 0, NOWHERE, "", str(error))


def _export_alone(source: LogSource, folder: Path, shard: int) -> Exported:
    with ShardExport.held(folder, shard) as export:
        written, problem, broken, safe = 0, export.damage, False, False
        if not problem:
            try:
                safe = _is_continued(source, export)
                written, problem = _go_on(source, export)
                broken = bool(problem)
            except _Broken as error:
                problem, broken = str(error), True
            except (LogUnreadableError, RedisError, OSError) as error:
                problem = str(error) or type(error).__name__
        end_hash = export.end_hash.hex() if safe and export.end != NOWHERE else ""
        return Exported(shard, written, export.end, end_hash, problem, broken)


def _is_continued(source: LogSource, export: ShardExport) -> bool:
    """Returns that the log still has what was exported last, or has trimmed it since.

    Raises:
        _Broken: it has something else there, or ends before.
    """
    shard, end = export.shard, export.end
    if end == NOWHERE:
        return True
    acknowledged = source.acknowledged(shard)
    if acknowledged < end:
        raise _Broken(f"the log ends at {acknowledged.stream_id}, before what was exported")
    found, first = source.entry_at(shard, end), source.first(shard, source.best_node(shard))
    if found is None and first.offset <= end.offset:
        raise _Broken(f"no node has the entry {end.stream_id} any more, up to which the log was exported")
    if first.offset > end.offset + 1:
        raise _Broken(
            f"the entries after {end.stream_id} were trimmed before they were exported: the log begins at "
            f"{first.stream_id}"
        )
    if found is not None and found.hash != export.end_hash:
        raise _Broken(f"another entry is at {end.stream_id} than was exported: the log was written anew")
    return True


def _go_on(source: LogSource, export: ShardExport) -> tuple[int, str]:
    """Writes what follows; returns the number of entries, and why there are not more.

    Where the log is trimmed, or a node is lost, meanwhile, it is tried again.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return with_nonces(partial(_write_new, source, export))
        except (LogTrimmedError, RedisError):
            if attempt == _ATTEMPTS:
                raise
            source.leave_silent()
    raise AssertionError("the last attempt returns or raises")


def _write_new(source: LogSource, export: ShardExport, nonces: NonceBook) -> tuple[int, str]:
    problems: list[str] = []
    new = _New(source, export, nonces, problems)
    if new.acknowledged == export.end:
        return 0, ""
    return export.write(new.pages(), new.beginning), "".join(problems)


class _New:
    """What follows an export in its log.

    Args:
        source: the log.
        export: what is there of it.
        nonces: takes those of what follows.
        problems: takes why there is not more.

    Attributes:
        acknowledged: up to where it is read.
    """

    def __init__(
        self, source: LogSource, export: ShardExport, nonces: NonceBook, problems: list[str]
    ) -> None:
        self.acknowledged = source.acknowledged(export.shard)
        self._source, self._export, self._problems = source, export, problems
        self._findings = Findings()
        self._snapshots = SnapshotCheck(self._findings)
        self._checker = LogChecker(
            export.shard,
            (export.end, export.end_hash) if export.end != NOWHERE else None,
            cluster=source.genesis,
            nonces=nonces,
            groups=False,
            follow=self._mark,
        )

    def pages(self) -> Iterator[Page]:
        """Page by page up to the first one that is broken.

        Raises:
            _Broken: a nonce repeats in them, which is known only after the last one.
        """
        shard, end = self._export.shard, self._export.end
        node, found = self._source.best_node(shard), self._checker.findings.violations
        for page in self._source.pages(shard, node, self.acknowledged, PAGE_ENTRIES, end):
            self._checker.add_page(page)
            if found:
                self._problems.append(_said(found[0]))
                break
            yield page
            end = page.last
        known = len(found)
        self._checker.check_nonces()
        for repeat in found[known:]:
            if repeat.position <= end:
                raise _Broken(_said(repeat))

    def beginning(self) -> Beginning | None:
        """The oldest right snapshot that covers the first entry; where there is none that is a problem."""
        first = self._checker.first
        for upto, read in sorted(self._source.snapshots(self._export.shard).items()):
            if first.offset <= upto.offset:
                self._snapshots.check_copies(0, {upto: read})
                right = self._snapshots.reach[0] == upto and not self._findings.violations
                stored = read() if right else None
                if stored is not None:
                    return Beginning(upto, stored)
        self._problems.append(
            f"the entries before {first.stream_id} were trimmed before they were exported, and no right "
            "snapshot covers them"
        )
        return None

    def _mark(self, run: RecordRun) -> None:
        for index, record in run.others.items():
            if record.HasField("snapshot"):
                hash_ = self._checker.hash_at(Position.from_proto(record.snapshot.upto))
                self._snapshots.mark(run.position(index), record.snapshot, hash_)


def _said(violation: Violation) -> str:
    return f"{violation.invariant} is broken at {violation.position.stream_id}: {violation.detail}"


def export(spark: "SparkSession", address: str, folder: Path) -> list[Exported]:
    """Exports all logs at an address, several at a time.

    Args:
        spark: the session.
        address: nodes of the log.
        folder: of the export; on a cluster one that all executors share.

    Raises:
        LogUnreadableError: there is nothing to read, the folder holds another cluster's export, or another
            process exports to it.
    """
    try:
        with held_alone(folder / LOCK):
            return _export(spark, address, folder)
    except HeldElsewhere as holder:
        raise LogUnreadableError(f"{folder} is being exported to by {holder}: wait for its end") from None


def _export(spark: "SparkSession", address: str, folder: Path) -> list[Exported]:
    source = open_source(address)
    try:
        mark(folder, source.genesis)
        pieces = [Piece(shard, 0, source.length(shard, source.best_node(shard))) for shard in source.logs()]
    finally:
        source.close()
    entries = sum(piece.entries for piece in pieces)
    tasks = spread(pieces, task_count(entries, spark.sparkContext.defaultParallelism))
    place = folder.resolve()

    def write(task: tuple[Piece, ...]) -> list[Exported]:
        here = open_source(address)
        try:
            return [export_log(here, place, piece.shard) for piece in task]
        finally:
            here.close()

    done: list[Exported] = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(write).collect()
    return sorted(done, key=lambda one: one.shard)


def ends_of_export(exported: list[Exported]) -> dict[int, End]:
    """Where the exported logs end, for an anchor."""
    return {one.shard: End(one.end, bytes.fromhex(one.end_hash)) for one in exported if one.end_hash}


def report_exported(metadata: str, exported: list[Exported]) -> list[str]:
    """Tells `metadata` how far each log was exported, so that it may be trimmed; returns what went wrong.

    Args:
        metadata: `host:port` of any instance.
        exported: what was exported.
    """
    problems: list[str] = []
    with Trust.load().blocking_channel(metadata, CHANNEL_OPTIONS) as channel:
        stub = metadata_pb2_grpc.MetadataServiceStub(channel)
        for one in exported:
            if not one.end_hash:
                continue
            request = metadata_pb2.ReportExportedRequest(
                shard=one.shard, position=one.end.to_proto(), hash=bytes.fromhex(one.end_hash)
            )
            try:
                answer = stub.ReportExported(request, timeout=_CALL_SECONDS)
            except grpc.RpcError as error:
                return [*problems, f"metadata at {metadata} does not take the report: {error.details()}"]
            if answer.outcome != metadata_pb2.LOG_OUTCOME_OK:
                problems.append(
                    f"log {one.shard}: {answer.message or metadata_pb2.LogOutcome.Name(answer.outcome)}"
                )
    return problems
