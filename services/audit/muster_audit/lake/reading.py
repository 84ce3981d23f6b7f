"""The tables of a lake in Spark, as views with the names of the tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.row import Row, columns
from muster_audit.lake.store import LAKE_MARK
from muster_audit.lake.tables import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_DOC = (
    "UTC day: of the record, or on which the row ended (an assignment: was settled); `open` while later "
    "records may change it."
)


def table(spark: "SparkSession", folder: Path, row: type[Row], since: str = "") -> "DataFrame":
    """A table of a lake. Columns that older files lack are null.

    Args:
        spark: the session.
        folder: of the lake.
        row: the table.
        since: the first day that is wanted, with what is open; empty: all.

    Raises:
        LogUnreadableError: there is no lake.
    """
    from pyspark.sql.types import StringType, StructType

    if not (folder / LAKE_MARK).is_file():
        raise LogUnreadableError(f"{folder} is no lake: `muster-lake build` makes one")
    schema = StructType.fromDDL(ddl(row)).add("day", StringType())
    place = folder / row.table
    days = sorted(str(path) for path in place.glob("day=*") if path.name >= f"day={since}")
    found = (
        spark.read.schema(schema).option("basePath", str(place)).parquet(*days)
        if days
        else spark.createDataFrame([], schema)
    )
    return found.withMetadata("day", {"comment": DAY_DOC})  # folders have no comments


def ddl(row: type[Row]) -> str:
    """The columns of a table as SQL declares them, with what they mean."""
    return ", ".join(
        f"{one.name} {one.type} COMMENT '{one.doc.replace(chr(39), chr(39) * 2)}'" for one in columns(row)
    )


def register_tables(spark: "SparkSession", folder: Path, since: str = "") -> None:
    """Makes the tables known to a session by their names.

    Args:
        spark: the session.
        folder: of the lake.
        since: the first day that is wanted, with what is open; empty: all.

    Raises:
        LogUnreadableError: there is no lake.
    """
    for name, row in ALL.items():
        table(spark, folder, row, since).createOrReplaceTempView(name)
