"""The lake with a real Spark session: the job, the tables as views, the command."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from kit.logs.drawn_logs import drawn
from kit.logs.lake_folders import expected, export, in_order, rows_of
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import empty
from muster_audit.lake.build import build
from muster_audit.lake.reading import DAY_DOC, register_tables
from muster_audit.lake.row import columns
from muster_audit.lake.tables import ALL
from muster_audit.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    folder = tmp_path_factory.mktemp("spark")
    with spark_session("tests", master="local[2]", folder=folder, log=folder / "spark.log") as session:
        yield session


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


def test_the_command_builds_and_goes_on(tmp_path: Path) -> None:
    built = healthy(empty(0, 1))
    export(tmp_path / "export", built)
    command = [sys.executable, "-c", "from muster_audit.__main__ import lake; lake()"]
    command += ["build", str(tmp_path / "export"), str(tmp_path / "lake"), "--master", "local[1]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == "22 new entries; 4 assignments; 8 commits; 1 coordinators; 3 generations; 3 members\n"
    )
    command[-3] = str(tmp_path / "export")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("muster-lake: ")
    assert "is no lake, and not empty" in " ".join(refused.stderr.split())
