"""Exports: what is written, what counts, and what a group looked like then."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from kit.logs.damaged_logs import DAMAGES, Damage
from kit.logs.log_builder import LogBuilder, healthy
from kit.logs.log_nodes import CLUSTER, empty, nodes_with, store
from kit.metadata.metadata_instances import Writer, metadata_cluster
from kit.waiting import until
from muster_core.log.page import Page
from muster_core.position import Position
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.verify.reader import LogUnreadableError

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow.parquet as pq
from muster_audit.command import app
from muster_audit.describe import describe_at, parse_time
from muster_audit.export import export_log, report_exported
from muster_audit.reading.exported import ExportSource, ShardExport, mark
from muster_audit.reading.facts import Broken
from muster_audit.reading.scan import ScanOptions, audit_log
from muster_audit.reading.sources import NodesSource, open_source
from typer.testing import CliRunner

pytestmark = pytest.mark.spark

GENESIS = records_pb2.Genesis(cluster_id=CLUSTER, shard_count=1)


def builder() -> LogBuilder:
    return healthy(empty(0, 1))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    async with nodes_with(tmp_path / "nodes", {0: builder()}) as nodes:
        yield nodes


def exported(folder: Path, built: LogBuilder) -> ExportSource:
    """An export of entries as they are, without a look at them."""
    mark(folder, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=built.shard_count))
    ShardExport(folder, 0).write([Page.of_entries(built.entries)])
    return ExportSource(folder)


@pytest.mark.cluster
async def test_an_export_holds_what_the_nodes_hold_and_goes_on_where_it_ended(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    built = builder()
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        done = export_log(source, folder, 0)
        assert (done.written, done.end, done.problem) == (22, built.end, "")
        assert export_log(source, folder, 0).written == 0
    built.assignment(1, leader="z", z=[3])
    store(nodes[0], 0, 1, built.entries, built.end)
    with NodesSource(nodes.url) as source:
        assert export_log(source, folder, 0).written == 1
    copy = ExportSource(folder)
    entries = [entry for page in copy.pages(0, 1, copy.acknowledged(0), 5) for entry in page.entries()]
    assert entries == built.entries
    assert len(list(folder.glob("shard=0/day=2023-11-14/*.parquet"))) == 2
    assert not [fact for fact in audit_log(copy, 0, ScanOptions()) if isinstance(fact, Broken)]


@pytest.mark.cluster
async def test_only_what_is_verified_is_exported(nodes: RedisNodes, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    built = builder()
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        export_log(source, folder, 0)
    built.commit(1, "z", 1)
    built.commit(1, "z", 2)
    built.change(22, record=b"")
    store(nodes[0], 0, 1, built.entries, built.end)
    with NodesSource(nodes.url) as source:
        done = export_log(source, folder, 0)
    assert (done.written, done.end.offset) == (0, 22)
    assert "L6 is broken at 2-23" in done.problem


@pytest.mark.cluster
async def test_a_gap_that_a_trim_left_is_named(nodes: RedisNodes, tmp_path: Path) -> None:
    built = builder()
    built.snapshot(Position(2, 15))
    store(nodes[0], 0, 1, built.entries[14:], built.end)
    with NodesSource(nodes.url) as source:
        mark(tmp_path / "export", source.genesis)
        done = export_log(source, tmp_path / "export", 0)
    assert "trimmed before they were exported" in done.problem
    assert done.end_hash == ""


def test_a_file_that_is_not_listed_is_no_part_of_the_export(tmp_path: Path) -> None:
    source = exported(tmp_path, builder())
    (listed,) = tmp_path.glob("shard=0/day=*/*.parquet")
    left = listed.with_name("23-99.parquet")
    left.write_bytes(b"half a file")
    assert source.length(0, 1) == 22
    export = ShardExport.open(tmp_path, 0)
    more = builder()
    more.commit(1, "z", 1)
    assert export.write([Page.of_entries(more.entries[22:])]) == 1
    assert not left.exists()
    assert ExportSource(tmp_path).length(0, 1) == 23


def test_records_of_two_days_are_in_two_folders(tmp_path: Path) -> None:
    built = builder()
    built.now_ms += 86_400_000
    built.commit(1, "z", 1)
    built.add(b"\xff\xff\xff")  # has no time: goes with the entry before it
    exported(tmp_path, built)
    days = sorted(path.parent.name for path in tmp_path.glob("shard=0/day=*/*.parquet"))
    assert days == ["day=2023-11-14", "day=2023-11-15"]
    rows = pq.read_table(next(tmp_path.glob("shard=0/day=2023-11-15/*.parquet"))).to_pylist()
    assert [row["kind"] for row in rows] == ["offset_committed", None]
    assert rows[1]["problem"] == "3 bytes that are no record"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"{damage.invariant}: {damage.name}")
def test_a_damaged_export_is_found_out(damage: Damage, tmp_path: Path) -> None:
    built = healthy(empty(0, 2))
    damage.make(built)
    found = audit_log(exported(tmp_path, built), 0, ScanOptions())
    assert damage.invariant in {fact.invariant for fact in found if isinstance(fact, Broken)}


def test_another_clusters_export_is_refused(tmp_path: Path) -> None:
    mark(tmp_path, GENESIS)
    with pytest.raises(LogUnreadableError, match="holds the export of cluster cluster-of-the-tests"):
        mark(tmp_path, records_pb2.Genesis(cluster_id="another", shard_count=1))


class TestDescribe:
    def test_a_group_then(self, tmp_path: Path) -> None:
        built = builder()
        source = exported(tmp_path, built)
        began = records_pb2.Record.FromString(built.entries[0].record).written_at_ms
        assert describe_at(source, "g", began + 50).group is None
        then = describe_at(source, "g", began + 400)  # up to the assignment
        assert then.group is not None
        assert (then.position, then.group.generation, sorted(then.group.members)) == (
            Position(1, 5), 1, ["a", "b"],
        )  # fmt: skip
        now = describe_at(source, "g", began + 10**9)
        assert now.group is not None
        assert sorted(now.group.members) == ["z"]

    def test_the_command(self, tmp_path: Path) -> None:
        exported(tmp_path, builder())
        runner = CliRunner()
        told = runner.invoke(app, ["describe", str(tmp_path), "g", "--at", "2030-01-01", "-o", "json"])
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout)["members"][0]["member_id"] == "z"
        text = runner.invoke(app, ["describe", str(tmp_path), "g", "--at", "2023-11-14T22:13:20.600Z"])
        assert "Group 'g': stable, generation 1, 2 members" in " ".join(text.stdout.split())
        assert runner.invoke(app, ["describe", str(tmp_path), "h", "--at", "2030-01-01"]).exit_code == 1
        bad = runner.invoke(app, ["describe", str(tmp_path), "g", "--at", "yesterday"])
        assert bad.exit_code == 2
        assert "give a time such as" in bad.stderr

    @pytest.mark.parametrize("text", ["1700000000000", "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"])
    def test_times(self, text: str) -> None:
        assert parse_time(text) == 1_700_000_000_000

    @pytest.mark.cluster
    async def test_a_trimmed_log_cannot_tell(self, nodes: RedisNodes) -> None:
        built = builder()
        built.snapshot(Position(2, 15))
        store(nodes[0], 0, 1, built.entries[14:], built.end)
        with pytest.raises(LogUnreadableError, match="ask the folder of an export"):
            describe_at(open_source(nodes.url), "g", 2 * 10**12)


@pytest.mark.cluster
async def test_metadata_is_told_how_far_and_refuses_what_it_does_not_have(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path / "nodes", shards=1) as cluster:
        writer = Writer(0)
        await writer.claim(cluster[0])
        await writer.append(
            cluster[0], records_pb2.Record(offset_tombstone=records_pb2.OffsetTombstone()).SerializeToString()
        )
        with NodesSource(cluster.nodes.url) as source:
            await until(lambda: source.acknowledged(0) == writer.end.position, "all is acknowledged")
            mark(tmp_path / "export", source.genesis)
            done = export_log(source, tmp_path / "export", 0)
        assert done.end == writer.end.position
        address = cluster[0].address
        assert await asyncio.to_thread(report_exported, address, [done]) == []
        async with cluster.client(0) as node:
            assert await node.get(log_keys(0, 1).exported) == done.end.stream_id.encode()
        wrong = replace(done, end_hash="00" * 32)
        (refused,) = await asyncio.to_thread(report_exported, address, [wrong])
        assert "log 0" in refused
    (problem,) = await asyncio.to_thread(report_exported, "127.0.0.1:1", [done])
    assert "does not take the report" in problem
