"""Logs as they were exported: Parquet files by shard and day, and for each shard a list that decides.

    FOLDER/_muster_export.json                      what cluster it is of
    FOLDER/shard=7/_files.json                      which files count, and where they end
    FOLDER/shard=7/day=2026-11-21/1-4096.parquet    the entries 1 to 4096

A file that is not in the list was left by a run that was interrupted, and is no part of the export.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog
from muster_core.audit.stored_snapshots import Snapshots
from muster_core.log.chain import BEFORE_GENESIS
from muster_core.log.page import Page
from muster_core.log.record_text import surroundings
from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position
from muster_protos.muster.log.v1 import records_pb2
from muster_server.verify.reader import LogUnreadableError

from muster_audit.reading.entries import entries_batch

EXPORT_MARK = "_muster_export.json"
FORMAT = 1
FILE_ENTRIES = 100_000

_FILES = "_files.json"
_UNDATED = "1970-01-01"
_AROUND = 2
_COLUMNS = ["epoch", "offset", "nonce", "hash", "record"]


def mark(folder: Path, cluster: records_pb2.Genesis) -> None:
    """Says what cluster an export is of, or checks that it is of this one.

    Raises:
        LogUnreadableError: the folder holds the export of another cluster.
    """
    path = folder / EXPORT_MARK
    stated = {"format": FORMAT, "cluster_id": cluster.cluster_id, "shard_count": cluster.shard_count}
    if path.is_file():
        found = json.loads(path.read_text("utf-8"))
        if found != stated:
            raise LogUnreadableError(
                f"{folder} holds the export of cluster {found.get('cluster_id')} with "
                f"{found.get('shard_count')} shards (format {found.get('format')}), not of "
                f"{cluster.cluster_id} with {cluster.shard_count} (format {FORMAT})"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    _replace(path, stated)


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Writes a file whole, or not at all."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    with staged.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of a shard: its path below the shard's folder, and the offsets it holds."""

    path: str
    first: int
    last: int


@dataclass(slots=True)
class ShardExport:
    """What was exported of one shard.

    Args:
        folder: of the export.
        shard: number of the log.

    Attributes:
        end: place of the last exported entry.
        end_hash: its chain hash.
        files: in the order of their offsets.
    """

    folder: Path
    shard: int
    end: Position = NOWHERE
    end_hash: bytes = BEFORE_GENESIS
    files: list[ExportedFile] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, shard: int) -> "ShardExport":
        """Reads the list of files; of a shard that was never exported it is empty."""
        found = cls(folder, shard)
        path = found.place / _FILES
        if path.is_file():
            stated = json.loads(path.read_text("utf-8"))
            found.end = Position.parse(stated["end"])
            found.end_hash = bytes.fromhex(stated["end_hash"])
            found.files = [ExportedFile(**row) for row in stated["files"]]
        return found

    @property
    def place(self) -> Path:
        """The folder of the shard."""
        return self.folder / f"shard={self.shard}"

    def write(self, pages: Iterable[Page]) -> int:
        """Writes entries that follow the end, and then lists them; gives their number.

        Until they are listed they are no part of the export, so an interruption costs nothing but work.
        """
        self._remove_leftovers()
        waiting: list[pa.RecordBatch] = []
        written: list[ExportedFile] = []
        end, end_hash, count = self.end, self.end_hash, 0
        for page in pages:
            for batch in _by_day(entries_batch(self.shard, page)):
                if waiting and (
                    _day(batch) != _day(waiting[0]) or sum(map(len, waiting)) + len(batch) > FILE_ENTRIES
                ):
                    written.append(self._file(waiting))
                    waiting = []
                waiting.append(batch)
            end, end_hash, count = page.last, page.hashes[-1], count + len(page)
        if waiting:
            written.append(self._file(waiting))
        if written:
            self.end, self.end_hash = end, end_hash
            self.files += written
            stated = {
                "end": self.end.stream_id,
                "end_hash": self.end_hash.hex(),
                "files": [asdict(row) for row in self.files],
            }
            _replace(self.place / _FILES, stated)
        return count

    def _file(self, batches: Sequence[pa.RecordBatch]) -> ExportedFile:
        table = pa.Table.from_batches(batches).drop_columns(["shard"])
        offsets = table.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        path = Path(f"day={_day(batches[0])}") / f"{first}-{last}.parquet"
        target = self.place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, target, compression="zstd")
        with target.open("rb") as file:
            os.fsync(file.fileno())
        return ExportedFile(path.as_posix(), first, last)

    def _remove_leftovers(self) -> None:
        listed = {self.place / row.path for row in self.files}
        for path in self.place.glob("day=*/*.parquet"):
            if path not in listed:
                path.unlink()

    def pages(self, upto: Position, after: Position, count: int) -> Iterator[Page]:
        """Entries in order: those after a place, up to another."""
        for row in self.files:
            if row.last <= after.offset or row.first > upto.offset:
                continue
            file = pq.ParquetFile(self.place / row.path)
            try:
                for batch in file.iter_batches(batch_size=count, columns=_COLUMNS):
                    page = _page(batch, after, upto)
                    if page:
                        yield page
            except (OSError, pa.ArrowInvalid) as error:
                raise LogUnreadableError(f"{self.place / row.path} cannot be read: {error}") from error
            finally:
                file.close()


def _page(batch: pa.RecordBatch, after: Position, upto: Position) -> Page:
    rows = batch.to_pydict()
    places = list(map(Position, rows["epoch"], rows["offset"]))
    keep = [index for index, place in enumerate(places) if after.offset < place.offset <= upto.offset]
    entries = [places[index] for index in keep]
    dense = entries and entries[-1] == entries[0].after(len(entries) - 1)
    return Page(
        entries[0] if entries else NOWHERE,
        [rows["record"][index] for index in keep],
        [rows["nonce"][index] for index in keep],
        [rows["hash"][index] for index in keep],
        None if dense and entries == [entries[0].after(n) for n in range(len(entries))] else entries,
    )


def _by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts of one day each; what has no time goes with the entry before it."""
    days = [_date(at_ms) for at_ms in batch.column("written_at_ms").to_pylist()]
    start = 0
    for index in range(1, len(days) + 1):
        if index == len(days) or (days[index] != days[start] and days[index] != _UNDATED):
            yield batch.slice(start, index - start)
            start = index


def _day(batch: pa.RecordBatch) -> str:
    return _date(batch.column("written_at_ms")[0].as_py())


def _date(at_ms: int | None) -> str:
    return datetime.fromtimestamp((at_ms or 0) / 1000, UTC).strftime("%Y-%m-%d")


class ExportSource:
    """The logs of an export.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        stated = json.loads((folder / EXPORT_MARK).read_text("utf-8"))
        if stated["format"] != FORMAT:
            raise LogUnreadableError(f"{folder} has format {stated['format']}; this version reads {FORMAT}")
        self.cluster_id: str = stated["cluster_id"]
        self.shard_count: int = stated["shard_count"]
        self.count = 1
        self.problems: dict[int, str] = {}
        self.genesis = records_pb2.Genesis(cluster_id=self.cluster_id, shard_count=self.shard_count)
        self._shards = {shard: ShardExport.open(folder, shard) for shard in range(self.shard_count + 1)}

    def logs(self) -> Sequence[int]:
        """Numbers of the logs of which something was exported."""
        return [shard for shard, export in self._shards.items() if export.files]

    def name(self, shard: int) -> str:
        """What a log is called in reports."""
        return "catalog" if shard == self.shard_count else f"shard {shard}"

    def node_numbers(self) -> list[int]:
        """An export is one copy."""
        return [1]

    def best_node(self, shard: int) -> int:
        """An export is one copy."""
        return 1

    def length(self, shard: int, node: int) -> int:
        """Number of entries."""
        return sum(row.last - row.first + 1 for row in self._shards[shard].files)

    def acknowledged(self, shard: int) -> Position:
        """The end of what was exported: nothing else ever is."""
        return self._shards[shard].end

    def marks(self, shard: int) -> dict[int, Position]:
        """The end of what was exported, under the number that the export has as a node."""
        return {number: self.acknowledged(shard) for number in self.node_numbers()}

    def first(self, shard: int, node: int) -> Position:
        """Place of the first entry."""
        pages = self._shards[shard].pages(self._shards[shard].end, NOWHERE, 1)
        return next((page.first for page in pages), NOWHERE)

    def times_ms(self, shard: int) -> tuple[int, int]:
        """When the first and the last entry were written."""
        files = self._shards[shard].files
        found = []
        for row in files[:1] + files[-1:]:
            column = pq.read_table(self._shards[shard].place / row.path, columns=["written_at_ms"]).column(0)
            found.append([at_ms or 0 for at_ms in column.to_pylist()])
        return (found[0][0], found[-1][-1]) if found else (0, 0)

    def place_of(self, shard: int, offset: int) -> Position | None:
        """The place of the entry with an offset; None: there is none."""
        around = self._shards[shard].pages(Position(0, offset), Position(0, offset - 1), 10_000)
        return next((page.first for page in around if page.first.offset == offset), None)

    def pages(
        self, shard: int, node: int, upto: Position, count: int, after: Position = NOWHERE
    ) -> Iterator[Page]:
        """Entries in order: those after a place, up to another."""
        return self._shards[shard].pages(upto, after, count)

    def around(self, shard: int, position: Position) -> Iterator[str]:
        """The entries around a place, as text."""
        first = Position(0, max(position.offset - _AROUND - 1, 0))
        upto = Position(position.epoch, position.offset + _AROUND)
        rows: list[Entry] = []
        for page in self._shards[shard].pages(upto, first, 10_000):
            rows += page.entries()
        return surroundings(rows, position)

    def snapshots(self, shard: int) -> Snapshots:
        """None: an export holds every entry."""
        return {}

    def node_logs(self, shard: int) -> Sequence[NodeLog]:
        """None: an export is not on nodes."""
        return []

    def check_nodes(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Has an audit check what is stored beside the entries, which is nothing."""
        audit.check_nodes(nodes, {})

    def problems_of(self, shard: int) -> list[str]:
        """Nothing beside its entries."""
        return []

    def close(self) -> None:
        """Nothing is open."""
