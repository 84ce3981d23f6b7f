"""Exports: what is written, what counts, and what a group looked like then."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.logs.damaged_logs import DAMAGES, Damage
from kit.logs.log_builder import LogBuilder, healthy, page_of, with_a_nonce_twice
from kit.logs.log_nodes import CLUSTER, empty, nodes_with, store
from kit.metadata.metadata_instances import Writer, metadata_cluster
from kit.waiting import until
from muster_core.audit.nonces import NonceSet
from muster_core.log.page import Page
from muster_core.log.replay import Entry
from muster_core.position import Position
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.verify.reader import LogUnreadableError

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow.parquet as pq
from kit.logs.audit_corpus import NO_BEGINNING
from kit.logs.marked_logs import marked, stored
from muster_audit.command import app
from muster_audit.describe import describe_at, parse_time
from muster_audit.export import export_log, report_exported
from muster_audit.reading.exported import ExportSource, ShardExport, mark
from muster_audit.reading.facts import Broken, LogRead
from muster_audit.reading.nonce_files import NonceFiles
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
    ShardExport(folder, 0).write([page_of(built.entries)], lambda: NO_BEGINNING)
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
async def test_a_log_that_cannot_be_written_is_named_and_ends_no_run(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    """As on a full disk, where not even the lock can be made."""
    folder = tmp_path / "export"
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        (folder / "shard=0").write_text("no folder can be made here")
        done = export_log(source, folder, 0)
        assert (done.written, done.end_hash) == (0, "")
        assert "shard=0" in done.problem
        (folder / "shard=0").unlink()
        assert export_log(source, folder, 0).written == 22


@pytest.mark.cluster
async def test_of_a_log_with_a_repeated_nonce_nothing_is_exported_and_a_right_one_needs_no_list_of_nonces(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUD-17, AUD-20."""
    built = empty(0, 1)
    repeated = with_a_nonce_twice(built)
    store(nodes[0], 0, 1, repeated.entries, repeated.end)
    with NodesSource(nodes.url) as source:
        mark(tmp_path / "export", source.genesis)
        done = export_log(source, tmp_path / "export", 0)
        with pytest.raises(LogUnreadableError, match="broken at 1-902: nonce"):
            describe_at(source, "g", 10**15)
    assert (done.written, done.broken, done.end_hash, seen(tmp_path / "export")) == (0, True, "", [])
    assert "L7 is broken at 1-902" in done.problem
    store(nodes[0], 0, 1, built.entries, built.end)
    for book in (NonceSet, NonceFiles):
        monkeypatch.delattr(book, "add")
        monkeypatch.delattr(book, "add_all")
    with NodesSource(nodes.url) as source:
        assert export_log(source, tmp_path / "export", 0).written == 902
        assert describe_at(source, "g", 10**15).position == built.end


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


def test_a_file_that_is_not_listed_is_no_part_of_the_export(tmp_path: Path) -> None:
    source = exported(tmp_path, builder())
    (listed,) = tmp_path.glob("shard=0/day=*/*.parquet")
    left = listed.with_name("23-99.parquet")
    left.write_bytes(b"half a file")
    assert source.length(0, 1) == 22
    more = builder()
    more.commit(1, "z", 1)
    with ShardExport.held(tmp_path, 0) as export:
        assert export.write([page_of(more.entries[22:])]) == 1
    assert not left.exists()
    assert ExportSource(tmp_path).length(0, 1) == 23


def seen(folder: Path) -> list[int]:
    """The offsets that a plain reader of Parquet finds in the folder of an export, whatever its list says."""
    if not list(folder.glob("shard=0/day=*/*.parquet")):
        return []
    return sorted(pq.read_table(folder, columns=["offset"]).column("offset").to_pylist())


def listed(folder: Path) -> list[int]:
    """The offsets that the list of an export names."""
    files = ShardExport.open(folder, 0).files
    return [offset for row in files for offset in range(row.first, row.last + 1)]


def of_three_days() -> LogBuilder:
    built = builder()
    for _ in range(2):
        built.now_ms += 86_400_000
        built.commit(1, "z", 1)
    return built


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("before", [True, False], ids=["before it", "after it"])
@pytest.mark.parametrize("begun", [0, 22], ids=["the first run", "a later run"])
def test_a_kill_at_any_step_leaves_an_export_that_goes_on_right(
    tmp_path: Path, begun: int, before: bool
) -> None:
    """A run is killed at its first, second, third … change of the disk, until one gets through."""
    built, killed, died = of_three_days(), 0, True
    while died:
        folder = tmp_path / str(killed)
        mark(folder, GENESIS)
        if begun:
            with ShardExport.held(folder, 0) as export:
                export.write([page_of(built.entries[:begun])])
        died = _killed_at(killed, folder, built.entries[begun:], before=before)
        assert set(seen(folder)) <= set(listed(folder)), f"killed at step {killed}"
        assert set(listed(folder)) in (set(range(1, begun + 1)), set(range(1, 25)))
        copy = ExportSource(folder)
        read = [entry for page in copy.pages(0, 1, copy.acknowledged(0), 5) for entry in page.entries()]
        assert read == built.entries[: len(listed(folder))]
        left = built.entries[len(listed(folder)) :]
        with ShardExport.held(folder, 0) as export:
            export.write([page_of(left)] if left else [])
        assert seen(folder) == listed(folder) == list(range(1, 25))
        assert not list(folder.glob("shard=0/day=*/_*"))
        killed += 1
    assert killed > 10


def _killed_at(step: int, folder: Path, entries: list[Entry], *, before: bool) -> bool:
    """Exports in a process that is killed before or after a change of the disk; returns whether it was."""
    child = os.fork()
    if not child:
        count = itertools.count()

        def dying(change: Callable[..., Any]) -> Callable[..., Any]:
            def act(*arguments: Any, **options: Any) -> Any:
                mine = next(count) == step
                if mine and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = change(*arguments, **options)
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return act

        changes: tuple[tuple[Any, str], ...] = (
            (os, "fsync"), (Path, "mkdir"), (Path, "replace"), (pq, "write_table"),
        )  # fmt: skip
        for place, name in changes:
            setattr(place, name, dying(getattr(place, name)))
        try:
            with ShardExport.held(folder, 0) as export:
                export.write(page_of(entries[n : n + 1]) for n in range(len(entries)))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_two_runs_at_once_do_not_write_together(tmp_path: Path) -> None:
    mark(tmp_path, GENESIS)
    with (
        ShardExport.held(tmp_path, 0),
        pytest.raises(LogUnreadableError, match=f"by process {os.getpid()} on .* since "),
        ShardExport.held(tmp_path, 0, patience_s=0.2),
    ):
        pass


def test_a_run_that_missed_the_lock_lists_nothing(tmp_path: Path) -> None:
    """As on a file system that knows no locks."""
    built = of_three_days()
    mark(tmp_path, GENESIS)
    slow = ShardExport.open(tmp_path, 0)

    def pages() -> Iterator[Page]:
        yield page_of(built.entries[:10])
        ShardExport.open(tmp_path, 0).write([page_of(built.entries)])

    with pytest.raises(LogUnreadableError, match="was written to by another process"):
        slow.write(pages())
    assert seen(tmp_path) == listed(tmp_path) == list(range(1, 25))


@pytest.mark.parametrize("text", ["", "[]", '{"end": "x"}', '{"end": "1-1", "end_hash": "", "files": [1]}'])
def test_a_list_that_is_damaged_is_named_and_not_written_over(tmp_path: Path, text: str) -> None:
    exported(tmp_path, builder())
    (tmp_path / "shard=0" / "_files.json").write_text(text)
    with pytest.raises(LogUnreadableError, match=r"_files\.json"):
        ExportSource(tmp_path)
    with pytest.raises(LogUnreadableError, match=r"_files\.json"), ShardExport.held(tmp_path, 0):
        pass


@pytest.mark.parametrize("left", [b"", b"PAR1 and no footer", None], ids=["empty", "cut", "gone"])
def test_a_listed_file_that_is_damaged_is_named(tmp_path: Path, left: bytes | None) -> None:
    source = exported(tmp_path, builder())
    (path,) = tmp_path.glob("shard=0/day=*/*.parquet")
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    with pytest.raises(LogUnreadableError, match=r"1-22\.parquet"):
        list(source.pages(0, 1, source.acknowledged(0), 5))
    assert "1-22.parquet" in ShardExport.open(tmp_path, 0).damage


@pytest.mark.cluster
async def test_nothing_is_reported_of_an_export_that_lost_a_file(nodes: RedisNodes, tmp_path: Path) -> None:
    with NodesSource(nodes.url) as source:
        mark(tmp_path / "export", source.genesis)
        assert export_log(source, tmp_path / "export", 0).end_hash
        (tmp_path / "export" / "shard=0" / ShardExport.open(tmp_path / "export", 0).files[0].path).unlink()
        done = export_log(source, tmp_path / "export", 0)
    assert (done.end_hash, done.broken, done.written) == ("", False, 0)
    assert "is listed and is not there" in done.problem


@pytest.mark.cluster
async def test_a_log_that_was_written_anew_is_told_whatever_its_length(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        export_log(source, folder, 0)
        other = empty(0, 1)
        other.now_ms += 7
        healthy(other)
        for longer in (False, True):
            if longer:
                other.commit(1, "z", 1)
            store(nodes[0], 0, 1, other.entries, other.end)
            done = export_log(source, folder, 0)
            assert (done.written, done.broken, done.end_hash) == (0, True, "")
            assert "another entry is at 2-22 than was exported" in done.problem
        store(nodes[0], 0, 1, other.entries[:9], other.entries[8].position)
        assert "before what was exported" in export_log(source, folder, 0).problem
        moved = other.entries[:21]
        moved.append(other.entries[21]._replace(position=Position(3, 22)))
        store(nodes[0], 0, 1, moved, Position(3, 22))
        assert "no node has the entry 2-22 any more" in export_log(source, folder, 0).problem


def trimmed(nodes: RedisNodes, left: int, **wrong: Any) -> LogBuilder:
    """A log with a snapshot up to its tenth entry, of which the first ones were trimmed before any export."""
    built = healthy(empty(0, 1))
    marked(**wrong)(built)
    stored()(nodes, 0, 1, built)
    store(nodes[0], 0, 1, built.entries[left:], built.end)
    return built


@pytest.mark.cluster
async def test_the_export_of_a_trimmed_log_begins_with_a_snapshot(nodes: RedisNodes, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    built = trimmed(nodes, 9)
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        done = export_log(source, folder, 0)
        assert (done.written, done.problem, done.end) == (14, "", built.end)
        built.commit(1, "z", 1)
        store(nodes[0], 0, 1, built.entries[9:], built.end)
        assert export_log(source, folder, 0).written == 1
    assert seen(folder) == list(range(10, 25))
    found = list(audit_log(ExportSource(folder), 0, ScanOptions()))
    assert not [fact for fact in found if isinstance(fact, Broken)]
    assert [fact.groups for fact in found if isinstance(fact, LogRead)] == [1]


@pytest.mark.cluster
@pytest.mark.parametrize(("left", "wrong"), [(12, {}), (9, {"hash": bytes(32)}), (9, {"digest": bytes(32)})])
async def test_a_log_that_was_trimmed_beyond_every_right_snapshot_is_not_exported(
    nodes: RedisNodes, tmp_path: Path, left: int, wrong: dict[str, Any]
) -> None:
    trimmed(nodes, left, **wrong)
    with NodesSource(nodes.url) as source:
        mark(tmp_path / "export", source.genesis)
        done = export_log(source, tmp_path / "export", 0)
    assert "no right snapshot covers them" in done.problem
    assert (done.broken, done.end_hash, seen(tmp_path / "export")) == (True, "", [])


@pytest.mark.cluster
async def test_entries_that_were_trimmed_before_they_were_exported_are_told(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    folder, built = tmp_path / "export", builder()
    store(nodes[0], 0, 1, built.entries[:9], built.entries[8].position)
    with NodesSource(nodes.url) as source:
        mark(folder, source.genesis)
        assert export_log(source, folder, 0).written == 9
        trimmed(nodes, 10)
        done = export_log(source, folder, 0)
    assert (done.written, done.end) == (0, Position(1, 9))
    assert "the entries after 1-9 were trimmed before they were exported" in done.problem


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
        await writer.own(cluster[0])
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
