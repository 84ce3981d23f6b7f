"""Writes rows to Parquet, a file for each table and day; a row group of each is in memory at most."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from muster_audit.lake.row import schema_of
from muster_audit.lake.store import file_name, staging
from muster_audit.lake.tables import ALL
from muster_audit.reading.durable import sync

_GROUP_ROWS = 100_000
_WORTH_A_GROUP_ROWS = 5_000
_MAX_OPEN = 24
"""Files that are open at a time, each of which takes 2 MiB: as many as a run of two days has."""

_Key = tuple[str, str]


class DayFiles:
    """The files of one task.

    Args:
        folder: of the lake.
        run: number of the run.
        task: number of the task in it.
    """

    def __init__(self, folder: Path, run: int, task: int) -> None:
        self._folder, self._run, self._task = staging(folder, run), run, task
        self._waiting: dict[_Key, list[pa.RecordBatch]] = {}
        self._rows: dict[_Key, int] = {}
        self._writers: dict[_Key, tuple[pq.ParquetWriter, Path]] = {}
        self._files = 0

    def add(self, table: str, day: str, rows: pa.RecordBatch) -> None:
        """Takes rows of a table and a day."""
        key = table, day
        if key not in self._waiting:  # else what is left of each day would wait until the end of a long log
            self._flush_worthy(table)
        self._waiting.setdefault(key, []).append(rows)
        self._rows[key] = self._rows.get(key, 0) + len(rows)
        if self._rows[key] >= _GROUP_ROWS:
            self._flush(key)
        elif len(self._waiting) > _MAX_OPEN:
            self._flush(max(self._rows, key=self._rows.__getitem__))

    def end_log(self) -> None:
        """What comes now is of another log: groups of one log are found by its number alone."""
        self._flush_worthy()

    def close(self) -> None:
        """Writes what is left."""
        for key in list(self._waiting):
            self._flush(key)
        for key in list(self._writers):
            self._close(key)

    def _flush_worthy(self, table: str = "") -> None:
        """Writes what is worth a group of its own, of a table or of all."""
        for key in [key for key, rows in self._rows.items() if rows >= _WORTH_A_GROUP_ROWS]:
            if table in ("", key[0]):
                self._flush(key)

    def _flush(self, key: _Key) -> None:
        batches = self._waiting.pop(key)
        del self._rows[key]
        if key not in self._writers:
            if len(self._writers) == _MAX_OPEN:
                self._close(next(iter(self._writers)))
            self._writers[key] = self._open(*key)
        self._writers[key][0].write_table(pa.Table.from_batches(batches))

    def _open(self, table: str, day: str) -> tuple[pq.ParquetWriter, Path]:
        path = self._folder / table / f"day={day}" / file_name(self._run, self._task, self._files)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._files += 1
        return pq.ParquetWriter(path, schema_of(ALL[table]), compression="zstd"), path

    def _close(self, key: _Key) -> None:
        writer, path = self._writers.pop(key)
        writer.close()
        sync(path)
