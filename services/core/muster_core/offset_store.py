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
    """What was committed, by partition. The order of the log decides: the later record wins."""

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        return iter(self._offsets.items())

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """What was committed for a partition; None: nothing."""
        return self._offsets.get(partition)

    def store(self, record: records_pb2.OffsetCommitted, written_at_ms: int) -> None:
        """Takes over an acknowledged commit."""
        offsets, new, expire_at_ms = self._offsets, tuple.__new__, record.expire_at_ms
        entries = record.offsets  # to iterate the field itself takes twice as long
        for entry in entries[:] if len(entries) != 1 else (entries[0],):
            offsets[entry.topic, entry.partition] = new(
                CommittedOffset,
                (entry.offset, entry.leader_epoch, entry.metadata, written_at_ms, expire_at_ms),
            )

    def restore(self, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Takes over what a snapshot says of a partition."""
        self._offsets[partition] = offset

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions; those without an offset are passed over."""
        for partition in partitions:
            self._offsets.pop(partition, None)
