"""Logs as they were exported: Parquet files by shard and day, and for each shard a list that decides.

    FOLDER/_lock                                    who exports now
    FOLDER/_muster_export.json                      what cluster it is of
    FOLDER/_anchor.json                             where the logs ended, for later audits
    FOLDER/shard=7/_lock                            who writes this shard
    FOLDER/shard=7/_files.json                      which files count, and where they end
    FOLDER/shard=7/_snapshot.parquet                what stands for entries that were trimmed before
    FOLDER/shard=7/day=2026-11-21/1-4096.parquet    the entries 1 to 4096
    FOLDER/shard=7/day=2026-11-21/_1-4096.staged    the same, not shown yet

A file is written under a name that readers of Parquet pass over, is listed then, and gets its own name last.
So they never see a row that the list does not name, whatever a run was interrupted at; the next one removes
what is not listed, and shows what is.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog
from muster_core.audit.stored_snapshots import Snapshots, StoredSnapshot
from muster_core.log.chain import BEFORE_GENESIS
from muster_core.log.page import Page
from muster_core.log.record_text import surroundings
from muster_core.log.replay import Entry
from muster_core.log.snapshot import part_hash
from muster_core.position import NOWHERE, Position
from muster_protos.muster.log.v1 import records_pb2
from muster_server.verify.reader import LogUnreadableError

from muster_audit.reading.durable import HeldElsewhere, held_alone, replace_file, sync
from muster_audit.reading.entries import entries_batch

EXPORT_MARK = "_muster_export.json"
LOCK = "_lock"
ANCHOR = "_anchor.json"
FORMAT = 1
FILE_ENTRIES = 100_000

_FILES = "_files.json"
_SNAPSHOT = "_snapshot.parquet"
_DAY_MS = 86_400_000
_AROUND = 2
_BATCH_ENTRIES, _BATCH_BYTES = 8_000, 1 << 23
"""How much of a file is read at a time, at most: page by page it takes twice as long."""

_COLUMNS = ["epoch", "offset", "nonce", "hash", "record"]
_PATIENCE_S = 30.0
"""How long to wait for a shard's lock. Whoever has the folder's finds it taken only by a task of a run that
was killed, or of an executor that was given up."""


def mark(folder: Path, cluster: records_pb2.Genesis) -> None:
    """Says what cluster an export is of, or checks that it is of this one.

    Raises:
        LogUnreadableError: the folder holds the export of another cluster.
    """
    path = folder / EXPORT_MARK
    stated = {"format": FORMAT, "cluster_id": cluster.cluster_id, "shard_count": cluster.shard_count}
    if path.is_file():
        found = _json(path)
        if found != stated:
            raise LogUnreadableError(
                f"{folder} holds the export of cluster {found.get('cluster_id')} with "
                f"{found.get('shard_count')} shards (format {found.get('format')}), not of "
                f"{cluster.cluster_id} with {cluster.shard_count} (format {FORMAT})"
            )
        return
    replace_file(path, json.dumps(stated, indent=1))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LogUnreadableError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LogUnreadableError(f"{path} holds no object of JSON")
    return found


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of a shard: its path below the shard's folder, and the offsets it holds."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """What stands for the entries that were trimmed before a log was first exported.

    Attributes:
        upto: the last place that the snapshot covers: the first exported entry, or one after it.
        snapshot: the snapshot.
    """

    upto: Position
    snapshot: StoredSnapshot


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
        sizes: bytes of the files, by path; of those that version 0.1 wrote they are not known.
        snapshot_upto: what the stored snapshot covers, where the log was trimmed before its first export.
    """

    folder: Path
    shard: int
    end: Position = NOWHERE
    end_hash: bytes = BEFORE_GENESIS
    files: list[ExportedFile] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    snapshot_upto: Position = NOWHERE
    _listed: str = ""

    @classmethod
    def open(cls, folder: Path, shard: int) -> "ShardExport":
        """Reads the list of files; of a shard that was never exported it is empty.

        Raises:
            LogUnreadableError: the list is damaged.
        """
        found = cls(folder, shard)
        path = found.place / _FILES
        if path.is_file():
            stated = _json(path)
            try:
                found.end = Position.parse(stated["end"])
                found.end_hash = bytes.fromhex(stated["end_hash"])
                found.files = [ExportedFile(**row) for row in stated["files"]]
                found.sizes = dict(stated.get("sizes", {}))
                found.snapshot_upto = Position.parse(stated.get("snapshot_upto", NOWHERE.stream_id))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise LogUnreadableError(f"{path} is no list of exported files: {error!r}") from error
            found._listed = found.end.stream_id
        return found

    @classmethod
    @contextmanager
    def held(cls, folder: Path, shard: int, patience_s: float = _PATIENCE_S) -> "Iterator[ShardExport]":
        """Opens it to write to it, alone, and finishes what a run left that was interrupted.

        Raises:
            LogUnreadableError: another process writes to it, or the list is damaged.
        """
        try:
            with held_alone(folder / f"shard={shard}" / LOCK, patience_s):
                found = cls.open(folder, shard)
                found._settle()
                yield found
        except HeldElsewhere as holder:
            raise LogUnreadableError(f"log {shard} is being written to {folder} by {holder}") from None

    @property
    def place(self) -> Path:
        """The folder of the shard."""
        return self.folder / f"shard={self.shard}"

    @property
    def damage(self) -> str:
        """What is missing of the listed files; empty: nothing."""
        for row in self.files:
            path = self.place / row.path
            if not path.is_file():
                return f"{path} is listed and is not there"
            expected, size = self.sizes.get(row.path), path.stat().st_size
            if expected not in (None, size):
                return f"{path} has {size} bytes, and had {expected} when it was written"
        return ""

    def write(self, pages: Iterable[Page], beginning: Callable[[], Beginning | None] = lambda: None) -> int:
        """Writes entries that follow the end, lists them and then shows them; returns their number.

        Until they are listed they are no part of the export, so an interruption costs nothing but work.

        Args:
            pages: the entries.
            beginning: asked after the last page, where they are the first of the export and do not begin with
                offset 1; without a beginning nothing is listed.

        Raises:
            LogUnreadableError: another process listed files meanwhile, past the lock.
        """
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
        if not written:
            return 0
        if not self.files and written[0].first > 1:
            begun = beginning()
            if begun is None:
                return 0
            self.snapshot_upto = begun.upto
            self._store(begun.snapshot)
        if ShardExport.open(self.folder, self.shard)._listed != self._listed:
            raise LogUnreadableError(f"{self.place} was written to by another process meanwhile")
        self.end, self.end_hash = end, end_hash
        self.files += written
        self._list()
        for row in written:
            self._show(row)
        return count

    def snapshots(self) -> Snapshots:
        """The snapshot that stands for what was trimmed before; none where the log is whole."""
        return {self.snapshot_upto: self._stored} if self.snapshot_upto != NOWHERE else {}

    def _list(self) -> None:
        stated = {
            "end": self.end.stream_id,
            "end_hash": self.end_hash.hex(),
            "files": [asdict(row) for row in self.files],
            "sizes": {row.path: self.sizes[row.path] for row in self.files if row.path in self.sizes},
        }
        if self.snapshot_upto != NOWHERE:
            stated["snapshot_upto"] = self.snapshot_upto.stream_id
        replace_file(self.place / _FILES, json.dumps(stated, indent=1))
        self._listed = self.end.stream_id

    def _file(self, batches: Sequence[pa.RecordBatch]) -> ExportedFile:
        """Writes a file under the name that nobody sees, and has the disk keep it."""
        table = pa.Table.from_batches(batches).drop_columns(["shard"])
        offsets = table.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        path = Path(f"day={_day(batches[0])}") / f"{first}-{last}.parquet"
        staged = _staged(self.place / path)
        staged.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, staged, compression="zstd")
        for place in (staged, staged.parent, self.place, self.folder):
            sync(place)
        self.sizes[path.as_posix()] = staged.stat().st_size
        return ExportedFile(path.as_posix(), first, last)

    def _show(self, row: ExportedFile) -> None:
        path = self.place / row.path
        _staged(path).replace(path)
        sync(path.parent)

    def _store(self, snapshot: StoredSnapshot) -> None:
        path = self.place / _SNAPSHOT
        temporary = path.with_name("_snapshot.staged")
        pq.write_table(pa.table({"part": pa.array(snapshot.parts, pa.large_binary())}), temporary)
        sync(temporary)
        temporary.replace(path)
        sync(self.place)

    def _stored(self) -> StoredSnapshot:
        path = self.place / _SNAPSHOT
        try:
            parts = pq.read_table(path).column("part").to_pylist()
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            raise LogUnreadableError(f"{path} cannot be read: {error}") from error
        return StoredSnapshot(parts, b"".join(map(part_hash, parts)))

    def _settle(self) -> None:
        """Shows what is listed, and removes what is not."""
        listed = {self.place / row.path for row in self.files}
        for row in self.files:
            path = self.place / row.path
            if not path.is_file() and _staged(path).is_file():
                self._show(row)
        for pattern in ("day=*/*.parquet", "day=*/_*.staged"):
            for path in self.place.glob(pattern):
                if path not in listed:
                    path.unlink()

    def read(self, row: ExportedFile) -> pq.ParquetFile:
        """Opens a listed file, which may just get its name.

        Raises:
            LogUnreadableError: it is not there, or damaged.
        """
        path = self.place / row.path
        for candidate in (path, _staged(path), path):
            try:
                return pq.ParquetFile(candidate)
            except FileNotFoundError:
                continue
            except (OSError, pa.ArrowInvalid) as error:
                raise LogUnreadableError(f"{path} cannot be read: {error}") from error
        raise LogUnreadableError(f"{path} is listed and is not there")

    def pages(self, upto: Position, after: Position, count: int) -> Iterator[Page]:
        """Entries in order: those after a place, up to another."""
        for row in self.files:
            if row.last <= after.offset or row.first > upto.offset:
                continue
            file = self.read(row)
            try:
                for batch in file.iter_batches(batch_size=max(count, _at_a_time(file)), columns=_COLUMNS):
                    for begin in range(0, len(batch), count):
                        page = _page(batch.slice(begin, count), after, upto)
                        if page:
                            yield page
            except (OSError, pa.ArrowInvalid) as error:
                raise LogUnreadableError(f"{self.place / row.path} cannot be read: {error}") from error
            finally:
                file.close()


def _at_a_time(file: pq.ParquetFile) -> int:
    """How many entries of a file make a batch: fewer where they are large."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    size_bytes: int = sum(group.total_byte_size for group in groups)
    rows: int = file.metadata.num_rows
    return max(1, min(_BATCH_ENTRIES, rows * _BATCH_BYTES // max(size_bytes, 1)))


def _staged(path: Path) -> Path:
    """The name of a file that is not shown yet."""
    return path.with_name(f"_{path.stem}.staged")


def _page(batch: pa.RecordBatch, after: Position, upto: Position) -> Page:
    rows = batch.to_pydict()
    epochs, offsets = rows["epoch"], rows["offset"]
    records, nonces, hashes = rows["record"], rows["nonce"], rows["hash"]
    if not after.offset < min(offsets) or not max(offsets) <= upto.offset:
        keep = [after.offset < offset <= upto.offset for offset in offsets]
        epochs, offsets, records, nonces, hashes = (
            list(compress(column, keep)) for column in (epochs, offsets, records, nonces, hashes)
        )
    if not offsets:
        return Page(NOWHERE, records, nonces, hashes)
    first, count = Position(epochs[0], offsets[0]), len(offsets)
    dense = epochs.count(first.epoch) == count and offsets == [*range(first.offset, first.offset + count)]
    positions = None if dense else list(map(Position, epochs, offsets))
    return Page(first, records, nonces, hashes, positions)


def _by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts of one day each; what has no time goes with the entry before it."""
    days = [(at_ms or 0) // _DAY_MS for at_ms in batch.column("written_at_ms").to_pylist()]
    start = 0
    for index in range(1, len(days) + 1):
        if index == len(days) or (days[index] != days[start] and days[index] != 0):
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

    is_copy = True

    def __init__(self, folder: Path) -> None:
        stated = _json(folder / EXPORT_MARK)
        if stated.get("format") != FORMAT:
            found = stated.get("format")
            raise LogUnreadableError(f"{folder} has format {found}; this version reads {FORMAT}")
        self.cluster_id = str(stated["cluster_id"])
        self.shard_count = int(stated["shard_count"])
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

    def best_node(self, shard: int, said: Sequence[NodeLog] = ()) -> int:
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
            with self._shards[shard].read(row) as file:
                column = file.read(columns=["written_at_ms"]).column(0)
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

    def entry_at(self, shard: int, position: Position) -> Entry | None:
        """The entry at a place; None: there is none."""
        before = Position(position.epoch, max(position.offset - 1, 0))
        for page in self._shards[shard].pages(position, before, 10_000):
            return next((entry for entry in page.entries() if entry.position == position), None)
        return None

    def around(self, shard: int, position: Position) -> Iterator[str]:
        """The entries around a place, as text."""
        first = Position(0, max(position.offset - _AROUND - 1, 0))
        upto = Position(position.epoch, position.offset + _AROUND)
        rows: list[Entry] = []
        for page in self._shards[shard].pages(upto, first, 10_000):
            rows += page.entries()
        return surroundings(rows, position)

    def snapshots(self, shard: int) -> Snapshots:
        """What stands for entries that were trimmed before they were exported."""
        return self._shards[shard].snapshots()

    def node_logs(self, shard: int) -> Sequence[NodeLog]:
        """None: an export is not on nodes."""
        return []

    def check_nodes(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Has an audit check what is stored beside the entries: a snapshot where they begin later than 1."""
        audit.check_nodes(nodes, {1: self.snapshots(audit.checker.shard)})

    def problems_of(self, shard: int) -> list[str]:
        """Nothing beside its entries."""
        return []

    def leave_silent(self) -> None:
        """An export has no nodes."""

    def close(self) -> None:
        """Nothing is open."""
