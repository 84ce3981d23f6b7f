"""The tables of one log, as its records make them."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from muster_core.log.page import Page
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position

from muster_audit.lake.row import OPEN, Place, Row, batch_of, day_of
from muster_audit.lake.tables.assignments import Assignments
from muster_audit.lake.tables.commits import Commit, Commits, commits_batch
from muster_audit.lake.tables.coordinators import Coordinators
from muster_audit.lake.tables.generations import Generations
from muster_audit.lake.tables.members import Members
from muster_audit.lake.tables.topics import Topics
from muster_audit.lake.tracker import Take, Tracker

Part = tuple[str, str, pa.RecordBatch]
"""Rows of a table and of a day."""


class Decoder:
    """Makes the rows of one log, page by page.

    Args:
        shard: number of the log.
        end: place of the last entry that a run before took.
        end_hash: its chain hash.

    Attributes:
        end: place of the last entry that was taken.
        end_hash: its chain hash.
        end_ms: when the last record was written, as far as it is known.
        undecodable: entries whose bytes are no record: they are in no table.
    """

    def __init__(self, shard: int, end: Position = NOWHERE, end_hash: bytes = b"") -> None:
        self.end, self.end_hash = end, end_hash
        self.end_ms = self.undecodable = 0
        self._shard = shard
        members, assignments = Members(), Assignments()
        self._coordinators = Coordinators()
        self._trackers: tuple[Tracker[Any], ...] = (
            members,
            assignments,
            Generations(members, assignments),  # looks at what these two made of a record
            Commits(),
            Topics(),
            self._coordinators,
        )
        self._takes: dict[str, list[Take[Any]]] = {}
        for tracker in self._trackers:
            for kind, take in tracker.takes.items():
                self._takes.setdefault(kind, []).append(take)

    def resume(self, rows: Iterable[Row]) -> None:
        """Takes back the rows that were not final."""
        trackers = {tracker.row: tracker for tracker in self._trackers}
        for row in rows:
            trackers[type(row)].resume(row)

    def take(self, page: Page) -> Iterator[Part]:
        """Takes the next entries; yields what became final."""
        for dense in page.dense_parts():
            if dense:
                yield from self._take_dense(dense)
                self.end, self.end_hash = dense.last, dense.hashes[-1]

    def running(self) -> Iterator[Part]:
        """The rows that are not final: what the next run goes on from."""
        for tracker in self._trackers:
            rows = list(tracker.running())
            if rows:
                yield tracker.row.table, OPEN, batch_of(tracker.row, rows)

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
        yield from _by_day(commits_batch(self._shard, run))
        finished: dict[tuple[type[Row], str], list[Row]] = {}
        for row in self._finished(run):
            finished.setdefault((type(row), row.day), []).append(row)
        for (table, day), rows in finished.items():
            yield table.table, day, batch_of(table, rows)

    def _finished(self, run: RecordRun) -> Iterator[Row]:
        times_ms = run.times_ms()
        for index, record in run.others.items():
            kind = run.kinds[index]
            takes = self._takes.get(kind)
            if takes is None:
                continue
            at = Place(self._shard, run.position(index), times_ms[index])
            message = getattr(record, kind)
            for take in takes:
                yield from take(at, message)
        self._coordinators.count(len(run) - (run.kinds[0] == "claim"), times_ms[-1])
        self.end_ms = max(self.end_ms, *times_ms)


def _by_day(batch: pa.RecordBatch) -> Iterator[Part]:
    """Commits in parts of one day each."""
    times_ms = batch.column("written_at_ms").to_pylist()
    if not times_ms:
        return
    begin, first = 0, day_of(times_ms[0])
    if first != day_of(max(times_ms)) or first != day_of(min(times_ms)):
        for index, at_ms in enumerate(times_ms):
            day = day_of(at_ms)
            if day != first:
                yield Commit.table, first, batch.slice(begin, index - begin)
                begin, first = index, day
    yield Commit.table, first, batch.slice(begin)
