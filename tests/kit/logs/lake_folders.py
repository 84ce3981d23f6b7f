"""Exports and lakes made of built logs, without a server and without Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from kit.logs.log_builder import LogBuilder, page_of
from kit.logs.log_nodes import CLUSTER
from kit.logs.plain_tables import Table, tables
from muster_audit.lake.build import Built, plan, write_task
from muster_audit.lake.row import OPEN, columns, day_of
from muster_audit.lake.store import opened
from muster_audit.lake.tables import ALL
from muster_audit.reading.exported import Beginning, ShardExport, mark
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.config import GroupConfig
from muster_core.log.replay import Entry
from muster_core.log.snapshot import Covered, Milestone, part_hash, parts
from muster_core.log.topics.topics import Topics
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2

_PAGE = 7  # small, so that what belongs together is on several


def export(folder: Path, built: LogBuilder, upto: int | None = None) -> None:
    """Adds the entries of a log to an export, as far as they are not in it."""
    mark(folder, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=built.shard_count))
    shard = ShardExport.open(folder, built.shard)
    left = built.entries[shard.end.offset : upto]
    shard.write([page_of(left[begin : begin + _PAGE]) for begin in range(0, len(left), _PAGE)])


def export_trimmed(folder: Path, built: LogBuilder, first: int, upto: int) -> None:
    """Exports a log that was trimmed before: entries from an offset on, and a snapshot up to another one."""
    mark(folder, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=built.shard_count))
    entries = built.entries[first - 1 :]
    end = built.entries[upto - 1]
    stored = list(_parts(built, built.entries[:upto]))
    beginning = Beginning(end.position, StoredSnapshot(stored, b"".join(map(part_hash, stored))))
    ShardExport.open(folder, built.shard).write(
        [page_of(entries[begin : begin + _PAGE]) for begin in range(0, len(entries), _PAGE)],
        lambda: beginning,
    )


def _parts(built: LogBuilder, entries: list[Entry]) -> Iterator[bytes]:
    """A snapshot of the first entries of a log, as its owner makes it."""
    last = entries[-1]
    records = [(entry.position, records_pb2.Record.FromString(entry.record)) for entry in entries]
    milestone = Milestone(last.position, records[-1][1].written_at_ms)
    covered = Covered(built.shard, last.position, last.hash, (milestone,))
    if built.shard == built.shard_count:
        topics = Topics()
        for entry in entries:
            topics.apply(entry)
        return parts((), covered, catalog=topics.to_states())
    shard = Shard(built.shard, GroupConfig())
    for position, record in records:
        shard.replay(position, record)
    return parts(shard.groups.values(), covered, part_bytes=500)


def build(export_folder: Path, folder: Path, *, tasks: int = 1) -> list[Built]:
    """What the Spark job does, in this process."""
    with opened(folder) as lake:
        pieces = plan(str(export_folder), lake)
        done = [
            one
            for task in range(tasks)
            for one in write_task(str(export_folder), lake, task, tuple(pieces[task::tasks]))
        ]
        lake.commit({one.shard: one.end for one in done})
    return done


def rows_of(folder: Path, name: str) -> Table:
    """A table as anybody reads it from its files, each row with the day of its folder, in order."""
    found: Table = []
    for path in (folder / name).glob("day=*/*.parquet"):
        day = path.parent.name.removeprefix("day=")
        found += [row | {"day": day} for row in pq.ParquetFile(path).read().to_pylist()]
    return in_order(found)


def in_order(rows: Table) -> Table:
    """Rows in an order of their own."""
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


def expected(*logs: LogBuilder) -> dict[str, Table]:
    """The tables of some logs, by plain Python, with the days that they must be in."""
    found: dict[str, Table] = {name: [] for name in ALL}
    for built in logs:
        catalog = built.shard == built.shard_count
        for name, rows in tables(built.shard, built.entries, catalog=catalog).items():
            found[name] += [_placed(name, row) for row in rows]
    return {name: in_order(rows) for name, rows in found.items()}


_LAST = {"assignments": "settled_ms", "commits": "written_at_ms", "operations": "written_at_ms"}


def _placed(name: str, row: dict[str, Any]) -> dict[str, Any]:
    ends_ms = row[_LAST.get(name, "to_ms")]
    running = row.get("_open", ends_ms is None)
    if name == "coordinators":
        running = row["_last"]
    day = OPEN if running else day_of(ends_ms)
    return {one.name: row[one.name] for one in columns(ALL[name])} | {"day": day}
