"""A commit as the records that hold it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from muster_protos.muster.log.v1 import records_pb2

from muster_core.record_bounds import RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

PART_BYTES = 64 << 10
"""Of a commit that is larger each record has about this size: to carry one out takes some milliseconds."""

_ENTRY_BYTES = 48
"""What an offset takes in a record besides its texts, at most: its numbers, and the lengths of everything."""


class CommitTooLarge(Exception):
    """A commit takes more bytes than one may."""


class CommitRecords:
    """What a commit stores: one record, or several where it is large.

    All are stored together. Who reads the log takes it in record by record, each at a stretch (LIM-56). They
    are written one after the other, and their size is counted by the way: a message that is asked for its
    size encodes itself for that, and a commit may have megabytes.

    Args:
        new: makes a record of the commit, without offsets.
        max_bytes: what they may take in the log.

    Attributes:
        records: in order; the number of the commit is in the last one, so that it is there once.
        size_bytes: what they take in the log, or a little more.
    """

    __slots__ = ("_left_bytes", "_max_bytes", "_new", "_offsets", "records", "size_bytes")

    def __init__(self, new: Callable[[], records_pb2.Record], max_bytes: int) -> None:
        self._new = new
        self._max_bytes = max_bytes
        self.records: list[records_pb2.Record] = []
        self.size_bytes = 0
        self._begin()

    @property
    def group_id(self) -> str:
        """The group that it is of."""
        return self.records[0].offset_committed.group_id

    @property
    def count(self) -> int:
        """How many partitions it is about."""
        return sum([len(record.offset_committed.offsets) for record in self.records])

    def entries(self) -> Iterator[records_pb2.CommittedOffset]:
        """What it says of each partition."""
        for record in self.records:
            yield from record.offset_committed.offsets

    def place_of(self, text_bytes: int) -> "RepeatedCompositeFieldContainer[records_pb2.CommittedOffset]":
        """Where the next offset goes; text_bytes: how long its topic and metadata are, in UTF-8.

        Raises:
            CommitTooLarge: it would be one too many.
        """
        if self._left_bytes <= 0:
            self.records[-1].offset_committed.member_seq = 0
            self._begin()
        needs_bytes = _ENTRY_BYTES + text_bytes
        self.size_bytes += needs_bytes
        if self.size_bytes > self._max_bytes:
            raise CommitTooLarge
        self._left_bytes -= needs_bytes
        return self._offsets

    def _begin(self) -> None:
        record = self._new()
        self.records.append(record)
        self.size_bytes += record.ByteSize() + RECORD_OVERHEAD_BYTES
        self._offsets = record.offset_committed.offsets
        self._left_bytes = PART_BYTES
