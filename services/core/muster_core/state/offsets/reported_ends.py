"""Where the work of a group's partitions ends, as its members report it."""

from collections.abc import Container, Iterable, Iterator, Sequence

from muster_protos.muster.v1 import common_pb2

from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import END_BYTES
from muster_core.state.published import TopicPartition


class ReportedEnds:
    """Ends of partitions, for people and for who adds workers; nothing is decided by them.

    They are in no log: a coordinator that takes the group over is told them again.

    Attributes:
        held_bytes: about what they take in memory.
    """

    __slots__ = ("_table", "held_bytes")

    def __init__(self) -> None:
        self._table: dict[TopicPartition, int] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[tuple[TopicPartition, int]]:
        return iter(self._table.items())

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """Those of which the end was reported by now."""
        return tuple(self._table)

    def get(self, partition: TopicPartition) -> int | None:
        """The end of a partition; None: nobody reported it."""
        return self._table.get(partition)

    def put(self, partition: TopicPartition, end: int) -> None:
        """A member has reported the end of a partition that it owns."""
        if partition not in self._table:
            self.held_bytes += _bytes_of(partition)
        self._table[partition] = end

    def keep_only(self, partitions: Container[TopicPartition]) -> None:
        """Forgets all others: nobody would report them again."""
        for gone in [partition for partition in self._table if partition not in partitions]:
            self._drop(gone)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions that nobody has any more."""
        for gone in partitions if self._table else ():
            self._drop(gone)

    def forget_topics(self, topics: Container[str]) -> None:
        """Forgets the partitions of topics that were deleted."""
        for gone in [partition for partition in self._table if partition[0] in topics]:
            self._drop(gone)

    def remove(self, topics: Iterable[common_pb2.TopicPartitions]) -> None:
        """Forgets partitions whose offsets are removed."""
        if self._table:
            for entry in topics:
                for number in entry.partitions:
                    self._drop((entry.topic, number))

    def _drop(self, partition: TopicPartition) -> None:
        if self._table.pop(partition, None) is not None:
            self.held_bytes -= _bytes_of(partition)


def _bytes_of(partition: TopicPartition) -> int:
    return END_BYTES + utf8_bytes(partition[0])
