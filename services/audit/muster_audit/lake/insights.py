"""Ready analyses of a lake: the views of `views/*.sql` over a period, beside the period before."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.reading import register_tables
from muster_audit.lake.row import day_of
from muster_audit.lake.store import Lake, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000

_INTERMEDIATE = frozenset({"partition_gaps", "commit_steps"})  # as many rows as the tables have

_USED_TWICE = frozenset({"commit_steps"})  # by later views, and dear

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Period:
    """What is looked at.

    Attributes:
        from_ms: its beginning, ms since the Unix epoch.
        to_ms: its end, not part of it.
        stall_ms: how long a committed offset may stay as it is.
    """

    from_ms: int
    to_ms: int
    stall_ms: int

    def before(self) -> "Period":
        """The period of the same length before it."""
        return Period(2 * self.from_ms - self.to_ms, self.from_ms, self.stall_ms)


@dataclass(frozen=True, slots=True)
class Insights:
    """What a lake says of a period.

    Attributes:
        cluster_id: identity of the cluster.
        period: the period.
        results: view → rows.
        summary: the period in one row.
        before: the period before in one row; None: the lake has nothing of it.
    """

    cluster_id: str
    period: Period
    results: dict[str, Rows]
    summary: dict[str, Any]
    before: dict[str, Any] | None


def views() -> dict[str, str]:
    """The views in the order in which they use each other: name → SQL."""
    folder = resources.files("muster_audit").joinpath("lake", "views")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return {
        name.removesuffix(".sql").partition("_")[2]: folder.joinpath(name).read_text("utf-8")
        for name in files
    }


def loaded(folder: Path) -> Lake:
    """A lake in which something was built.

    Raises:
        LogUnreadableError: there is none.
    """
    lake = Lake.load(folder)
    if not lake.run:
        raise LogUnreadableError(f"{folder} is no lake: `muster-lake build` makes one")
    return lake


def look_into(
    spark: "SparkSession", folder: Path, days: int, stall_ms: int, progress: Callable[[str], None]
) -> Insights:
    """Runs the analyses over the last days of a lake.

    Args:
        spark: the session; `period`, the tables and the views are registered with it.
        folder: of the lake.
        days: length of the period, which ends with the last record.
        stall_ms: how long a committed offset may stay as it is.
        progress: called with what is done now.

    Raises:
        LogUnreadableError: there is no lake, or it is being built.
    """
    with opened(folder):
        lake = loaded(folder)
        end_ms = max(end.at_ms for end in lake.ends.values()) + 1
        period = Period(end_ms - days * DAY_MS, end_ms, stall_ms)
        since = max(period.before().from_ms - DAY_MS, 0)  # a day for writers whose clocks differ
        register_tables(spark, folder, day_of(since))
        progress("looking into the period before")
        before = _results(spark, period.before())["summary"][0]
        progress("looking into the period")
        results = _results(spark, period)
        (summary,) = results.pop("summary")
        known = before["commits"] or before["rebalances"] or before["availability"] is not None
        return Insights(lake.cluster_id, period, results, summary, before if known else None)


def _results(spark: "SparkSession", period: Period) -> dict[str, Rows]:
    """The rows of each view. What a later view uses of them is not computed again."""
    from pyspark import StorageLevel

    columns = "from_ms bigint, to_ms bigint, stall_ms bigint"
    bounds = (period.from_ms, period.to_ms, period.stall_ms)
    spark.createDataFrame([bounds], columns).createOrReplaceTempView("period")
    results: dict[str, Rows] = {}
    kept = []
    for name, text in views().items():
        found = spark.sql(text)
        if name in _USED_TWICE:
            kept.append(found.persist(StorageLevel.DISK_ONLY))
        elif name not in _INTERMEDIATE:
            table = found.toArrow()
            results[name] = table.to_pylist()
            found = spark.createDataFrame(table, found.schema)
        found.createOrReplaceTempView(name)
    for found in kept:
        found.unpersist(blocking=True)
    return results
