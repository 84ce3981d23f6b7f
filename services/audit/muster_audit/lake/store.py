"""The folder of a lake: what counts, what a run adds to it, and what a killed run left.

    LAKE/_muster_lake.json                               whose, which run was last, how far each log is
    LAKE/commits/day=2026-11-21/000004-001-0.parquet     rows of a day, from run 4
    LAKE/members/day=open/000004-001-0.parquet           rows that are not final, replaced by each run
    LAKE/_runs/000005/…                                  what run 5 has written so far, in the same folders

A run writes below `_runs`, where no reader looks. Then it is committed: the file at the top names it as the
last one. Then its files are moved to their places. Whoever opens the lake next finishes a move that was
interrupted, and removes what was never committed.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
from muster_core.position import NOWHERE, Position
from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.row import OPEN, Row, columns
from muster_audit.lake.tables import ALL
from muster_audit.reading.durable import HeldElsewhere, held_alone, replace_file

LAKE_MARK = "_muster_lake.json"
FORMAT = 1

_RUNS = "_runs"
_LOCK = "_lock"


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a log is in the lake.

    Attributes:
        position: its last entry.
        hash: chain hash of that.
        at_ms: when it was written.
    """

    position: Position = NOWHERE
    hash: bytes = b""
    at_ms: int = 0


@dataclass(slots=True)
class Lake:
    """A lake as the last committed run left it.

    Args:
        folder: where it is.
        cluster_id: of which cluster; empty: nothing was committed yet.
        shard_count: number of its shards, and of its catalog's log.
        run: number of the last committed run; 0: none.
        ends: log → how far it is.
        id: of this lake, whatever folder it is in: a new one of the same log has another.
    """

    folder: Path
    cluster_id: str = ""
    shard_count: int = 0
    run: int = 0
    ends: dict[int, LogEnd] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def load(cls, folder: Path) -> "Lake":
        """Reads what was committed.

        Raises:
            LogUnreadableError: it is no lake, or a later version made it.
        """
        path = folder / LAKE_MARK
        if not path.is_file():
            if folder.is_dir() and any(one.name not in (_LOCK, _RUNS) for one in folder.iterdir()):
                raise LogUnreadableError(f"{folder} is no lake, and not empty")
            return cls(folder)
        stated = json.loads(path.read_text("utf-8"))
        unknown = [
            f"{table}.{column}"
            for table, names in stated["columns"].items()
            for column in names
            if table not in ALL or column not in {one.name for one in columns(ALL[table])}
        ]
        if stated["format"] != FORMAT or unknown:
            what = ", ".join(unknown[:5]) or f"format {stated['format']}"
            raise LogUnreadableError(f"{folder} was made by a later version ({what}): use that one")
        ends = {
            int(shard): LogEnd(Position.parse(end["position"]), bytes.fromhex(end["hash"]), end["at_ms"])
            for shard, end in stated["ends"].items()
        }
        return cls(folder, stated["cluster_id"], stated["shard_count"], stated["run"], ends, stated["id"])

    def commit(self, ends: Mapping[int, LogEnd]) -> None:
        """Makes the next run count, as a whole or, interrupted, not at all; then moves its files."""
        self.run, self.ends = self.run + 1, self.ends | dict(ends)
        stated: dict[str, Any] = {
            "format": FORMAT,
            "id": self.id,
            "cluster_id": self.cluster_id,
            "shard_count": self.shard_count,
            "run": self.run,
            "columns": {name: [one.name for one in columns(row)] for name, row in ALL.items()},
            "ends": {
                str(shard): {
                    "position": end.position.stream_id,
                    "hash": end.hash.hex(),
                    "at_ms": end.at_ms,
                }
                for shard, end in self.ends.items()
            },
        }
        replace_file(self.folder / LAKE_MARK, json.dumps(stated, indent=1))
        self.settle()

    def settle(self) -> None:
        """Moves the files of the last committed run to their places, and removes those of any other."""
        done = staging(self.folder, self.run)
        for left in (self.folder / _RUNS).glob("*"):
            if left != done:
                shutil.rmtree(left)
        if not done.is_dir():
            return
        for path in self.folder.glob(f"*/day={OPEN}/*.parquet"):
            if not path.name.startswith(_prefix(self.run)):
                path.unlink()  # before its successor comes: a reader finds no row twice
        for path in sorted(done.glob("*/day=*/*.parquet")):
            target = self.folder / path.relative_to(done)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        shutil.rmtree(done)

    def files_since(self, row: type[Row], run: int) -> Iterator[tuple[str, Path]]:
        """The files of a table, with their days: what later runs made final, and what is not final now."""
        for path in sorted((self.folder / row.table).glob("day=*/*.parquet")):
            if path.name >= _prefix(run + 1):
                yield path.parent.name.removeprefix("day="), path

    def open_rows(self, shard: int) -> Iterator[Row]:
        """The rows of a log that were not final when the last run ended."""
        for name, row in ALL.items():
            for path in sorted((self.folder / name / f"day={OPEN}").glob("*.parquet")):
                for stored in pq.read_table(path, filters=[("shard", "=", shard)]).to_pylist():
                    yield row.of(stored)


def staging(folder: Path, run: int) -> Path:
    """Where a run writes."""
    return folder / _RUNS / f"{run:06d}"


def file_name(run: int, task: int, number: int) -> str:
    """What a file is called: no two runs, tasks or files of a task share a name."""
    return f"{_prefix(run)}{task:03d}-{number}.parquet"


def _prefix(run: int) -> str:
    return f"{run:06d}-"


@contextmanager
def opened(folder: Path) -> Iterator[Lake]:
    """A lake that no other process changes meanwhile, settled.

    Raises:
        LogUnreadableError: another process has it, or it is no lake that this version knows.
    """
    try:
        with held_alone(folder / _LOCK):
            lake = Lake.load(folder)
            lake.settle()
            yield lake
    except HeldElsewhere as error:
        raise LogUnreadableError(f"{folder} is held by {error}: try again later") from None
