"""Brings a lake up to date: a Spark job whose tasks decode what is new of their logs, and one commit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster_core.position import NOWHERE
from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.day_files import DayFiles
from muster_audit.lake.decoder import Decoder
from muster_audit.lake.log_reading import final_rows
from muster_audit.lake.row import OPEN
from muster_audit.lake.store import Lake, LogEnd, opened
from muster_audit.reading.sources import LogSource, open_source
from muster_audit.spark.plan import Piece, spread, task_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Built:
    """What a run did with one log.

    Attributes:
        shard: number of the log.
        entries: entries that were new.
        rows: rows that became final, by table.
        undecodable: entries whose bytes are no record.
        end: how far the log is in the lake now.
    """

    shard: int
    entries: int
    rows: dict[str, int]
    undecodable: int
    end: LogEnd


def build(spark: "SparkSession", address: str, folder: Path) -> list[Built]:
    """Adds what is new to a lake, with several logs at a time.

    Args:
        spark: the session.
        address: folder of an export, or the nodes of the logs.
        folder: of the lake; on a cluster one that all executors share.

    Raises:
        LogUnreadableError: there is nothing to read, the lake is of another cluster or history, or another
            process changes it.
    """
    with opened(folder) as lake:
        pieces = plan(address, lake)
        entries = sum(piece.entries for piece in pieces)
        if not entries:
            return []
        tasks = spread(pieces, task_count(entries, spark.sparkContext.defaultParallelism))
        place, run, ends = folder.resolve(), lake.run + 1, lake.ends

        def write(task: tuple[int, tuple[Piece, ...]]) -> list[Built]:
            return write_task(address, Lake(place, run=run - 1, ends=ends), *task)

        numbered = list(enumerate(tasks))
        jobs = spark.sparkContext.parallelize(numbered, len(numbered))
        done: list[Built] = jobs.flatMap(write).collect()
        lake.commit({one.shard: one.end for one in done})
    return sorted(done, key=lambda one: one.shard)


def plan(address: str, lake: Lake) -> list[Piece]:
    """All logs with their numbers of new entries: those without any still have rows to carry on."""
    source = open_source(address)
    try:
        if lake.run == 0:
            lake.cluster_id, lake.shard_count = source.cluster_id, source.shard_count
        elif (lake.cluster_id, lake.shard_count) != (source.cluster_id, source.shard_count):
            raise LogUnreadableError(
                f"{lake.folder} is the lake of cluster {lake.cluster_id} with {lake.shard_count} shards, "
                f"not of {source.cluster_id} with {source.shard_count}"
            )
        pieces = []
        for shard in sorted({*source.logs(), *lake.ends}):
            end = lake.ends.get(shard, LogEnd())
            _check_history(source, shard, end)
            pieces.append(Piece(shard, 0, source.acknowledged(shard).offset - end.position.offset))
        return pieces
    finally:
        source.close()


def _check_history(source: LogSource, shard: int, end: LogEnd) -> None:
    """Checks that a log still holds the entry with which the lake ends."""
    at = end.position
    if at == NOWHERE:
        return
    entry = source.entry_at(shard, at)
    if entry is None or entry.hash != end.hash:
        raise LogUnreadableError(
            f"{source.name(shard)} has not the entry {at.stream_id} that the lake ends with: it is of "
            "another history, so build a new lake"
        )


def write_task(address: str, lake: Lake, task: int, pieces: tuple[Piece, ...]) -> list[Built]:
    """Decodes what is new of some logs; what it writes counts once the run is committed."""
    source = open_source(address)
    files = DayFiles(lake.folder, lake.run + 1, task)
    try:
        return [_write_log(source, lake, files, piece.shard) for piece in pieces]
    finally:
        files.close()
        source.close()


def _write_log(source: LogSource, lake: Lake, files: DayFiles, shard: int) -> Built:
    before = lake.ends.get(shard, LogEnd())
    decoder = Decoder(shard, before.position, before.hash)
    decoder.end_ms = before.at_ms
    decoder.resume(lake.open_rows(shard))
    rows: dict[str, int] = {}
    for table, day, batch in final_rows(source, shard, decoder):
        files.add(table, day, batch)
        rows[table] = rows.get(table, 0) + len(batch)
    for table, day, batch in decoder.running():
        assert day == OPEN
        files.add(table, day, batch)
    files.end_log()
    end = LogEnd(decoder.end, decoder.end_hash, decoder.end_ms)
    return Built(shard, end.position.offset - before.position.offset, rows, decoder.undecodable, end)
