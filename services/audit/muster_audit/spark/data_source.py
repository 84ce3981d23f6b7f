"""Spark's data sources over logs.

* `muster-log`: the entries themselves, decoded, batch and streaming, for questions in SQL;
* `muster-offsets`: what these commit and remove, by partition;
* `muster-audit`: what the pass over each log found (`muster_audit.reading.facts`), for the audit.

All take the option `address`: the nodes of a log, or the folder of an export.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from muster_core.log.page import Page
from muster_core.position import NOWHERE, Position
from muster_server.verify.anchors import ends_of
from muster_server.verify.reader import PAGE_ENTRIES, LogUnreadableError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from redis.exceptions import RedisError

from muster_audit.promises import Rules
from muster_audit.reading import entries, facts, reads, scan
from muster_audit.reading.sources import LogSource, open_source, steadily
from muster_audit.spark.plan import Piece, pieces_of, spread
from muster_audit.spark.pushdown import WantedLogs, wanted_columns

_TASKS = 4
_RANGE_ENTRIES = 2_000_000
_BATCH_ENTRIES = 500_000

MakeBatch = Callable[[int, Page], pa.RecordBatch]
"""Makes rows of a page of a log."""


class Checks(InputPartition):
    """Logs that one task checks."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class AuditSource(DataSource):
    """`muster-audit`: options `address`, `tasks`, `all_nodes`, and the fields of `ScanOptions`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "muster-audit"

    def schema(self) -> str:
        """One column for each kind of fact."""
        return facts.DDL

    def reader(self, schema: object) -> "AuditReader":
        """The batch reader."""
        return AuditReader(self.options)


class AuditReader(DataSourceReader):
    """Runs the checks where the entries are read: only what was found goes to Spark."""

    def __init__(self, options: dict[str, str]) -> None:
        self._address = options["address"]
        self._tasks = int(options.get("tasks", str(_TASKS)))
        self._options = scan.ScanOptions(
            rules=Rules(options.get("rules", Rules.ALL)),
            memory_mb=int(options.get("memory_mb", "256")),
            page_entries=int(options.get("page_entries", str(PAGE_ENTRIES))),
            span_ms=int(options.get("span_ms", "60000")),
            began_ms=int(options.get("began_ms", "0")),
            compare=options.get("all_nodes", "false") == "true",
            max_group_size=int(options.get("max_group_size", "5000")),
            anchor=ends_of(json.loads(options.get("anchor", "{}"))),
        )

    def partitions(self) -> Sequence[Checks]:
        """Logs spread over tasks."""
        source = open_source(self._address)
        try:
            pieces = steadily(source, partial(pieces_of, source, all_nodes=self._options.compare))
        finally:
            source.close()
        return [Checks(task) for task in spread(pieces, self._tasks)]

    def read(self, partition: Checks) -> Iterator[pa.RecordBatch]:
        """Checks the logs of one task."""
        source = open_source(self._address)
        try:
            yield from facts.batches(self._facts(source, partition.pieces))
        finally:
            source.close()

    def _facts(self, source: LogSource, pieces: tuple[Piece, ...]) -> Iterator[facts.Fact]:
        for piece in pieces:
            log = scan.digest_log if piece.copy else scan.audit_log
            yield from log(source, piece.shard, self._options, piece.node)


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one log: after the first place, up to and with the second."""

    shard: int
    after: Position
    upto: Position


class Ranges(InputPartition):
    """Entries that one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class EntriesSource(DataSource):
    """`muster-log`: options `address`, `tasks`, `payload` (`true`, `false`); for a stream `max_rows`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "muster-log"

    def schema(self) -> str:
        """The columns of an entry."""
        return entries.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader."""
        return EntriesReader(self.options, self._batch(schema))

    def streamReader(self, schema: StructType) -> "EntriesStream":
        """The streaming reader."""
        return EntriesStream(self.options, self._batch(schema))

    @property
    def tasks(self) -> int:
        """The most tasks of a batch."""
        return int(self.options.get("tasks", str(_TASKS)))

    def _batch(self, schema: StructType) -> MakeBatch:
        return partial(
            entries.entries_batch,
            schema=wanted_columns(entries.SCHEMA, schema),
            payload=self.options.get("payload", "true") == "true",
        )


class OffsetsSource(DataSource):
    """`muster-offsets`: options `address`, `tasks`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "muster-offsets"

    def schema(self) -> str:
        """The columns of a change."""
        return reads.CHANGES_DDL

    def reader(self, schema: object) -> "EntriesReader":
        """The batch reader."""
        return EntriesReader(self.options, reads.changes_batch)


class _Entries:
    """Reads ranges of entries; `batch` makes rows of a page."""

    def __init__(self, options: dict[str, str], batch: MakeBatch) -> None:
        self.address = options["address"]
        self.tasks = int(options.get("tasks", str(_TASKS)))
        self.batch = batch

    def read(self, partition: Ranges) -> Iterator[pa.RecordBatch]:
        """The entries of one task, up to the acknowledged positions that it was planned with."""
        source = open_source(self.address)
        try:
            for one in partition.ranges:
                node = source.best_node(one.shard)
                for page in source.pages(one.shard, node, one.upto, PAGE_ENTRIES, after=one.after):
                    if page:
                        yield self.batch(one.shard, page)
        except RedisError as error:
            raise LogUnreadableError(f"a node was lost while it was read: {error}") from error
        finally:
            source.close()


class EntriesReader(DataSourceReader):
    """All entries up to the acknowledged positions; long logs in several ranges."""

    def __init__(self, options: dict[str, str], batch: MakeBatch) -> None:
        self._entries, self._wanted = _Entries(options, batch), WantedLogs()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Passes over logs that filters on `shard` exclude; yields what is left to Spark."""
        return self._wanted.push(filters)

    def partitions(self) -> Sequence[Ranges]:
        """Ranges spread over tasks."""
        source = open_source(self._entries.address)
        try:
            pieces: dict[Piece, Range] = {}
            for shard in self._wanted.of(source.logs()):
                acknowledged = source.acknowledged(shard)
                for one in _cut(source, shard, acknowledged):
                    pieces[Piece(shard, one.after.offset, one.upto.offset - one.after.offset)] = one
        finally:
            source.close()
        tasks = spread(list(pieces), self._entries.tasks) or [()]  # Spark wants one at least
        return [Ranges(tuple(pieces[piece] for piece in task)) for task in tasks]

    def read(self, partition: Ranges) -> Iterator[pa.RecordBatch]:
        """The entries of one task."""
        return self._entries.read(partition)


class EntriesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """New entries; an offset is a position for each log, so a query goes on from its checkpoint."""

    def __init__(self, options: dict[str, str], batch: MakeBatch) -> None:
        self._entries = _Entries(options, batch)
        self._max_rows = int(options.get("max_rows", str(_BATCH_ENTRIES)))
        if self._max_rows < 1:
            raise ValueError(f"max_rows {self._max_rows}: a batch takes at least 1 entry")
        self._last: dict[int, Position] = {}

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes the acknowledged positions: a query for what is there now ends with them."""
        source = open_source(self._entries.address)
        try:
            self._last = {shard: source.acknowledged(shard) for shard in source.logs()}
        finally:
            source.close()

    def initialOffset(self) -> dict[str, str]:
        """Before everything."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most `max_rows` entries in a batch, where the trigger allows a limit."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """The acknowledged positions now, of each log at most its share of `max_rows` further."""
        source = open_source(self._entries.address)
        try:
            ends = self._last or {shard: source.acknowledged(shard) for shard in source.logs()}
            ends = {shard: max(end, _parse(start.get(str(shard), ""))) for shard, end in ends.items()}
            if not isinstance(limit, ReadAllAvailable):
                share = max(self._max_rows // len(ends), 1)
                for shard, end in ends.items():
                    ends[shard] = _limited(source, shard, _parse(start.get(str(shard), "")), end, share)
            return {str(shard): end.stream_id for shard, end in ends.items()}
        finally:
            source.close()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[Ranges]:
        """What is new of each log, spread over tasks."""
        pieces: dict[Piece, Range] = {}
        for shard, upto in end.items():
            one = Range(int(shard), _parse(start.get(shard, "")), Position.parse(upto))
            if one.upto > one.after:
                pieces[Piece(int(shard), 0, one.upto.offset - one.after.offset)] = one
        return [
            Ranges(tuple(pieces[piece] for piece in task))
            for task in spread(list(pieces), self._entries.tasks)
        ]

    def read(self, partition: Ranges) -> Iterator[pa.RecordBatch]:
        """The entries of one task."""
        return self._entries.read(partition)


def _parse(text: str) -> Position:
    return Position.parse(text) if text else NOWHERE


def _limited(source: LogSource, shard: int, after: Position, end: Position, count: int) -> Position:
    """The place that is so many entries further, if the end is not nearer."""
    first = source.first(shard, source.best_node(shard)).offset
    offset = max(after.offset, first - 1) + count
    return end if end.offset <= offset else source.place_of(shard, offset) or end


def _cut(source: LogSource, shard: int, acknowledged: Position) -> Iterator[Range]:
    """A log in ranges of at most `_RANGE_ENTRIES`."""
    after = NOWHERE
    while acknowledged.offset - after.offset > _RANGE_ENTRIES:
        upto = source.place_of(shard, after.offset + _RANGE_ENTRIES)
        if upto is None or not after < upto < acknowledged:
            break
        yield Range(shard, after, upto)
        after = upto
    yield Range(shard, after, acknowledged)


def register(spark: SparkSession, log: type[EntriesSource] = EntriesSource) -> None:
    """Makes the formats known to a session.

    Args:
        spark: the session.
        log: what `muster-log` is.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # else Spark refuses who takes filters
    for source in (AuditSource, OffsetsSource, log):
        spark.dataSource.register(source)
