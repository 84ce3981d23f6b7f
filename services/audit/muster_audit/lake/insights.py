"""Ready analyses of a lake: the views of `views/*.sql` over a period, beside the period before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.reading import register_tables
from muster_audit.lake.row import day_of
from muster_audit.lake.store import Lake, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000

WORST = 20
"""Rows of a table of the page."""

LARGEST = 7
"""Groups that a picture shows by their names; it has the others together."""

_USED = {
    "ownership": ("*",),
    "rebalances": (
        "group_id", "cause", "started_day", "rebalances", "moves", "minimum_moves", "longest_ms",
    ),
    "flapping": ("*",),
    "commit_rates": ("group_id", "written_day", "commits"),
    "stalls": ("*",),
    "takeovers": ("*",),
}  # fmt: skip
"""The views that the page and the summary show, with what they show of each."""

_ORDER = {
    "ownership": ("unowned_ms", "group_id"),
    "moves": ("rebalances", "group_id"),
    "flapping": ("lives", "group_id", "group_instance_id", "client_id", "host"),
    "stalls": ("stalled_ms", "group_id", "topic", "partition", "from_ms"),
}
"""The tables of the page, each with what is the worst where it is the most, and the order of equals."""

_MOVES = """
SELECT group_id, sum(rebalances) AS rebalances, sum(moves) AS moves, sum(minimum_moves) AS minimum_moves,
       coalesce(max(longest_ms), 0) AS longest_ms
FROM rebalances GROUP BY group_id
"""

_REBALANCES = """
SELECT started_day, cause, sum(rebalances) AS rebalances, sum(moves) AS moves,
       sum(minimum_moves) AS minimum_moves
FROM rebalances GROUP BY started_day, cause ORDER BY started_day, cause
"""

_COMMITS = """
WITH largest AS (
  SELECT group_id FROM commit_rates GROUP BY group_id ORDER BY sum(commits) DESC, group_id LIMIT :largest
)
SELECT written_day, largest.group_id, sum(commits) AS commits
FROM commit_rates LEFT JOIN largest ON largest.group_id = commit_rates.group_id
GROUP BY written_day, largest.group_id ORDER BY written_day, largest.group_id
"""

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
    """What the page shows of a period: as many rows, however long the lake is.

    Attributes:
        cluster_id: identity of the cluster.
        period: the period.
        slo: share of the time for which each partition is to have an owner, 0 to 1.
        worst: table of the page → its rows, `WORST` at most: `ownership`, `flapping`, `stalls` as the views
            have them, `moves` by group.
        counts: table of the page → how many rows there are.
        missing: groups that miss the objective.
        rebalances: by day and cause.
        commits: by day and group; of group None: by all but the largest.
        takeovers: as the view has them, by day and whether they were planned.
        summary: the period in one row.
        before: the period before in one row; None: the lake has nothing of it.
    """

    cluster_id: str
    period: Period
    slo: float
    worst: dict[str, Rows]
    counts: dict[str, int]
    missing: int
    rebalances: Rows
    commits: Rows
    takeovers: Rows
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
    spark: "SparkSession",
    folder: Path,
    days: int,
    stall_ms: int,
    slo: float,
    progress: Callable[[str], None],
) -> Insights:
    """Runs the analyses over the last days of a lake.

    Args:
        spark: the session; `period`, the tables and the views are registered with it.
        folder: of the lake.
        days: length of the period, which ends with the last record.
        stall_ms: how long a committed offset may stay as it is.
        slo: share of the time for which each partition is to have an owner, 0 to 1.
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
        with _kept(spark, period.before()):
            (before,) = _rows(spark.table("summary"))
        progress("looking into the period")
        known = before["commits"] or before["rebalances"] or before["availability"] is not None
        with _kept(spark, period):
            return _shown(spark, lake.cluster_id, period, slo, before if known else None)


def _shown(
    spark: "SparkSession", cluster_id: str, period: Period, slo: float, before: dict[str, Any] | None
) -> Insights:
    spark.sql(_MOVES).createOrReplaceTempView("moves")
    (summary,) = _rows(spark.table("summary"))
    return Insights(
        cluster_id=cluster_id,
        period=period,
        slo=slo,
        worst={name: _worst(spark.table(name), *order) for name, order in _ORDER.items()},
        counts={name: spark.table(name).count() for name in _ORDER},
        missing=spark.table("ownership").where(f"availability < {slo!r}D").count(),
        rebalances=_rows(spark.sql(_REBALANCES)),
        commits=_rows(spark.sql(_COMMITS, {"largest": LARGEST})),
        takeovers=_rows(spark.table("takeovers").orderBy("claimed_day", "planned")),
        summary=summary,
        before=before,
    )


def _worst(rows: "DataFrame", most: str, *then: str) -> Rows:
    return _rows(rows.orderBy(rows[most].desc(), *then).limit(WORST))


def _rows(found: "DataFrame") -> Rows:
    return [row.asDict() for row in found.collect()]


@contextmanager
def _kept(spark: "SparkSession", period: Period) -> Iterator[None]:
    """Registers the views over a period; meanwhile what is used of each is kept on disk."""
    from pyspark import StorageLevel

    bounds = (period.from_ms, period.to_ms, period.stall_ms)
    query = "SELECT bigint({}) AS from_ms, bigint({}) AS to_ms, bigint({}) AS stall_ms".format(*bounds)
    spark.sql(query).createOrReplaceTempView("period")
    made = {}
    kept = []
    for name, text in views().items():
        made[name] = spark.sql(text)
        made[name].createOrReplaceTempView(name)
        if name in _USED:
            used = made[name].select(*_USED[name]).persist(StorageLevel.DISK_ONLY)
            used.createOrReplaceTempView(name)
            kept.append(used)
    try:
        yield
    finally:
        for used in kept:
            used.unpersist(blocking=True)
        for name, found in made.items():
            found.createOrReplaceTempView(name)
