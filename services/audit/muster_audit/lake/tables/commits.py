"""Progress: what was committed, and what was removed of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Annotated, Any, ClassVar, TypeVar

import pyarrow as pa
from muster_core.log.commits import Commits as Columns
from muster_core.log.record_run import RecordRun
from muster_core.state.published import partitions_of
from muster_protos.muster.log.v1 import records_pb2

from muster_audit.lake.row import Place, Row, day_of
from muster_audit.lake.tracker import Take, Tracker

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Commit(Row):
    """The progress of a group in one partition, as one record stores it, or the removal of it.

    A commit of several partitions is as many rows. What goes with its group has no row.
    """

    table: ClassVar[str] = "commits"

    written_at_ms: Annotated[int, "When it was written: wall clock of the writer, ms since the Unix epoch."]
    group_id: Annotated[str, "The group."]
    generation: Annotated[int | None, "Generation it was made in; -1: from outside the group."] = None
    member_id: Annotated[str | None, "Who made it; empty: from outside the group."] = None
    member_seq: Annotated[int | None, "Number that the member gave it; 0: none, null: above 2^63 - 1."] = None
    topic: Annotated[str, "Topic of the partition."]
    partition: Annotated[int, "Number of the partition."]
    committed_offset: Annotated[int | None, "Position to go on from; null: it was removed."] = None
    leader_epoch: Annotated[int | None, "Epoch of the source; -1: not known."] = None
    metadata: Annotated[str | None, "The worker's own words."] = None
    expire_at_ms: Annotated[int | None, "When it expires whatever the group does, wall clock; 0: not."] = None
    removed: Annotated[str | None, "Why it was removed, e.g. `expired`; null: it was committed."] = None

    @property
    def day(self) -> str:
        """The UTC day of the record."""
        return day_of(self.written_at_ms)


class Commits(Tracker[Commit]):
    """Takes commits, in columns, and removals. Nothing of them is carried on."""

    row = Commit

    @property
    def takes(self) -> Mapping[str, Take[Commit]]:
        """What it does with which kind of record."""
        return {"offset_tombstone": self._offset_tombstone}

    def resume(self, row: Commit) -> None:
        """There are none: each row is final."""

    def running(self) -> Iterator[Commit]:
        """None: each row is final."""
        return iter(())

    def _offset_tombstone(self, at: Place, message: records_pb2.OffsetTombstone) -> Iterator[Commit]:
        for topic, partition in partitions_of(message.topics):
            yield Commit(
                shard=at.shard,
                epoch=at.position.epoch,
                offset=at.position.offset,
                written_at_ms=at.at_ms,
                group_id=message.group_id,
                topic=topic,
                partition=partition,
                removed=message.reason,
            )


def commits_batch(shard: int, run: RecordRun, schema: pa.Schema) -> pa.RecordBatch:
    """The commits of a run as rows of the table, with the columns of a schema."""
    commits, first, count = run.commits, run.first, len(run.commits.topics)
    columns: dict[str, Callable[[], Sequence[Any]]] = {
        "shard": lambda: [shard] * count,
        "epoch": lambda: [first.epoch] * count,
        "offset": lambda: _each(commits, run.without_others(range(first.offset, first.offset + len(run)))),
        "written_at_ms": lambda: commit_times_ms(run),
        "group_id": lambda: _each(commits, commits.group_ids),
        "generation": lambda: _each(commits, commits.generations),
        "member_id": lambda: _each(commits, commits.member_ids),
        "member_seq": lambda: _each(commits, _in_64_bits(commits.member_seqs)),
        "topic": lambda: commits.topics,
        "partition": lambda: commits.partitions,
        "committed_offset": lambda: commits.offsets,
        "leader_epoch": lambda: commits.leader_epochs,
        "metadata": lambda: commits.metadatas,
        "expire_at_ms": lambda: _each(commits, commits.expire_at_ms),
        "removed": lambda: [None] * count,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name](), field.type) for field in schema], schema=schema
    )


def commit_times_ms(run: RecordRun) -> Sequence[int]:
    """When each row of the commits of a run was written."""
    return _each(run.commits, run.commits.written_at_ms)


def _each(commits: Columns, values: Sequence[T]) -> Sequence[T]:
    """What each commit has, for each of its partitions."""
    if commits.counts is None:
        return values
    return list(chain.from_iterable(map(repeat, values, commits.counts)))


def _in_64_bits(numbers: Sequence[int]) -> Sequence[int | None]:
    """Numbers as a column can hold them; version 0.1 stored larger ones, if a caller gave them."""
    most = 2**63 - 1
    return numbers if max(numbers, default=0) <= most else [None if n > most else n for n in numbers]
