"""Exports logs before they are trimmed: verified entries become Parquet, and `metadata` learns how far."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from muster_core.audit.log_checker import LogChecker
from muster_core.log.page import Page
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_server.verify.reader import PAGE_ENTRIES

from muster_audit.reading.exported import ShardExport, mark
from muster_audit.reading.sources import LogSource, open_source
from muster_audit.spark.plan import Piece, spread, task_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What became of one log.

    Attributes:
        shard: number of the log.
        written: entries that were written now.
        end: place of the last entry that the export has.
        end_hash: its chain hash, as hexadecimal digits; empty: nothing was ever exported.
        problem: why it goes no further; empty: it reaches the acknowledged end.
    """

    shard: int
    written: int
    end: Position
    end_hash: str
    problem: str


def export_log(source: LogSource, folder: Path, shard: int) -> Exported:
    """Writes what is new of one log, up to its acknowledged end, as far as it can be verified.

    Entries are written only if they continue what was exported before: same chain of hashes, no gap.
    """
    export = ShardExport.open(folder, shard)
    acknowledged = source.acknowledged(shard)
    begun = export.end
    problems: list[str] = []
    written = 0
    if acknowledged > begun:
        written = export.write(_verified(source, export, acknowledged, problems))
    elif acknowledged < begun:
        problems.append(f"the log ends at {acknowledged.stream_id}, before what was exported")
    end_hash = export.end_hash.hex() if export.end != NOWHERE else ""
    return Exported(shard, written, export.end, end_hash, "".join(problems))


def _verified(
    source: LogSource, export: ShardExport, acknowledged: Position, problems: list[str]
) -> Iterator[Page]:
    """What follows the export, page by page up to the first one that is broken, which `problems` names."""
    shard, begun = export.shard, export.end
    anchor = (begun, export.end_hash) if begun != NOWHERE else None
    checker = LogChecker(shard, anchor, cluster=source.genesis, groups=False)
    for page in source.pages(shard, source.best_node(shard), acknowledged, PAGE_ENTRIES, begun):
        checker.add_page(page)
        if checker.begins_trimmed:
            problems.append(
                f"the entries before {page.first.stream_id} were trimmed before they were exported"
            )
            return
        if checker.findings.violations:
            first = checker.findings.violations[0]
            problems.append(f"{first.invariant} is broken at {first.position.stream_id}: {first.detail}")
            return
        yield page


def export(spark: "SparkSession", address: str, folder: Path) -> list[Exported]:
    """Exports all logs at an address, several at a time.

    Args:
        spark: the session.
        address: nodes of the log.
        folder: of the export; on a cluster one that all executors share.

    Raises:
        LogUnreadableError: there is nothing to read, or the folder holds another cluster's export.
    """
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


def report_exported(metadata: str, exported: list[Exported]) -> list[str]:
    """Tells `metadata` how far each log was exported, so that it may be trimmed; gives what went wrong.

    Args:
        metadata: `host:port` of any instance.
        exported: what was exported.
    """
    problems: list[str] = []
    with grpc.insecure_channel(metadata) as channel:
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
