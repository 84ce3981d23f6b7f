"""The tables of a lake in Spark, as views with the names of the tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.row import Row, columns
from muster_audit.lake.store import LAKE_MARK
from muster_audit.lake.tables import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_DOC = "UTC day: of the record, or on which the row ended; `open` while later records may change it."


def table(spark: "SparkSession", folder: Path, row: type[Row]) -> "DataFrame":
    """A table of a lake. Columns that older files lack are null.

    Raises:
        LogUnreadableError: there is no lake.
    """
    from pyspark.sql.types import StringType, StructType

    if not (folder / LAKE_MARK).is_file():
        raise LogUnreadableError(f"{folder} is no lake: `muster-lake build` makes one")
    schema = StructType.fromDDL(ddl(row)).add("day", StringType())
    there = (folder / row.table).is_dir()
    found = (
        spark.read.schema(schema).parquet(str(folder / row.table))
        if there
        else spark.createDataFrame([], schema)
    )
    return found.withMetadata("day", {"comment": DAY_DOC})  # folders have no comments


def ddl(row: type[Row]) -> str:
    """The columns of a table as SQL declares them, with what they mean."""
    return ", ".join(
        f"{one.name} {one.type} COMMENT '{one.doc.replace(chr(39), chr(39) * 2)}'" for one in columns(row)
    )


def register_tables(spark: "SparkSession", folder: Path, commits_from: str = "") -> None:
    """Makes the tables known to a session by their names.

    Args:
        spark: the session.
        folder: of the lake.
        commits_from: the first day of which commits are wanted; empty: of all.

    Raises:
        LogUnreadableError: there is no lake.
    """
    for name, row in ALL.items():
        found = table(spark, folder, row)
        if name == "commits" and commits_from:
            found = found.where(found.day >= commits_from)
        found.createOrReplaceTempView(name)
