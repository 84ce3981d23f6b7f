"""Records of one epoch that follow each other, decoded once for all who look at them."""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from muster_protos.muster.log.v1 import records_pb2

from muster_core.commits import Commits
from muster_core.position import Position

COMMIT = "offset_committed"
"""The kind that logs mostly consist of."""

_TAG = b"\xf2\x01"  # of the field offset_committed
_begin_of_a_commit = re.compile(rb"\x08[\x80-\xff]*[\x00-\x7f](?=\xf2\x01)").match  # its time, then the tag


class RecordRun:
    """Decoded records of a log.

    Args:
        first: place of the first one; the others follow it in its epoch without a gap.
        datas: their bytes.

    Attributes:
        kinds: what each is; empty: unknown.
        others: those that are no commits, by index.
        stretches: the commits between these: index of the first one, and they. No part of them is shared with
            the other records.

    Raises:
        DecodeError: one of them is no record.
    """

    __slots__ = ("datas", "first", "kinds", "others", "stretches")

    def __init__(self, first: Position, datas: Sequence[bytes]) -> None:
        self.first = first
        self.datas = datas
        self.others: Mapping[int, records_pb2.Record] = {}
        self.stretches: Sequence[tuple[int, Commits]] = ()
        if not self._decode_quickly():
            self._decode_each()
        self.kinds: list[str] = [COMMIT] * len(datas)
        for index, record in self.others.items():
            self.kinds[index] = record.WhichOneof("kind") or ""

    def __len__(self) -> int:
        return len(self.datas)

    @property
    def longest_bytes(self) -> int:
        """What the longest of the records takes in the log."""
        return max(map(len, self.datas))

    def position(self, index: int) -> Position:
        """Place of a record."""
        return self.first.after(index)

    def part(self, begin: int, end: int) -> "RecordRun":
        """Some of the records, as a run."""
        if (begin, end) == (0, len(self.datas)):
            return self
        return RecordRun(self.first.after(begin), self.datas[begin:end])

    def times_ms(self) -> list[int]:
        """When each record was made, wall clock."""
        times_ms = [0] * len(self.datas)
        for begin, commits in self.stretches:
            times_ms[begin : begin + len(commits)] = commits.written_at_ms
        for index, record in self.others.items():
            times_ms[index] = record.written_at_ms
        return times_ms

    def in_order(self) -> list[tuple[int, Commits | records_pb2.Record]]:
        """The stretches of commits and the other records, with the index of the first or only record."""
        parts: dict[int, Commits | records_pb2.Record] = {**dict(self.stretches), **self.others}
        return sorted(parts.items(), key=itemgetter(0))

    def _decode_quickly(self) -> bool:
        """Decodes the commits in columns; returns False where that cannot be done.

        Which records are commits is told by their beginnings. That is only guessed: a record that is no
        commit makes columns of unequal length.
        """
        tag_at = next((found.end() for found in map(_begin_of_a_commit, self.datas) if found), 0)
        rows = slice(tag_at, tag_at + len(_TAG))
        others = {}
        for index in [index for index, data in enumerate(self.datas) if data[rows] != _TAG]:
            record = records_pb2.Record.FromString(self.datas[index])
            if record.WhichOneof("kind") != COMMIT:
                others[index] = record
        stretches = []
        for begin, end in _gaps(others, len(self.datas)):
            commits = Commits.of_bytes(self.datas[begin:end])
            if commits is None:
                return False
            stretches.append((begin, commits))
        self.others, self.stretches = others, stretches
        return True

    def _decode_each(self) -> None:
        records = [records_pb2.Record.FromString(data) for data in self.datas]
        self.others = {
            index: record for index, record in enumerate(records) if record.WhichOneof("kind") != COMMIT
        }
        self.stretches = [
            (begin, Commits.of_messages(records[begin:end]))
            for begin, end in _gaps(self.others, len(records))
        ]


def _gaps(indexes: Mapping[int, object], count: int) -> list[tuple[int, int]]:
    """Begin and end of what lies between indexes, which go up, as far as there is something."""
    begins, ends = [0, *(index + 1 for index in indexes)], [*indexes, count]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]


FollowRun = Callable[[RecordRun], None]
"""Takes the next records of a log."""
