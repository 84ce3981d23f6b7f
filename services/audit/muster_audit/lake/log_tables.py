"""A table of the lake, made of a log as it is now: `muster-log` with the option `table`."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from muster_server.verify.reader import LogUnreadableError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType
from redis.exceptions import RedisError

from muster_audit.lake.decoder import Decoder, Part
from muster_audit.lake.log_reading import final_rows
from muster_audit.lake.reading import DAY_DOC, ddl
from muster_audit.lake.tables import ALL, SCHEMAS
from muster_audit.reading.sources import LogSource, open_source
from muster_audit.spark.data_source import EntriesSource, EntriesStream
from muster_audit.spark.data_source import register as register_sources
from muster_audit.spark.plan import Piece, spread
from muster_audit.spark.pushdown import WantedLogs, wanted_columns

_DAY = pa.field("day", pa.string())


class TablesSource(EntriesSource):
    """`muster-log` with one option more: `table`, whose rows are given instead of the entries."""

    def schema(self) -> str:
        """The columns of the table, or of an entry."""
        table = self.options.get("table", "")
        return table_ddl(table) if table else super().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader."""
        table = self.options.get("table", "")
        if not table:
            return super().reader(schema)
        return TableReader(self.options["address"], self.tasks, table, schema)

    def streamReader(self, schema: StructType) -> EntriesStream:
        """The streaming reader, of entries."""
        if self.options.get("table"):
            raise ValueError("a table is no stream, for later entries change its rows: stream the entries")
        return super().streamReader(schema)


def register(spark: SparkSession) -> None:
    """Makes the formats known to a session, `muster-log` with its tables."""
    register_sources(spark, log=TablesSource)


def table_ddl(table: str) -> str:
    """The columns of a table with what they mean.

    Raises:
        ValueError: there is no such table.
    """
    if table not in ALL:
        raise ValueError(f"there is no table {table!r}; there are {', '.join(ALL)}")
    return f"{ddl(ALL[table])}, day string COMMENT '{DAY_DOC}'"


class Logs(InputPartition):
    """Logs that one task decodes."""

    def __init__(self, shards: tuple[int, ...]) -> None:
        super().__init__(None)
        self.shards = shards


class TableReader(DataSourceReader):
    """Decodes whole logs, from their beginnings, into one table, with the columns that are wanted.

    Args:
        address: the nodes of the logs, or the folder of an export.
        tasks: the most tasks.
        table: name of the table.
        schema: the columns that are wanted.
    """

    def __init__(self, address: str, tasks: int, table: str, schema: StructType) -> None:
        self._address, self._tasks, self._table = address, tasks, table
        self._schema = wanted_columns(SCHEMAS[table].append(_DAY), schema)
        self._wanted = WantedLogs()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Passes over logs that filters on `shard` exclude; yields what is left to Spark."""
        return self._wanted.push(filters)

    def partitions(self) -> Sequence[Logs]:
        """Logs spread over tasks."""
        source = open_source(self._address)
        try:
            pieces = [
                Piece(shard, 0, source.length(shard, source.best_node(shard)))
                for shard in self._wanted.of(source.logs())
            ]
        finally:
            source.close()
        tasks = spread(pieces, self._tasks) or [()]  # Spark wants one at least
        return [Logs(tuple(piece.shard for piece in task)) for task in tasks]

    def read(self, partition: Logs) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        source = open_source(self._address)
        try:
            for shard in partition.shards:
                for _, day, rows in self._parts(source, shard):
                    yield self._with_day(rows, day)
        except RedisError as error:
            raise LogUnreadableError(f"a node was lost while it was read: {error}") from error
        finally:
            source.close()

    def _parts(self, source: LogSource, shard: int) -> Iterator[Part]:
        stored = pa.schema([field for field in self._schema if field.name != _DAY.name])
        decoder = Decoder(shard, wanted={self._table: stored})
        yield from final_rows(source, shard, decoder)
        yield from decoder.running()

    def _with_day(self, rows: pa.RecordBatch, day: str) -> pa.RecordBatch:
        index = self._schema.get_field_index(_DAY.name)
        arrays = list(rows.columns)
        if index >= 0:
            arrays.insert(index, pa.array([day] * len(rows), pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
