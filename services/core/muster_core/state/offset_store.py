"""Committed offsets of one group."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import OFFSET_BYTES
from muster_core.state.published import TopicPartition

_MOVES_MAX = 100
"""Of so many topics at a time partitions are taken out of the order; of more it is made anew, when needed."""


class CommittedOffset(NamedTuple):
    """Progress in one partition.

    Attributes:
        offset: position to go on from.
        leader_epoch: epoch of the source; -1: unknown.
        metadata: the worker's own words.
        committed_at_ms: when it was stored, wall clock.
        expire_at_ms: when it goes whatever the group does, wall clock; 0: not.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int


def weight_of(partition: TopicPartition, metadata: str) -> int:
    """About what a committed offset takes in memory."""
    return OFFSET_BYTES + utf8_bytes(partition[0]) + utf8_bytes(metadata)


class OffsetStore:
    """What was committed. The order of the log decides: the later record wins.

    Attributes:
        table: by partition. Whoever sets entries calls `weigh`; only `remove` takes them out.
        held_bytes: about what it takes in memory.
    """

    __slots__ = ("_order", "held_bytes", "table")

    def __init__(self) -> None:
        self.table: dict[TopicPartition, CommittedOffset] = {}
        self.held_bytes = 0
        self._order: list[TopicPartition] = []

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        return iter(self.table.items())

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """What was committed for a partition; None: nothing."""
        return self.table.get(partition)

    def store(self, record: records_pb2.OffsetCommitted, written_at_ms: int) -> None:
        """Takes over an acknowledged commit."""
        for entry in record.offsets:
            self.put(
                (entry.topic, entry.partition),
                CommittedOffset(
                    entry.offset, entry.leader_epoch, entry.metadata, written_at_ms, record.expire_at_ms
                ),
            )

    def put(self, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Takes over what was committed for a partition."""
        before = self.table.get(partition)
        self.table[partition] = offset
        self.weigh(partition, before, offset)

    def weigh(
        self, partition: TopicPartition, before: CommittedOffset | None, offset: CommittedOffset
    ) -> None:
        """Counts what came in the place of something else, or of nothing."""
        if before is None:
            self.held_bytes += weight_of(partition, offset.metadata)
        else:
            self.held_bytes += utf8_bytes(offset.metadata) - utf8_bytes(before.metadata)

    def remove(self, topics: Sequence[common_pb2.TopicPartitions]) -> None:
        """Forgets partitions; those without an offset are passed over."""
        if len(topics) > _MOVES_MAX:
            self._order = []
        for entry in topics:
            self._remove(entry.topic, entry.partitions[:])

    def _remove(self, topic: str, numbers: Sequence[int]) -> None:
        table, held_bytes, each_bytes = self.table, self.held_bytes, weight_of((topic, 0), "")
        for number in numbers:
            gone = table.pop((topic, number), None)
            if gone is not None:
                held_bytes -= each_bytes + utf8_bytes(gone.metadata)
        self.held_bytes = held_bytes
        if self._order and numbers:
            order = self._order
            some = slice(
                bisect_left(order, (topic, min(numbers))), bisect_right(order, (topic, max(numbers)))
            )
            order[some] = [partition for partition in order[some] if partition in table]

    def after(self, partition: TopicPartition | None) -> Iterator[TopicPartition]:
        """The partitions in the order of topic and number, from the first one after that; None: all.

        Nothing may be stored or removed until the caller has seen enough.
        """
        order = self._order
        if len(order) != len(self.table):
            # Since it was sorted last, entries only came; a table keeps the order in which they did.
            came = list(islice(self.table, len(order), None))
            if order:
                order += came
                order.sort()
            else:
                came.sort(key=itemgetter(1))  # one after the other takes a third of the time
                came.sort(key=itemgetter(0))
                order = self._order = came
        begin = 0 if partition is None else bisect_right(order, partition)
        return (order[index] for index in range(begin, len(order)))
