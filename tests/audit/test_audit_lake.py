"""The lake's tables against a plain computation of each, and runs that are cut short, without Spark."""

import json
import os
import runpy
import shutil
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow.parquet as pq
from kit.lives import conversion_fuzz, incremental_fuzz
from kit.lives.incremental_fuzz import IncrementalShardLife
from kit.lives.incremental_life import IncrementalLife, as_log
from kit.logs.damaged_catalogs import healthy_catalog
from kit.logs.drawn_logs import drawn
from kit.logs.incremental_log import IncrementalLog
from kit.logs.lake_folders import build, expected, export, in_order, rows_of
from kit.logs.lived_logs import lived
from kit.logs.log_builder import LogBuilder, healthy
from kit.logs.log_nodes import empty
from muster_audit.lake.day_files import DayFiles
from muster_audit.lake.row import columns
from muster_audit.lake.store import LAKE_MARK, opened
from muster_audit.lake.tables import ALL
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1.group_settings_pb2 import GroupSettings
from muster_server.verify.reader import LogUnreadableError

pytestmark = pytest.mark.spark


def check(folder: Path, *logs: LogBuilder) -> None:
    for name, rows in expected(*logs).items():
        assert rows_of(folder, name) == rows, name


@pytest.mark.parametrize("seed", range(5))
def test_the_tables_are_what_a_plain_computation_gives(seed: int, tmp_path: Path) -> None:
    built = drawn(seed, 150)
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_of_a_real_core_gives_the_same(seed: int, tmp_path: Path) -> None:
    built = lived(seed)
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)


def test_a_number_that_no_column_holds_costs_nothing_but_itself(tmp_path: Path) -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.generation(1, "a")
    built.assignment(1, a=[0])
    for number in (1, 2**64 - 1):  # as version 0.1 took it
        message = records_pb2.OffsetCommitted(
            group_id=built.group, generation=1, member_id="a", member_seq=number
        )
        message.offsets.add(topic="t", partition=0, offset=7)
        built.add(records_pb2.Record(offset_committed=message))
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    assert [row["member_seq"] for row in rows_of(tmp_path / "lake", "commits")] == [1, None]


def test_of_a_long_history_few_files_are_open_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = healthy(empty(0, 1))
    for _ in range(40):
        built.now_ms += 86_400_000
        built.commit(-1, "")
    opened_beside, plainly = list[int](), DayFiles._open

    def noting(files: DayFiles, table: str, day: str) -> tuple[pq.ParquetWriter, Path]:
        opened_beside.append(len(files._writers))
        return plainly(files, table, day)

    monkeypatch.setattr(DayFiles, "_open", noting)
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)
    assert len(opened_beside) > 40
    assert max(opened_beside) < 24


def test_several_logs_and_the_catalog(tmp_path: Path) -> None:
    logs = [drawn(1, 60, 0, 2), healthy(empty(1, 2)), healthy_catalog(empty(2, 2))]
    for built in logs:
        export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake", tasks=2)
    check(tmp_path / "lake", *logs)
    topics = {"gone", "near", "orders", "regions", "tenants"}
    assert {row["topic"] for row in rows_of(tmp_path / "lake", "topics")} == topics


@pytest.mark.parametrize("seed", range(4))
def test_runs_after_each_other_give_what_one_gives_and_leave_finished_days_alone(
    seed: int, tmp_path: Path
) -> None:
    built = drawn(seed, 150)
    finished: dict[Path, bytes] = {}
    before = 0
    for upto in (1, 2, 40, 41, 90, 151):
        export(tmp_path / "export", built, upto)
        (done,) = build(tmp_path / "export", tmp_path / "lake")
        assert done.entries == upto - before
        for path, content in finished.items():
            assert path.read_bytes() == content
        finished = {
            path: path.read_bytes()
            for path in (tmp_path / "lake").glob("*/day=*/*.parquet")
            if path.parent.name != "day=open"
        }
        before = upto
        part = LogBuilder(built.entries[:upto], shard_count=1, shard=0)
        check(tmp_path / "lake", part)


class Killed(Exception):
    pass


def test_a_run_that_is_killed_anywhere_is_completed_by_the_next_and_no_row_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = drawn(3, 70)
    export(tmp_path / "export", built, 40)
    build(tmp_path / "export", tmp_path / "before")
    export(tmp_path / "export", built)
    left = 0
    replace, unlink = Path.replace, Path.unlink

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    def counted_replace(path: Path, target: Path) -> Path:
        count()
        return replace(path, target)

    def counted_unlink(path: Path) -> None:
        count()
        unlink(path)

    steps, killed = 0, True
    while killed:
        lake = tmp_path / str(steps)
        shutil.copytree(tmp_path / "before", lake)
        left = steps
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", counted_replace)
            patched.setattr(Path, "unlink", counted_unlink)
            try:
                build(tmp_path / "export", lake)
                killed = False
            except Killed:
                steps += 1
        places = [(row["epoch"], row["offset"]) for row in rows_of(lake, "generations")]
        assert len(places) == len(set(places))
        build(tmp_path / "export", lake)
        check(lake, built)
        assert not list((lake / "_runs").glob("*"))
    assert steps > 15


def leave_out(lake: Path, table: str, column: str) -> None:
    """Makes a lake one of a version that did not have a column."""
    paths = list(lake.glob(f"{table}/day=*/*.parquet"))
    assert paths
    for path in paths:
        pq.write_table(pq.ParquetFile(path).read().drop_columns([column]), path)
    mark = lake / LAKE_MARK
    stated = json.loads(mark.read_text("utf-8"))
    stated["columns"][table].remove(column)
    mark.write_text(json.dumps(stated), "utf-8")


def test_columns_that_an_earlier_version_did_not_write_have_their_defaults(tmp_path: Path) -> None:
    built, lake = drawn(5, 80), tmp_path / "lake"
    export(tmp_path / "export", built, 40)
    build(tmp_path / "export", lake)
    leave_out(lake, "members", "reason")
    export(tmp_path / "export", built)
    build(tmp_path / "export", lake)
    wanted = [row | {"reason": row["reason"] or None} for row in expected(built)["members"]]
    found = [{"reason": None} | row for row in rows_of(lake, "members")]
    for row in (*found, *wanted):
        if row["day"] != "open":
            row["reason"] = ""  # of the rows that were final, some are of the earlier version
    assert in_order([row | {"reason": row["reason"] or ""} for row in found]) == in_order(
        [row | {"reason": row["reason"] or ""} for row in wanted]
    )


def test_a_lake_without_zones_goes_on_with_them(tmp_path: Path) -> None:
    built, lake = healthy_catalog(empty(0, 0)), tmp_path / "lake"
    export(tmp_path / "export", built, 5)  # with the first zones of `near`
    build(tmp_path / "export", lake)
    leave_out(lake, "topics", "zones")
    export(tmp_path / "export", built)
    build(tmp_path / "export", lake)
    near = [row for row in rows_of(lake, "topics") if row["topic"] == "near"]
    assert [(row.get("zones"), row["ended_by"]) for row in sorted(near, key=lambda row: row["offset"])] == [
        (None, "zones changed"),
        ('{"eu": [0, 1]}', None),
    ]


ADDED = {"members": ("client_version", "identity", "secret_hash"), "generations": ("claimed",)}
"""Columns that the first version of the lake did not have; nor had it the table `operations`."""


def test_a_lake_of_the_first_version_goes_on_with_what_came_since(tmp_path: Path) -> None:
    logs = [drawn(5, 80, 0, 1), healthy_catalog(empty(1, 1))]
    lake, upto = tmp_path / "lake", 40
    for built in logs:
        export(tmp_path / "export", built, min(upto, len(built.entries) - 1))
    build(tmp_path / "export", lake)
    for table, names in ADDED.items():
        for name in names:
            leave_out(lake, table, name)
    shutil.rmtree(lake / "operations")
    mark = lake / LAKE_MARK
    stated = json.loads(mark.read_text("utf-8"))
    del stated["columns"]["operations"]
    mark.write_text(json.dumps(stated), "utf-8")
    before = {name: {row["offset"] for row in rows_of(lake, name) if row["day"] != "open"} for name in ADDED}
    for built in logs:
        export(tmp_path / "export", built)
    build(tmp_path / "export", lake)
    wanted = expected(*logs)
    assert [row["kind"] for row in rows_of(lake, "operations")] == ["feature enabled"]  # the rest was there
    for table, names in ADDED.items():
        found = {tuple(row[one] for one in KEYS[table]): row for row in rows_of(lake, table)}
        known = 0
        for row in wanted[table]:
            stored = found[tuple(row[one] for one in KEYS[table])]
            said = [stored.get(name) for name in names]
            known += said == [row[name] for name in names]
            if row["offset"] > upto:
                assert said == [row[name] for name in names]
            elif row["offset"] in before[table]:
                assert said == [None] * len(names)
        assert known, table


KEYS = {"members": ("offset", "group_id", "member_id"), "generations": ("offset", "group_id")}


def test_every_column_that_is_added_later_must_have_a_default() -> None:
    """These had none from the first version on; what comes later is missing in rows that are carried on."""
    required = {
        name: [field.name for field in fields(row) if field.default is MISSING] for name, row in ALL.items()
    }
    assert {name: len(names) for name, names in required.items()} == {
        "generations": 20, "members": 14, "assignments": 10, "commits": 7, "settings": 5, "topics": 7,
        "coordinators": 11, "operations": 5,
    }  # fmt: skip


def test_a_lake_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    export(tmp_path / "export", healthy(empty(0, 1)))
    build(tmp_path / "export", tmp_path / "lake")
    mark = tmp_path / "lake" / LAKE_MARK
    stated = json.loads(mark.read_text("utf-8"))
    stated["columns"]["members"].append("mood")
    mark.write_text(json.dumps(stated), "utf-8")
    with pytest.raises(LogUnreadableError, match=r"a later version \(members.mood\)"):
        build(tmp_path / "export", tmp_path / "lake")


def test_another_history_another_cluster_and_another_folder_are_refused(tmp_path: Path) -> None:
    built = drawn(1, 40)
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    export(tmp_path / "other", drawn(2, 60))
    with pytest.raises(LogUnreadableError, match="of another history"):
        build(tmp_path / "other", tmp_path / "lake")
    export(tmp_path / "shorter", built, 20)
    with pytest.raises(LogUnreadableError, match="of another history"):
        build(tmp_path / "shorter", tmp_path / "lake")
    export(tmp_path / "two", healthy(empty(0, 2)))
    with pytest.raises(LogUnreadableError, match=r"with 1 shards, not of .* with 2"):
        build(tmp_path / "two", tmp_path / "lake")
    with pytest.raises(LogUnreadableError, match="is no lake, and not empty"):
        build(tmp_path / "export", tmp_path / "other")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    export(tmp_path / "export", healthy(empty(0, 1)))
    with opened(tmp_path / "lake"), pytest.raises(LogUnreadableError, match=f"held by process {os.getpid()}"):
        build(tmp_path / "export", tmp_path / "lake")


def test_bytes_that_are_no_record_are_counted_and_in_no_table(tmp_path: Path) -> None:
    built = healthy(empty(0, 1))
    whole = expected(built)
    built.add(b"\xff\xff\xff")
    export(tmp_path / "export", built)
    (done,) = build(tmp_path / "export", tmp_path / "lake")
    assert (done.undecodable, done.entries) == (1, 23)
    assert rows_of(tmp_path / "lake", "commits") == whole["commits"]
    assert rows_of(tmp_path / "lake", "generations") == whole["generations"]


def test_files_say_what_their_columns_mean(tmp_path: Path) -> None:
    export(tmp_path / "export", healthy(empty(0, 1)))
    build(tmp_path / "export", tmp_path / "lake")
    read = set[str]()
    for name, row in ALL.items():
        assert all(column.doc.endswith(".") for column in columns(row)), name
        for path in (tmp_path / "lake" / name).glob("day=*/*.parquet"):
            read.add(name)
            stored = pq.read_schema(path)
            told = json.loads(stored.metadata[b"org.apache.spark.sql.parquet.row.metadata"])
            assert {one["name"]: one["metadata"]["comment"] for one in told["fields"]} == {
                column.name: column.doc for column in columns(row)
            }
    assert ALL.keys() - read == {"operations", "settings", "topics"}, "the log has nothing for them"


def test_the_page_of_the_tables_is_up_to_date() -> None:
    program = Path(__file__).parent.parent.parent / "tools" / "data.py"
    written = runpy.run_path(str(program))
    stored = written["PAGE"].read_text("utf-8")
    assert written["page"](stored) == stored, "`./x data` writes docs/data.md"


@pytest.mark.parametrize("seed", range(4))
def test_incremental_groups_give_what_a_plain_computation_gives(seed: int, tmp_path: Path) -> None:
    built = as_log(IncrementalLife(seed).play(150).cluster)
    assert len(built.entries) > 50
    for upto in (len(built.entries) // 3, len(built.entries) // 2, len(built.entries)):
        export(tmp_path / "export", built, upto)
        build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)


LIVES = [
    *((conversion_fuzz.life, seed) for seed in range(6)),
    *((incremental_fuzz.life, seed) for seed in range(4)),
]
"""Of groups of both kinds in turn, and of incremental ones with weights, holds, streams and expressions."""


@pytest.mark.parametrize(("life", "seed"), LIVES)
def test_groups_of_both_kinds_give_what_a_plain_computation_gives(
    life: Callable[[int, int], IncrementalShardLife], seed: int, tmp_path: Path
) -> None:
    built = as_log(life(seed, 80).cluster)
    for upto in (len(built.entries) // 3, len(built.entries) // 2, len(built.entries)):
        export(tmp_path / "export", built, upto)
        build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)


def test_a_target_that_moves_more_than_it_must_is_seen(tmp_path: Path) -> None:
    log = IncrementalLog(healthy())
    log.subscribe("a")
    log.raised(1)
    log.target(1, ("a", (0, 1, 2, 3), ()))
    log.subscribe("b")
    log.raised(2)
    log.target(2, ("a", (), (2, 3)), ("b", (2, 3), ()))
    log.raised(3)
    log.target(3, ("a", (3,), (0,)), ("b", (0,), (3,)))
    log.subscribe("c")
    log.raised(4)
    log.target(4, ("b", (), (0, 2)), ("c", (0,), ()))
    log.removed("a")
    log.raised(5)
    log.target(5, ("b", (1,), ()), ("c", (2, 3), ()))
    for upto in (len(log.built.entries) - 4, None):
        export(tmp_path / "export", log.built, upto)
        build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", log.built)
    found = {
        row["generation"]: (row["partitions"], row["moves"], row["minimum_moves"])
        for row in rows_of(tmp_path / "lake", "generations")
        if row["group_id"] == log.group
    }
    assert found == {1: (4, 4, 4), 2: (4, 2, 2), 3: (4, 2, 0), 4: (3, 1, 1), 5: (4, 3, 3)}


def test_what_is_set_for_a_group_is_a_row_until_something_else_is(tmp_path: Path) -> None:
    built = healthy(empty(0, 1))
    for settings in (
        GroupSettings(hold=True),
        GroupSettings(hold=False, convert="auto"),
        GroupSettings(),
        GroupSettings(assignment_interval_ms=0),
    ):
        altered = records_pb2.GroupSettingsAltered(group_id=built.group, settings=settings)
        built.add(records_pb2.Record(group_settings_altered=altered, critical=True))
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", built)
    found = sorted(rows_of(tmp_path / "lake", "settings"), key=lambda row: row["offset"])
    assert [
        (row["hold"], row["convert"], row["assignment_interval_ms"], row["ended_by"]) for row in found
    ] == [
        (True, None, None, "altered"),
        (False, "auto", None, "altered"),
        (None, None, 0, None),
    ]


def test_a_member_of_an_incremental_group_has_the_times_and_the_weight_that_it_said_last(
    tmp_path: Path,
) -> None:
    log = IncrementalLog(healthy())
    for member_id, seq, session_ms, grace_ms in (("a", 1, 9_000, 60_000), ("b", 1, 0, 0), ("a", 2, 7_000, 0)):
        told = log.told(member_id, seq)
        told.session_timeout_ms, told.disconnect_grace_ms = session_ms, grace_ms
        told.weight = seq - 1 and 7
        log.add(
            member_subscribed=incremental_pb2.MemberSubscribed(group_id=log.group, member=told, joined=True)
        )
    export(tmp_path / "export", log.built)
    build(tmp_path / "export", tmp_path / "lake")
    check(tmp_path / "lake", log.built)
    found = {
        row["member_id"]: (row["session_timeout_ms"], row["disconnect_grace_ms"], row["weight"])
        for row in rows_of(tmp_path / "lake", "members")
        if row["group_id"] == log.group
    }
    assert found == {"a": (7_000, 0, 7), "b": (0, 0, 1)}
