"""The audit with a real Spark session: one for all tests here, since it takes long to start."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import empty, nodes_with, store
from muster_core.position import Position
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.verify.reader import LogUnreadableError

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow.parquet as pq
from kit.logs.audit_corpus import Verdicts, judge, table
from muster_audit.check import CheckOptions, Result, check
from muster_audit.command import show
from muster_audit.export import export
from muster_audit.page import write_page
from muster_audit.promises import ALL
from muster_audit.reading.durable import held_alone
from muster_audit.reading.exported import ExportSource
from muster_audit.spark.data_source import register
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _log_is_a_source(spark: "SparkSession") -> None:
    register(spark)


@pytest.fixture(scope="module")
def judged(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Verdicts, Result]:
    return judge(spark, tmp_path_factory.mktemp("corpus"))


class TestCorpus:
    def test_every_damage_is_caught_by_the_promise_that_names_it(
        self, judged: tuple[Verdicts, Result]
    ) -> None:
        assert judged[0].missed == []

    def test_no_clean_log_is_accused(self, judged: tuple[Verdicts, Result]) -> None:
        assert judged[0].accused == []

    def test_every_promise_is_broken_by_some_log(self, judged: tuple[Verdicts, Result]) -> None:
        assert judged[0].uncovered == []

    def test_muster_verify_finds_the_same(self, judged: tuple[Verdicts, Result]) -> None:
        assert judged[0].disagreements == []

    def test_the_table_ends_with_one_line_of_totals(self, judged: tuple[Verdicts, Result]) -> None:
        assert "0 missed" in table(judged[0]).splitlines()[-1]

    def test_the_report_is_one_page_and_tables(self, judged: tuple[Verdicts, Result], tmp_path: Path) -> None:
        result = judged[1]
        page = write_page(result, tmp_path).read_text("utf-8")
        assert "Generations by cause" in page
        assert "From record to acknowledgement" in page
        markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r"(src|href)=|url\(|@import", markup)
        assert "<script src" not in page
        verdicts = {row["id"]: row for row in pq.read_table(result.tables / "invariant.parquet").to_pylist()}
        assert verdicts.keys() == ALL.keys()
        assert verdicts["G1"]["broken"] == result.broken["G1"] > 0
        violations = pq.read_table(result.tables / "violation.parquet").to_pylist()
        assert len(violations) == len(result.violations)
        assert any(line.startswith(">") for row in violations for line in row["around"])


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    logs = {shard: healthy(empty(shard, 2)) for shard in range(2)}
    async with nodes_with(tmp_path / "nodes", logs) as nodes:
        yield nodes


async def test_a_node_that_is_lost_meanwhile_is_not_compared_and_not_counted(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = {shard: healthy(empty(shard, 2)) for shard in range(2)}
    async with nodes_with(tmp_path / "nodes", logs, count=3) as three:
        loop = asyncio.get_running_loop()

        def lose(text: str) -> None:
            if text.startswith("checking") and three[1].answers():
                asyncio.run_coroutine_threadsafe(three[1].kill(), loop).result(60)

        options = CheckOptions(all_nodes=True, tasks=1)
        result = await asyncio.to_thread(check, spark, three.url, options, tmp_path / "tables", lose)
    assert result.violations == []
    assert (result.compared_nodes, list(result.problems)) == ({1, 3}, [2])
    told = StringIO()
    show(result, Console(file=told, width=200))
    assert "2 of 3 nodes" in told.getvalue()


async def test_an_end_that_was_never_acknowledged_is_to_be_repaired(
    spark: "SparkSession", tmp_path: Path
) -> None:
    built, stale = healthy(empty(0, 1)), healthy(empty(0, 1))
    stale.commit(1, "z", 1)
    built.claim("coordinator-3")
    async with nodes_with(tmp_path / "nodes", {0: built}, count=3) as three:
        store(three[2], 0, 1, stale.entries, stale.entries[21].position)
        options = CheckOptions(all_nodes=True, tasks=1)
        result = await asyncio.to_thread(check, spark, three.url, options, tmp_path / "tables")
    assert (result.violations, result.to_repair) == (
        [], ["shard 0: node 3 has an end from 2-23 on that was never acknowledged"],
    )  # fmt: skip


async def test_entries_are_rows_and_a_damaged_one_is_a_row_like_any_other(
    spark: "SparkSession", nodes: RedisNodes
) -> None:
    built = healthy(empty(1, 2))
    built.add(b"\xff\xff\xff")
    store(nodes[0], 1, 2, built.entries, built.end)
    entries = spark.read.format("muster-log").option("address", nodes.url).load()
    rows = {(row.shard, row.offset): row for row in entries.collect()}
    assert len(rows) == 22 + 23 + 1
    assert rows[1, 23].kind is None
    assert rows[1, 23].problem == "3 bytes that are no record"
    assert (rows[1, 4].kind, rows[1, 4].group_id, rows[1, 4].epoch) == ("generation_started", built.group, 1)
    assert bytes(rows[1, 4].record) == built.entries[3].record


async def test_an_export_is_read_as_the_log_is(
    spark: "SparkSession", nodes: RedisNodes, tmp_path: Path
) -> None:
    done = export(spark, nodes.url, tmp_path / "export")
    assert [(one.shard, one.written, one.problem) for one in done] == [(0, 22, ""), (1, 22, ""), (2, 1, "")]
    assert ExportSource(tmp_path / "export").acknowledged(1) == Position(2, 22)
    columns = ["shard", "epoch", "offset", "kind", "group_id", "nonce", "hash", "record"]
    live, kept = (
        spark.read.format("muster-log").option("address", address).load().select(columns)
        for address in (nodes.url, str(tmp_path / "export"))
    )
    assert live.exceptAll(kept).count() == kept.exceptAll(live).count() == 0


async def test_a_stream_takes_what_is_new_in_bounded_batches_and_goes_on_from_its_checkpoint(
    spark: "SparkSession", nodes: RedisNodes, tmp_path: Path
) -> None:
    built = healthy(empty(1, 2))

    def run() -> list[int]:
        """Streams what is there to Parquet; gives the sizes of the batches."""
        entries = spark.readStream.format("muster-log").option("address", nodes.url).option("max_rows", 30)
        query = (
            entries.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "rows"))
        )
        try:
            query.processAllAvailable()
            if len(built.entries) == 23:  # the running query takes a second look
                built.commit(1, "z", 2)
                store(nodes[0], 1, 2, built.entries, built.end)
                query.processAllAvailable()
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()

    def offsets(shard: int) -> list[int]:
        rows = spark.read.parquet(str(tmp_path / "rows")).where(f"shard = {shard}").collect()
        return sorted(row.offset for row in rows)

    assert run() == [10 + 10 + 1, 10 + 10, 2 + 2]
    built.commit(1, "z", 1)
    store(nodes[0], 1, 2, built.entries, built.end)
    assert run() == [1, 1]
    assert offsets(0) == list(range(1, 23))
    assert offsets(1) == list(range(1, 25))
    assert run() == []


async def test_what_is_available_now_comes_in_bounded_batches_and_ends(
    spark: "SparkSession", nodes: RedisNodes, tmp_path: Path
) -> None:
    def run() -> list[int]:
        entries = spark.readStream.format("muster-log").option("address", nodes.url).option("max_rows", 30)
        query = (
            entries.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    assert run() == [10 + 10 + 1, 10 + 10, 2 + 2]
    assert run() == []
    built = healthy(empty(1, 2))
    built.commit(1, "z", 1)
    store(nodes[0], 1, 2, built.entries, built.end)
    assert run() == [1]


async def test_a_second_run_names_the_first_one_and_changes_nothing(
    spark: "SparkSession", nodes: RedisNodes, tmp_path: Path
) -> None:
    with (
        held_alone(tmp_path / "export" / "_lock"),
        pytest.raises(LogUnreadableError, match=f"is being exported to by process {os.getpid()} on "),
    ):
        export(spark, nodes.url, tmp_path / "export")
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["_lock"]
    assert [one.written for one in export(spark, nodes.url, tmp_path / "export")] == [22, 22, 1]


async def test_the_command_on_a_machine_without_java(nodes: RedisNodes, tmp_path: Path) -> None:
    """It runs with the bundled runtime, keeps Spark's chatter to itself and ends with the right code."""
    built = healthy(empty(0, 2))
    built.generation(7, "z")
    store(nodes[0], 0, 2, built.entries, built.end)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in (
        "sh",
        "bash",
        "env",
        "dirname",
        "basename",
        "ps",
        "nice",
        "uname",
        "cat",
        "rm",
        "mkdir",
        "ls",
    ):
        found = shutil.which(name)
        if found is not None:
            (commands / name).symlink_to(found)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable, "-m", "muster_audit", "check", nodes.url,
            "--master", "local[1]", "--report", str(tmp_path / "report"), "-o", "json",
        ],
        env={**environment, "PATH": str(commands)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [row["invariant"] for row in told["violations"]] == ["G1"]
    assert (told["logs"], told["entries"]) == (3, 46)
    assert "WARN" not in done.stderr
    assert (tmp_path / "report" / "index.html").is_file()
