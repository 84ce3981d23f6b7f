"""Records of one epoch that follow each other, decoded once for all who look at them."""

from collections.abc import Callable, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core.position import Position

COMMIT = "offset_committed"
"""The kind that logs mostly consist of."""


class RecordRun:
    """Decoded records of a log.

    Args:
        first: place of the first one; the others follow it in its epoch without a gap.
        kinds: what each is; empty: unknown.
        records: they. Parts of a commit must not be kept: commits are decoded together, so it would keep them
            all.
        longest_bytes: what the longest of them takes in the log.

    Attributes:
        others: the indexes of those that are no commits.
    """

    __slots__ = ("first", "kinds", "longest_bytes", "others", "records")

    def __init__(
        self,
        first: Position,
        kinds: Sequence[str],
        records: Sequence[records_pb2.Record],
        longest_bytes: int,
    ) -> None:
        self.first = first
        self.kinds = kinds
        self.records = records
        self.longest_bytes = longest_bytes
        self.others = [index for index, kind in enumerate(kinds) if kind != COMMIT]

    @classmethod
    def of_one(cls, position: Position, record: records_pb2.Record) -> "RecordRun":
        """A single record."""
        return cls(position, [record.WhichOneof("kind") or ""], [record], record.ByteSize())

    def commits(self) -> list[tuple[int, int]]:
        """First index and end of the commits before each other record, and of those behind the last one.

        So a record of another kind stands at each end but the last one.
        """
        return list(
            zip([0, *[index + 1 for index in self.others]], [*self.others, len(self.kinds)], strict=True)
        )

    def position(self, index: int) -> Position:
        """Place of a record."""
        return self.first.after(index)


FollowRun = Callable[[RecordRun], None]
"""Takes the next records of a log."""
