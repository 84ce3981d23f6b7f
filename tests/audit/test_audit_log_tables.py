"""`muster-log`: tables made of the log, and that only what is asked for is read and built."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow as pa
from kit.logs.drawn_logs import drawn
from kit.logs.lake_folders import expected, export, in_order
from kit.logs.log_builder import LogBuilder
from muster_audit.lake.log_tables import TablesSource, register
from muster_audit.lake.reading import DAY_DOC
from muster_audit.lake.row import columns
from muster_audit.lake.tables import ALL
from muster_audit.reading import entries
from muster_audit.reading.exported import ShardExport
from muster_core.log.page import Page
from muster_core.position import Position
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThan, In, IsNotNull
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHARDS = 4
TABLES = [name for name in ALL if name not in ("topics", "operations")]  # these are of the catalog alone


@pytest.fixture(scope="module")
def logs() -> list[LogBuilder]:
    return [drawn(20 + shard, 60, shard, SHARDS) for shard in range(SHARDS)]


@pytest.fixture
def folder(logs: list[LogBuilder], tmp_path: Path) -> Path:
    for built in logs:
        export(tmp_path / "export", built)
    return tmp_path / "export"


@pytest.fixture
def read_entries(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many entries of which log were read."""
    counted = Counter[int]()
    whole = ShardExport.pages

    def pages(self: ShardExport, upto: Position, after: Position, count: int) -> Iterator[Page]:
        for page in whole(self, upto, after, count):
            counted[self.shard] += len(page)
            yield page

    monkeypatch.setattr(ShardExport, "pages", pages)
    return counted


def struct(ddl: str) -> StructType:
    """What Spark makes of columns without comments; it needs a session for that."""
    types: dict[str, DataType] = {
        "bigint": LongType(),
        "string": StringType(),
        "boolean": BooleanType(),
        "binary": BinaryType(),
    }
    types["int"] = IntegerType()
    pairs = [one.split() for one in ddl.split(", ")]
    return StructType([StructField(name, types[type_]) for name, type_ in pairs])


def reader_of(folder: Path, ddl: str = "", table: str = "") -> DataSourceReader:
    source = TablesSource({"address": str(folder), "table": table})
    if table:
        every = ", ".join([*(f"{one.name} {one.type}" for one in columns(ALL[table])), "day string"])
    else:
        every = source.schema()
    return source.reader(struct(ddl or every))


def rows_of(reader: DataSourceReader) -> list[dict[str, Any]]:
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("table", ALL)
def test_a_table_of_the_log_is_that_of_the_lake(table: str, folder: Path, logs: list[LogBuilder]) -> None:
    assert in_order(rows_of(reader_of(folder, table=table))) == expected(*logs)[table]


@pytest.mark.parametrize("table", ["", *TABLES])
def test_one_shard_reads_one_log(
    table: str, folder: Path, read_entries: Counter[int], logs: list[LogBuilder]
) -> None:
    reader = reader_of(folder, table=table)
    later = GreaterThan(("offset",), 5)
    left = list(reader.pushFilters([IsNotNull(("shard",)), EqualTo(("shard",), 3), later]))
    assert left == [IsNotNull(("shard",)), later]
    read_entries.clear()
    assert {row["shard"] for row in rows_of(reader)} == {3}
    assert read_entries == {3: len(logs[3].entries)}


def test_filters_on_shards_narrow_each_other_down_to_nothing(folder: Path) -> None:
    reader = reader_of(folder)
    assert list(reader.pushFilters([In(("shard",), (1, 2, 9)), In(("shard",), (2, 3))])) == []
    assert {row["shard"] for row in rows_of(reader)} == {2}
    assert list(reader.pushFilters([EqualTo(("shard",), 7)])) == []
    assert rows_of(reader) == []


@pytest.mark.parametrize(
    ("table", "ddl"),
    [
        ("", "offset bigint, shard bigint"),
        ("commits", "committed_offset bigint, group_id string"),
        ("assignments", "member_id string, to_ms bigint"),
    ],
)
def test_two_columns_build_two(
    table: str, ddl: str, folder: Path, logs: list[LogBuilder], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(folder, ddl, table=table)
    built: list[int] = []
    array = pa.array

    def counted(*args: Any, **kwargs: Any) -> pa.Array:
        built.append(1)
        return array(*args, **kwargs)

    monkeypatch.setattr(pa, "array", counted)
    monkeypatch.setattr(entries, "_row", lambda _: pytest.fail("a record was decoded"))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    names = [one.split()[0] for one in ddl.split(", ")]
    assert all(batch.schema.names == names for batch in batches)
    assert len(built) == 2 * len(batches) > 0
    if table:
        wanted = [{name: row[name] for name in names} for row in expected(*logs)[table]]
        found = [row for batch in batches for row in batch.to_pylist()]
        assert in_order(found) == in_order(wanted)


def test_unknown_tables_and_columns_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="no table 'offsets'; there are generations, members"):
        TablesSource({"address": str(folder), "table": "offsets"}).schema()
    with pytest.raises(ValueError, match="no column 'mood'; there are shard, epoch"):
        reader_of(folder, "mood string", table="members")
    with pytest.raises(ValueError, match="column 'shard' is bigint, not int"):
        reader_of(folder, "shard int")
    source = TablesSource({"address": str(folder), "table": "members"})
    with pytest.raises(ValueError, match="a table is no stream"):
        source.streamReader(struct("shard bigint"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_spark_pushes_the_shard_down_and_reads_named_columns(
    spark: "SparkSession", folder: Path, logs: list[LogBuilder]
) -> None:
    register(spark)
    source = spark.read.format("muster-log").option("address", str(folder))
    commits = source.option("table", "commits").load()
    assert in_order([row.asDict() for row in commits.collect()]) == expected(*logs)["commits"]
    assert {one.name: one.metadata["comment"] for one in commits.schema} == {
        one.name: one.doc for one in columns(ALL["commits"])
    } | {"day": DAY_DOC}
    for shard in (0, 1, 2):  # a log that is not read may be damaged
        for path in (folder / f"shard={shard}").glob("day=*/*.parquet"):
            path.write_bytes(b"damaged")
    members = source.option("table", "members").load().where("shard = 3 AND from_ms > 0")
    assert in_order([row.asDict() for row in members.collect()]) == expected(logs[3])["members"]
    two = source.option("table", "").schema("kind string, shard bigint").load().where("shard IN (3, 7)")
    assert two.columns == ["kind", "shard"]
    assert two.count() == len(logs[3].entries)
