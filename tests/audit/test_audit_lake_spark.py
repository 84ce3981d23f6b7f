"""The lake with a real Spark session: the job, the tables as views, the command."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from kit.lives import conversion_fuzz, incremental_fuzz
from kit.lives.incremental_life import as_log
from kit.logs import plain_insights
from kit.logs.drawn_logs import drawn
from kit.logs.incremental_log import IncrementalLog
from kit.logs.lake_folders import build as lake_in_this_process
from kit.logs.lake_folders import expected, export, in_order, rows_of
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.log_nodes import empty
from kit.logs.plain_tables import tables as plain_tables
from muster_audit.command import app
from muster_audit.lake.build import build
from muster_audit.lake.insights import DAY_MS, LARGEST, WORST, Insights, look_into, views
from muster_audit.lake.insights_page import write_page
from muster_audit.lake.reading import DAY_DOC, register_tables
from muster_audit.lake.row import columns, day_of
from muster_audit.lake.tables import ALL
from muster_core import cause_kind
from muster_core.audit.log_audit import LogAudit
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def test_the_job_builds_what_plain_python_computes_and_sql_reads_it(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = [drawn(7, 120, 0, 2), drawn(8, 120, 1, 2)]
    for upto in (50, None):
        for built in logs:
            export(tmp_path / "export", built, upto)
        build(spark, str(tmp_path / "export"), tmp_path / "lake")
    assert build(spark, str(tmp_path / "export"), tmp_path / "lake") == []
    register_tables(spark, tmp_path / "lake")
    for name, rows in expected(*logs).items():
        table = spark.table(name)
        assert in_order([row.asDict() for row in table.collect()]) == rows, name
        stated = {one.name: one.metadata["comment"] for one in table.schema}
        assert stated == {one.name: one.doc for one in columns(ALL[name])} | {"day": DAY_DOC}
    assert rows_of(tmp_path / "lake", "topics") == []

    chosen = spark.sql("SELECT group_id FROM commits WHERE shard = 1 AND day >= '2023-11-16'")
    plan = chosen._jdf.queryExecution().toString()
    assert "EqualTo(shard,1)" in plan, plan  # groups of other logs are passed over
    assert "PartitionFilters: [isnotnull(day" in plan, plan  # and the folders of other days
    assert "ReadSchema: struct<shard:bigint,group_id:string>" in plan, plan  # and all other columns


def test_the_commands_build_and_report(spark: "SparkSession", tmp_path: Path) -> None:
    built = healthy(empty(0, 1))
    export(tmp_path / "export", built)
    command = [sys.executable, "-c", "from muster_audit.__main__ import lake; lake()"]
    command += ["build", str(tmp_path / "export"), str(tmp_path / "lake"), "--master", "local[1]"]
    stated = {"URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/warehouse"}
    (tmp_path / "warehouse").mkdir()
    configured = {f"PYICEBERG_CATALOG__PROD__{name}": value for name, value in stated.items()}
    done = subprocess.run(
        [*command, "--catalog", "prod", "--namespace", "db"],
        env=os.environ | configured,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    prod = load_catalog("prod", **{name.lower(): value for name, value in stated.items()})
    assert prod.load_table("db.commits").scan().count() == 8
    assert (
        done.stdout == "22 new entries; 4 assignments; 8 commits; 1 coordinators; 3 generations; 3 members\n"
    )
    page = tmp_path / "page.html"
    told = CliRunner().invoke(app, ["insights", str(tmp_path / "lake"), "--report", str(page)])
    assert told.exit_code == 0, told.output
    assert spark.range(2).count() == 2, "the session was another's, and goes on"
    assert "1 of 1 groups miss that" in page.read_text("utf-8")
    nothing = CliRunner().invoke(app, ["insights", str(tmp_path / "nothing"), "--report", str(page)])
    assert (nothing.exit_code, "is no lake: `muster-lake build` makes one" in nothing.output) == (2, True)
    command[-3] = str(tmp_path / "export")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("muster-lake: ")
    assert "is no lake, and not empty" in " ".join(refused.stderr.split())


def about(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose floats are rounded."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}


def check_insights(
    spark: "SparkSession", found: Insights, logs: list[LogBuilder], filled: Collection[str] = ()
) -> None:
    """Holds analyses against those that plain Python makes of the whole logs.

    `filled`: those that have rows; none: all have, and so has the period before.
    """
    of_logs = [plain_tables(built.shard, built.entries) for built in logs]
    tables = {name: [row for of_log in of_logs for row in of_log[name]] for name in ALL}
    assert found.period.to_ms == max(built.now_ms for built in logs) + 1
    wanted = plain_insights.results(tables, found.period)
    for name, rows in wanted.items():
        assert rows or (filled and name not in filled), name
        same(spark.table(name), rows, name)
    check_page(found, wanted)
    before = plain_insights.summary(plain_insights.results(tables, found.period.before()))
    assert found.before is not None or filled
    assert found.before is None or about(found.before) == about(before)
    assert wanted.keys() == views().keys() - {"partition_gaps", "commit_steps", "summary"}


def same(found: "DataFrame", rows: list[dict[str, Any]], name: str) -> None:
    """Holds a view against the rows that it must have."""
    assert in_order([about(row.asDict()) for row in found.collect()]) == in_order(
        [about(row) for row in rows]
    ), name


def check_page(found: Insights, wanted: dict[str, Any]) -> None:
    """Holds what the page shows against what the views must have."""
    for name, rows in plain_insights.tables_of_the_page(wanted).items():
        assert found.counts[name] == len(rows), name
        assert [about(row) for row in found.worst[name]] == [about(row) for row in rows[:WORST]], name
    assert found.missing == sum(row["availability"] < found.slo for row in wanted["ownership"])
    assert in_order(found.rebalances) == in_order(plain_insights.rebalances_by_day(wanted))
    assert in_order(found.commits) == in_order(plain_insights.commits_by_day(wanted, LARGEST))
    assert in_order([about(row) for row in found.takeovers]) == in_order(
        [about(row) for row in wanted["takeovers"]]
    )
    assert about(found.summary) == about(plain_insights.summary(wanted))


def test_the_analyses_are_what_plain_python_computes_and_the_page_shows_them(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = [drawn(11, 150, 0, 2), drawn(12, 150, 1, 2)]
    for built in logs:
        export(tmp_path / "export", built)
    lake_in_this_process(tmp_path / "export", tmp_path / "lake")
    found = look_into(spark, tmp_path / "lake", 3, 3_600_000, 0.999, lambda _: None)
    check_insights(spark, found, logs)

    page = tmp_path / "reports" / "page.html"
    write_page(found, page)
    text = page.read_text("utf-8")
    assert not re.search(r"(src|href)=|url\(|@import|<script", text)
    assert text.count("<svg") == 5
    assert "groups miss that" in text
    worst = max(found.worst["ownership"], key=lambda row: row["unowned_ms"])
    assert f"{worst['unowned_ms'] / 1000:,.1f}" in text
    ElementTree.fromstring(re.findall(r"<svg.*?</svg>", text, re.DOTALL)[0])


def test_the_analyses_of_groups_that_change_their_kind_are_what_plain_python_computes(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Holds, weights and moves beside the fewest are in them."""
    for number, life in enumerate((conversion_fuzz.life(4, 400), incremental_fuzz.life(4, 600))):
        export(tmp_path / str(number), built := as_log(life.cluster))
        lake_in_this_process(tmp_path / str(number), lake := tmp_path / f"lake-{number}")
        found = look_into(spark, lake, 1, 1_000, 0.999, lambda _: None)
        check_insights(spark, found, [built], ("ownership", "rebalances", "commit_rates"))


def day_of_an_incremental_group(log: IncrementalLog, number: int) -> None:
    """A day on which a static member dies and comes back, commits stand still, and the log changes its owner.

    Args:
        log: at the beginning of that day, the group without members.
        number: of the day, from 0.
    """
    built, epoch, a, b, c = log.built, 6 * number, *(f"{name}{number}" for name in "abc")
    began_ms = built.now_ms
    log.subscribe(a)
    log.raised(epoch + 1)
    log.target(epoch + 1, (a, (0, 1, 2, 3), ()))
    log.step(a, epoch + 1, given=(0, 1, 2, 3))
    for seq, pause_ms in (1, 800_000), (2, 200_000), (3, 0):
        log.commit(epoch + 1, a, 100 * number + seq)
        built.now_ms += pause_ms
    log.subscribe(f"{b}=s")
    log.raised(epoch + 2)
    log.target(epoch + 2, (a, (), (2, 3)), (b, (2, 3), ()))
    log.step(a, epoch + 1, taken=(2, 3))
    log.step(a, epoch + 2, released=(2, 3))
    built.now_ms += 2_000  # nobody has them
    log.step(b, epoch + 2, given=(2, 3))
    log.commit(epoch + 2, b, 1, partition=2)
    built.now_ms += 45_000
    log.removed(b, cause_kind.SESSION_EXPIRED, 45_000)
    log.raised(epoch + 3, cause_kind.SESSION_EXPIRED)
    log.target(epoch + 3, (a, (2, 3), ()))
    built.now_ms += 5_000
    log.step(a, epoch + 3, given=(2, 3))
    built.handoff(f"coordinator-{2 * number}")
    built.claim(f"coordinator-{2 * number + 1}")
    log.subscribe(f"{c}=s")
    log.raised(epoch + 4)
    log.target(epoch + 4, (a, (), (3,)), (c, (3,), ()))
    log.step(a, epoch + 3, taken=(3,))
    built.now_ms += 10_000
    built.claim(f"coordinator-{2 * number + 2}")  # the one before died
    log.step(a, epoch + 4, released=(3,))
    log.step(c, epoch + 4, given=(3,))
    log.commit(epoch + 4, c, 1, partition=3)
    log.removed(a)
    log.raised(epoch + 5, cause_kind.LEFT)
    log.target(epoch + 5, (c, (0, 1, 2), ()))
    log.removed(c)
    log.raised(epoch + 6, cause_kind.LEFT)
    built.now_ms = began_ms + DAY_MS - 100


def test_the_analyses_of_an_incremental_group_are_what_plain_python_computes(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """All of them have rows, and so has the period before."""
    built = empty(0, 1)
    built.genesis()
    built.claim("coordinator-0")
    log = IncrementalLog(built)
    for number in range(3):
        day_of_an_incremental_group(log, number)
    log.subscribe("d")
    audit = LogAudit(0)
    audit.add_page(page_of(built.entries))
    assert not audit.finish(built.end).violations
    export(tmp_path / "export", built)
    lake_in_this_process(tmp_path / "export", tmp_path / "lake")
    found = look_into(spark, tmp_path / "lake", 1, 300_000, 0.999, lambda _: None)
    check_insights(spark, found, [built])
    static = next(row for row in found.worst["flapping"] if row["group_instance_id"] == "s")
    assert (static["lives"], static["unexpected"]) == (2, 1)
    assert {row["planned"]: row["takeovers"] for row in found.takeovers} == {True: 1, False: 1}


def test_no_analysis_keeps_in_memory_what_grows_with_the_lake(spark: "SparkSession", tmp_path: Path) -> None:
    """What a step collects it sorts, so that it can go to disk, and the page has so many rows and no more."""
    export(tmp_path / "export", drawn(17, 150))
    lake_in_this_process(tmp_path / "export", tmp_path / "lake")
    found = look_into(spark, tmp_path / "lake", 3, 1, 0.999, lambda _: None)
    assert len(found.worst["stalls"]) == WORST < found.counts["stalls"]
    for name in views():
        plan = spark.table(name)._jdf.queryExecution().executedPlan().toString()
        assert "Scan parquet" in plan, name
        assert not re.findall("ObjectHashAggregate|BroadcastHashJoin|CartesianProduct", plan), name


def test_the_analyses_read_their_days_and_no_older_ones(spark: "SparkSession", tmp_path: Path) -> None:
    built, lake = drawn(16, 300), tmp_path / "lake"
    export(tmp_path / "export", built)
    lake_in_this_process(tmp_path / "export", lake)
    first = day_of(built.now_ms - 3 * DAY_MS)  # a day, the day before, and one for clocks that differ
    older = [path for path in lake.glob("*/day=*/*.parquet") if path.parent.name < f"day={first}"]
    assert {path.parent.parent.name for path in older} >= {"assignments", "commits", "generations"}
    for path in older:
        path.write_bytes(b"damaged")
    check_insights(spark, look_into(spark, lake, 1, 3_600_000, 0.999, lambda _: None), [built])


def test_an_interrupt_is_left_to_the_program(spark: "SparkSession") -> None:
    """PySpark's own handler fails with traces where it comes within a call to Java."""
    assert spark.range(3).count() == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
