"""Committed offsets of one group."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2

from muster_core.state.published import TopicPartition


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


class OffsetStore:
    """What was committed. The order of the log decides: the later record wins.

    Attributes:
        table: by partition. Entries may be set from outside; only `remove` takes them out.
    """

    __slots__ = ("_order", "table")

    def __init__(self) -> None:
        self.table: dict[TopicPartition, CommittedOffset] = {}
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
            self.table[entry.topic, entry.partition] = CommittedOffset(
                entry.offset, entry.leader_epoch, entry.metadata, written_at_ms, record.expire_at_ms
            )

    def restore(self, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Takes over what a snapshot says of a partition."""
        self.table[partition] = offset

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions; those without an offset are passed over."""
        self._order = []
        for partition in partitions:
            self.table.pop(partition, None)

    def after(self, partition: TopicPartition | None) -> Iterator[TopicPartition]:
        """The partitions in the order of topic and number, from the first one after that; None: all.

        Nothing may be stored or removed until the caller has seen enough.
        """
        order = self._order
        if len(order) != len(self.table):
            # Since it was sorted last, entries only came; a table keeps the order in which they did.
            order += islice(self.table, len(order), None)
            order.sort()
        begin = 0 if partition is None else bisect_right(order, partition)
        return (order[index] for index in range(begin, len(order)))
