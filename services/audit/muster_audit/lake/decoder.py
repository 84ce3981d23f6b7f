"""The tables of one log, as its records make them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from muster_core.log.page import Page
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position

from muster_audit.lake.row import OPEN, Place, Row, batch_of, day_of
from muster_audit.lake.tables import SCHEMAS
from muster_audit.lake.tables.assignments import Assignments
from muster_audit.lake.tables.commits import Commit, Commits, commit_times_ms, commits_batch
from muster_audit.lake.tables.coordinators import Coordinators
from muster_audit.lake.tables.generations import Generations
from muster_audit.lake.tables.members import Members
from muster_audit.lake.tables.operations import Operations
from muster_audit.lake.tables.settings import Settings
from muster_audit.lake.tables.topics import Topics
from muster_audit.lake.tracker import Take, Tracker

Part = tuple[str, str, pa.RecordBatch]
"""Rows of a table and of a day."""

_NEEDS = {"generations": ("members", "assignments")}
_STATELESS = frozenset({"commits", "coordinators", "operations"})  # take entries that a snapshot covers, too


class Decoder:
    """Makes the rows of one log, page by page.

    Args:
        shard: number of the log.
        end: place of the last entry that a run before took.
        end_hash: its chain hash.
        wanted: the tables that are wanted, each with the columns that are.

    Attributes:
        end: place of the last entry that was taken.
        end_hash: its chain hash.
        end_ms: when the last record was written, as far as it is known.
        undecodable: entries whose bytes are no record: they are in no table.
    """

    def __init__(
        self,
        shard: int,
        end: Position = NOWHERE,
        end_hash: bytes = b"",
        wanted: Mapping[str, pa.Schema] = SCHEMAS,
    ) -> None:
        self.end, self.end_hash = end, end_hash
        self._wanted, self._covered = wanted, NOWHERE
        self.end_ms = self.undecodable = 0
        self._shard = shard
        members, assignments = Members(), Assignments()
        self._coordinators = Coordinators()
        self._trackers: tuple[Tracker[Any], ...] = (
            members,
            assignments,
            Generations(members, assignments),  # looks at what these two made of a record
            Commits(),
            Settings(),
            Topics(),
            self._coordinators,
            Operations(),
        )
        needed = {*wanted, *(name for table in wanted for name in _NEEDS.get(table, ()))}
        self._takes: dict[str, list[tuple[Take[Any], bool]]] = {}
        for tracker in self._trackers:
            if (table := tracker.row.table) in needed:
                for kind, take in tracker.takes.items():
                    self._takes.setdefault(kind, []).append((take, table in _STATELESS))

    def resume(self, rows: Iterable[Row]) -> None:
        """Takes back the rows that were not final."""
        trackers = {tracker.row: tracker for tracker in self._trackers}
        for row in rows:
            trackers[type(row)].resume(row)

    def begin(self, upto: Position, rows: Iterable[Row]) -> None:
        """Begins a trimmed log with the rows that there are at a place, up to which it has no others."""
        self._covered = upto
        self.resume(rows)

    def take(self, page: Page) -> Iterator[Part]:
        """Takes the next entries; yields what became final."""
        for dense in page.dense_parts():
            if dense:
                yield from self._take_dense(dense)
                self.end, self.end_hash = dense.last, dense.hashes[-1]

    def running(self) -> Iterator[Part]:
        """The rows that are not final: what the next run goes on from."""
        for tracker in self._trackers:
            schema, rows = self._wanted.get(tracker.row.table), list(tracker.running())
            if rows and schema is not None:
                yield tracker.row.table, OPEN, batch_of(schema, rows)

    def _take_dense(self, page: Page) -> Iterator[Part]:
        try:
            run = RecordRun(page.first, page.records)
        except DecodeError:
            if len(page) == 1:
                self.undecodable += 1
                return
            middle = len(page) // 2
            yield from self._take_dense(page.part(0, middle))
            yield from self._take_dense(page.part(middle, len(page)))
            return
        if Commit.table in self._wanted and run.commits:
            yield from _by_day(commits_batch(self._shard, run, self._wanted[Commit.table]), run)
        finished: dict[tuple[str, str], list[Row]] = {}
        for row in self._finished(run):
            if row.table in self._wanted:
                finished.setdefault((row.table, row.day), []).append(row)
        for (table, day), rows in finished.items():
            yield table, day, batch_of(self._wanted[table], rows)

    def _finished(self, run: RecordRun) -> Iterator[Row]:
        times_ms = run.times_ms()
        for index, record in run.others.items():
            kind = run.kinds[index]
            takes = self._takes.get(kind)
            if takes is None:
                continue
            at = Place(self._shard, run.position(index), times_ms[index])
            message, covered = getattr(record, kind), at.position.offset <= self._covered.offset
            for take, stateless in takes:
                if stateless or not covered:
                    yield from take(at, message)
        self._coordinators.count(len(run) - (run.kinds[0] == "claim"), times_ms[-1])
        self.end_ms = max(self.end_ms, *times_ms)


def _by_day(batch: pa.RecordBatch, run: RecordRun) -> Iterator[Part]:
    """The commits of a run, which has some, in parts of one day each."""
    written_at_ms = run.commits.written_at_ms
    begin, first = 0, day_of(written_at_ms[0])
    if first != day_of(max(written_at_ms)) or first != day_of(min(written_at_ms)):
        for index, at_ms in enumerate(commit_times_ms(run)):
            day = day_of(at_ms)
            if day != first:
                yield Commit.table, first, batch.slice(begin, index - begin)
                begin, first = index, day
    yield Commit.table, first, batch.slice(begin)
