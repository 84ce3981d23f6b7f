"""Records of one epoch that follow each other, decoded once for all who look at them."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from muster_protos.muster.log.v1 import records_pb2

from muster_core.log.commits import CommitRow, Commits, CommittedRow
from muster_core.position import Position

COMMIT = "offset_committed"
"""The kind that logs mostly consist of."""

_TAG = b"\xf2\x01"  # of the field offset_committed
_begin_of_a_commit = re.compile(rb"\x08[\x80-\xff]*[\x00-\x7f](?=\xf2\x01)").match  # its time, then the tag

_Value = TypeVar("_Value")


class RecordRun:
    """Decoded records of a log.

    Args:
        first: place of the first one; the others follow it in its epoch without a gap.
        datas: their bytes.

    Attributes:
        kinds: what each is; empty: unknown.
        others: the others, by index.

    Raises:
        DecodeError: one of them is no record.
    """

    __slots__ = ("_commits", "_in_lists", "_places", "datas", "first", "kinds", "others")

    def __init__(self, first: Position, datas: Sequence[bytes]) -> None:
        self.first = first
        self.datas = datas
        self.kinds = [COMMIT] * len(datas)
        self.others: dict[int, records_pb2.Record] = {}
        self._places: dict[int, Position] = {}
        self._look_at(not_beginning_like_a_commit(datas))
        commits = Commits.of_bytes(_without(datas, self.others))
        if commits is None:  # a beginning said the wrong thing, or fields are left out
            self.others.clear()
            self._look_at(range(len(datas)))
            rest = _without(datas, self.others)
            commits = Commits.of_messages([records_pb2.Record.FromString(data) for data in rest])
        self._commits = commits
        self._in_lists = False

    @property
    def commits(self) -> Commits:
        """The commits among the records. They share no part with the other records."""
        if not self._in_lists:  # who checks nothing but the log never looks at them
            self._commits, self._in_lists = self._commits.in_lists(), True
        return self._commits

    @property
    def longest_bytes(self) -> int:
        """What the longest of all takes in the log."""
        return max(map(len, self.datas), default=0)

    def _look_at(self, indexes: Iterable[int]) -> None:
        """Decodes records, and keeps those that are no commits."""
        datas, kinds, others = self.datas, self.kinds, self.others
        for index in indexes:
            record = records_pb2.Record.FromString(datas[index])
            kind = record.WhichOneof("kind")
            if kind != COMMIT:
                kinds[index] = kind or ""
                others[index] = record

    def __len__(self) -> int:
        return len(self.datas)

    def position(self, index: int) -> Position:
        """Place of a record; made once, as several look at it."""
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = self.first.after(index)
        return place

    def part(self, begin: int, end: int) -> "RecordRun":
        """Some of the records, as a run."""
        if (begin, end) == (0, len(self.datas)):
            return self
        return RecordRun(self.first.after(begin), self.datas[begin:end])

    def without_others(self, values: Sequence[_Value]) -> Sequence[_Value]:
        """Of a value for each record those of the commits."""
        return _without(values, self.others)

    def times_ms(self) -> list[int]:
        """When each record was made, wall clock."""
        times_ms = [*self.commits.written_at_ms]
        for index, record in self.others.items():
            times_ms.insert(index, record.written_at_ms)
        return times_ms

    def in_order(self) -> Iterator[tuple[int, list[CommitRow] | records_pb2.Record]]:
        """Commits that follow each other, and other records, with the index of the first or only one."""
        return self._merged(self.commits.rows(), None)

    def in_order_by_partition(self) -> Iterator[tuple[int, list[CommittedRow] | records_pb2.Record]]:
        """As `in_order`, with an entry for each partition of each commit."""
        return self._merged(self.commits.rows_by_partition(), self.commits.counts)

    def _merged(
        self, rows: Iterator[_Value], counts: Sequence[int] | None
    ) -> Iterator[tuple[int, list[_Value] | records_pb2.Record]]:
        """Rows of commits between the other records; `counts`: rows of each commit, None: one."""
        begin = taken = 0
        for index, record in self.others.items():
            if begin < index:
                commits = slice(taken, taken + index - begin)
                yield begin, list(islice(rows, index - begin if counts is None else sum(counts[commits])))
                taken = commits.stop
            yield index, record
            begin = index + 1
        if begin < len(self.datas):
            yield begin, list(rows)


def not_beginning_like_a_commit(datas: Sequence[bytes]) -> list[int]:
    """Indexes of the records that are no commits, most likely all of them and no others."""
    tag_at = next((found.end() for found in map(_begin_of_a_commit, datas) if found), 0)
    tag = slice(tag_at, tag_at + len(_TAG))
    return [index for index, data in enumerate(datas) if data[tag] != _TAG]


def _without(values: Sequence[_Value], indexes: Iterable[int]) -> Sequence[_Value]:
    """Values but for those at some indexes, which ascend."""
    if not indexes:
        return values
    left: list[_Value] = []
    begin = 0
    for index in indexes:
        left += values[begin:index]
        begin = index + 1
    left += values[begin:]
    return left


FollowRun = Callable[[RecordRun], None]
"""Takes the next records of a log."""
