"""The tables of a lake in a catalog of Iceberg, for whatever reads from there.

The lake's folder stays what a build goes on from. The catalog's tables get what is new in it, in files of
their own, so whoever runs the catalog may compact and expire them. PyIceberg writes them, without a JVM, so
the version of Spark does not matter: docs/decisions/iceberg-without-a-jvm.md.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from muster_server.verify.reader import LogUnreadableError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, LongType, NestedField, PrimitiveType, StringType

from muster_audit.lake.reading import DAY_DOC
from muster_audit.lake.row import OPEN, Column, Row, columns, schema_of
from muster_audit.lake.store import Lake, opened
from muster_audit.lake.tables import ALL

CLUSTER = "muster.cluster-id"
LAKE = "muster.lake"
RUN = "muster.run"
_PART_ROWS = 100_000
_CHUNK_ROWS = 500_000
_TYPES: dict[str, PrimitiveType] = {"bigint": LongType(), "string": StringType(), "boolean": BooleanType()}
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.parquet.row-group-limit": "100000",  # so that the rows of one shard are found among them
    "commit.manifest-merge.enabled": "true",  # else each run makes the list of files longer
}
_DAY = Column("day", "string", DAY_DOC)


def publish(folder: Path, catalog: str, namespace: str) -> dict[str, int]:
    """Brings the tables of a catalog up to a lake; returns the number of new final rows by table.

    Args:
        folder: of the lake.
        catalog: its name in PyIceberg's configuration.
        namespace: where the tables are; made where it is missing.

    Raises:
        LogUnreadableError: there is no such catalog, a table is of another cluster or a later version, or
            somebody else changed it meanwhile.
    """
    try:
        found = load_catalog(catalog)
    except ValueError as error:
        raise LogUnreadableError(f"catalog {catalog!r} cannot be loaded: {error}") from error
    with opened(folder) as lake:
        return IcebergTables(found, namespace).publish(lake)


class IcebergTables:
    """The tables of one lake in a namespace.

    Each table is changed by one commit for a run: the rows that were not final go, those that are not final
    now come, and so do all that became final since. The same commit notes the run in the table's properties,
    so a repetition does nothing, and what was interrupted between two tables is made up for.

    Args:
        catalog: the catalog.
        namespace: where the tables are.
    """

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog, self._namespace = catalog, namespace

    def publish(self, lake: Lake) -> dict[str, int]:
        """Brings every table up to a lake's last run; returns the number of new final rows by table.

        Raises:
            LogUnreadableError: see the function.
        """
        if not lake.run:
            return {}
        self._catalog.create_namespace_if_not_exists(self._namespace)
        return {name: self._bring_up(lake, row) for name, row in ALL.items()}

    def _bring_up(self, lake: Lake, row: type[Row]) -> int:
        table = self._table(lake, row)
        stated = table.properties
        same = stated.get(LAKE) == lake.id
        done = int(stated[RUN]) if same else 0
        if done == lake.run:
            return 0
        try:
            with table.transaction() as change:
                _evolve(change, row)
                change.set_properties({LAKE: lake.id, RUN: str(lake.run)})
                _remove(change, table, everything=not same)
                return _append(change, lake, row, done)
        except (CommitFailedException, ValidationException) as error:
            raise LogUnreadableError(
                f"table {row.table} of the catalog was changed by somebody else meanwhile, run again: {error}"
            ) from error

    def _table(self, lake: Lake, row: type[Row]) -> Table:
        """The table, made where it is missing.

        Raises:
            LogUnreadableError: it is of another cluster, or of a later version.
        """
        name = f"{self._namespace}.{row.table}"
        schema = _schema(row)
        day = PartitionField(schema.find_field("day").field_id, 1000, IdentityTransform(), "day")
        table = self._catalog.create_table_if_not_exists(
            name,
            schema,
            partition_spec=PartitionSpec(day),
            properties=_PROPERTIES | {CLUSTER: lake.cluster_id, "comment": inspect.getdoc(row) or ""},
        )
        cluster_id = table.properties.get(CLUSTER)
        if cluster_id != lake.cluster_id:
            raise LogUnreadableError(
                f"table {name} of the catalog is of cluster {cluster_id}, not of {lake.cluster_id}"
            )
        unknown = {field.name for field in table.schema().fields} - {one.name for one in _columns(row)}
        if unknown:
            raise LogUnreadableError(
                f"table {name} of the catalog has columns that this version does not know "
                f"({', '.join(sorted(unknown))}): a later version made it, use that one"
            )
        return table


def _columns(row: type[Row]) -> tuple[Column, ...]:
    return (*columns(row), _DAY)


def _schema(row: type[Row]) -> Schema:
    """The columns as Iceberg declares them, each with what it means."""
    return Schema(
        *(
            NestedField(number, one.name, _TYPES[one.type], required=False, doc=one.doc)
            for number, one in enumerate(_columns(row), 1)
        )
    )


def _evolve(change: Transaction, row: type[Row]) -> None:
    """Adds the columns that the table lacks, and says of each what it means now. Older files have nulls."""
    stored = {field.name: field.doc for field in change.table_metadata.schema().fields}
    with change.update_schema() as update:
        for one in _columns(row):
            if one.name not in stored:
                update.add_column(one.name, _TYPES[one.type], doc=one.doc)
            elif stored[one.name] != one.doc:
                update.update_column(one.name, doc=one.doc)


def _remove(change: Transaction, table: Table, *, everything: bool) -> None:
    """Removes the rows that were not final, or all where another lake made them: whole files each."""
    which = "true" if everything else f"day = '{OPEN}'"
    if next(iter(table.scan(row_filter=which).plan_files()), None) is not None:
        change.delete(which)


def _append(change: Transaction, lake: Lake, row: type[Row], done: int) -> int:
    """Appends what became final after that run, and what is not final now; returns how many are final."""
    final, waiting = 0, list[pa.Table]()
    for day, path in lake.files_since(row, done):
        for rows in _rows(row, day, path):
            waiting.append(rows)
            final += 0 if day == OPEN else len(rows)
            if sum(map(len, waiting)) >= _CHUNK_ROWS:
                change.append(pa.concat_tables(waiting))
                waiting = []
    if waiting:
        change.append(pa.concat_tables(waiting))
    return final


def _rows(row: type[Row], day: str, path: Path) -> Iterator[pa.Table]:
    """The rows of a file in parts, with their day; columns that it lacks are null."""
    schema = schema_of(row).remove_metadata()
    with pq.ParquetFile(path) as file:
        stored = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(_PART_ROWS, columns=stored):
            found = {
                field.name: batch.column(field.name)
                if field.name in stored
                else pa.nulls(len(batch), field.type)
                for field in schema
            }
            yield pa.table(found, schema).append_column("day", pa.array([day] * len(batch), pa.string()))
