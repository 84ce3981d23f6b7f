"""Commits of a log in columns: decoded many at a time they cost half of what they cost one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from muster_core.state.offsets.offset_store import CommittedValues
from muster_core.state.published import TopicPartition

CommitRow = tuple[str, str, int, int, int]
"""Group, member (empty: from outside), generation (-1: from outside), number (0: none), time."""

CommittedRow = tuple[str, str, int, TopicPartition, CommittedValues]
"""Group, member and number of a commit, and what it says of one partition."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits of a log, in order: columns with a value per commit, and with a value per partition of each.

    Attributes:
        written_at_ms: when it was made, wall clock.
        group_ids: its group.
        generations: the generation it was made in; -1: from outside.
        member_ids: who made it; empty: from outside.
        member_seqs: its number; 0: none.
        expire_at_ms: when it expires whatever the group does, wall clock; 0: not.
        counts: how many partitions it is about; None: each is about one.
        topics: of each partition its topic.
        partitions: its number.
        offsets: the position to go on from.
        leader_epochs: epoch of the source; -1: unknown.
        metadatas: the worker's own words.
    """

    written_at_ms: Sequence[int]
    group_ids: Sequence[str]
    generations: Sequence[int]
    member_ids: Sequence[str]
    member_seqs: Sequence[int]
    expire_at_ms: Sequence[int]
    counts: Sequence[int] | None
    topics: Sequence[str]
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadatas: Sequence[str]

    def __len__(self) -> int:
        return len(self.group_ids)

    def rows(self) -> Iterator[CommitRow]:
        """The commits one by one."""
        return zip(
            self.group_ids,
            self.member_ids,
            self.generations,
            self.member_seqs,
            self.written_at_ms,
            strict=True,
        )

    def rows_by_partition(self) -> Iterator[CommittedRow]:
        """The offsets of the commits, partition by partition."""
        committed = zip(
            self.offsets,
            self.leader_epochs,
            self.metadatas,
            self._repeated(self.written_at_ms),
            self._repeated(self.expire_at_ms),
            strict=True,
        )
        return zip(
            self._repeated(self.group_ids),
            self._repeated(self.member_ids),
            self._repeated(self.member_seqs),
            zip(self.topics, self.partitions, strict=True),
            committed,
            strict=True,
        )

    def _repeated(self, column: Sequence[_Value]) -> Sequence[_Value]:
        """A value per commit as a value per partition."""
        if self.counts is None:
            return column
        return [value for value, count in zip(column, self.counts, strict=True) for _ in range(count)]

    def in_lists(self) -> "Commits":
        """The columns as lists: a column of a message makes its values anew each time that it is read."""
        return Commits(
            self.written_at_ms[:],
            self.group_ids[:],
            self.generations[:],
            self.member_ids[:],
            self.member_seqs[:],
            self.expire_at_ms[:],
            self.counts,
            self.topics[:],
            self.partitions[:],
            self.offsets[:],
            self.leader_epochs[:],
            self.metadatas[:],
        )

    @classmethod
    def of_messages(cls, records: Sequence[records_pb2.Record]) -> "Commits":
        """The columns of decoded records, each of which is a commit."""
        commits = [record.offset_committed for record in records]
        entries = [entry for commit in commits for entry in commit.offsets]
        return cls(
            [record.written_at_ms for record in records],
            [commit.group_id for commit in commits],
            [commit.generation for commit in commits],
            [commit.member_id for commit in commits],
            [commit.member_seq for commit in commits],
            [commit.expire_at_ms for commit in commits],
            [len(commit.offsets) for commit in commits],
            [entry.topic for entry in entries],
            [entry.partition for entry in entries],
            [entry.offset for entry in entries],
            [entry.leader_epoch for entry in entries],
            [entry.metadata for entry in entries],
        )

    @classmethod
    def of_bytes(cls, datas: Sequence[bytes]) -> "Commits | None":
        """The columns of serialised records; None: one is no commit, or lacks a field.

        A serialised message holds a field that is not repeated once at most, so where there are as many
        values of a field as messages, each message has its own.

        Raises:
            DecodeError: one of them is no record.
        """
        joined = metadata_pb2.JoinedCommits.FromString(b"".join(datas))
        messages = joined.commits[:]
        columns = metadata_pb2.CommitColumns.FromString(b"".join(messages))
        entries = columns.offsets[:]
        rows = metadata_pb2.OffsetColumns.FromString(b"".join(entries))
        one_each = len(entries) == len(datas)
        commits = cls(
            joined.written_at_ms,
            columns.group_id,
            columns.generation,
            columns.member_id,
            columns.member_seq,
            columns.expire_at_ms or [0] * len(datas),
            None if one_each else [_count_of(message) for message in messages],
            rows.topic,
            rows.partition,
            rows.offset,
            rows.leader_epoch,
            rows.metadata,
        )
        return commits if commits._are_even(len(datas), len(messages), len(entries)) else None

    def _are_even(self, records: int, commits: int, entries: int) -> bool:
        """Whether no column misses a value."""
        by_commit = (
            self.written_at_ms,
            self.group_ids,
            self.generations,
            self.member_ids,
            self.member_seqs,
            self.expire_at_ms,
        )
        by_entry = (self.topics, self.partitions, self.offsets, self.leader_epochs, self.metadatas)
        return (
            commits == records
            and all(len(column) == commits for column in by_commit)
            and all(len(column) == entries for column in by_entry)
        )


def _count_of(commit: bytes) -> int:
    return len(metadata_pb2.CommitColumns.FromString(commit).offsets)
