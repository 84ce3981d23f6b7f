"""Committed offsets of one group."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2

from muster_core.published import TopicPartition


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
        table: by partition.
    """

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[TopicPartition, CommittedOffset] = {}

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
        for partition in partitions:
            self.table.pop(partition, None)
