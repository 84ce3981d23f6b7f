"""A lake's tables in a real catalog of Iceberg: PyIceberg's own on SQLite."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")
pytest.importorskip("pyiceberg", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow.parquet as pq
from kit.logs.drawn_logs import drawn
from kit.logs.lake_folders import build, expected, export, in_order
from kit.logs.log_builder import LogBuilder, healthy
from kit.logs.log_nodes import CLUSTER, empty
from kit.logs.plain_tables import Table
from muster_audit.lake import iceberg
from muster_audit.lake.iceberg import LAKE, RUN, publish
from muster_audit.lake.reading import DAY_DOC
from muster_audit.lake.row import columns
from muster_audit.lake.store import LAKE_MARK
from muster_audit.lake.tables import ALL
from muster_server.verify.reader import LogUnreadableError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Transaction
from pyiceberg.utils.config import Config

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog called `local`, as a user configures it."""
    (tmp_path / "warehouse").mkdir()
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n"
        "  local:\n"
        "    type: sql\n"
        f"    uri: sqlite:///{tmp_path}/catalog.db\n"
        f"    warehouse: file://{tmp_path}/warehouse\n",
        "utf-8",
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read once, at the import
    return load_catalog("local")


def check(catalog: Catalog, *logs: LogBuilder) -> None:
    for name, rows in expected(*logs).items():
        assert rows_of(catalog, name) == rows, name


def rows_of(catalog: Catalog, name: str) -> Table:
    return in_order(catalog.load_table(f"muster.{name}").scan().to_arrow().to_pylist())


def test_runs_after_each_other_give_what_one_gives_and_add_only_what_is_new(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_CHUNK_ROWS", 20)
    built, folder = drawn(3, 150), tmp_path / "lake"
    final: set[str] = set()
    for upto in (2, 60, 61, 151):
        export(tmp_path / "export", built, upto)
        (done,) = build(tmp_path / "export", folder)
        counts = publish(folder, "local", "muster")
        assert {name: count for name, count in counts.items() if count} == done.rows
        check(catalog, LogBuilder(built.entries[:upto], shard_count=1, shard=0))
        files = catalog.load_table("muster.commits").scan().plan_files()
        paths = {one.file.file_path for one in files if one.file.partition[0] != "open"}
        assert paths >= final
        final = paths
    assert publish(folder, "local", "muster") == dict.fromkeys(ALL, 0)
    for path in folder.glob("*/day=*/*.parquet"):
        path.unlink()  # the catalog has files of its own
    check(catalog, built)


def test_tables_say_what_they_and_their_columns_mean_and_are_parted_by_day(
    tmp_path: Path, catalog: Catalog
) -> None:
    export(tmp_path / "export", drawn(1, 80))
    build(tmp_path / "export", tmp_path / "lake")
    publish(tmp_path / "lake", "local", "muster")
    for name, row in ALL.items():
        table = catalog.load_table(f"muster.{name}")
        told = {field.name: field.doc for field in table.schema().fields}
        assert told == {one.name: one.doc for one in columns(row)} | {"day": DAY_DOC}
        assert table.properties["comment"].splitlines()[0] in (row.__doc__ or "")
    scan = catalog.load_table("muster.commits").scan(row_filter="day = '2023-11-15'")
    assert {task.file.partition[0] for task in scan.plan_files()} == {"2023-11-15"}


def test_a_table_of_an_earlier_version_gains_columns_and_their_meaning(
    tmp_path: Path, catalog: Catalog
) -> None:
    built, folder = drawn(5, 150), tmp_path / "lake"
    export(tmp_path / "export", built, 60)
    build(tmp_path / "export", folder)
    for path in folder.glob("members/day=*/*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["reason"]), path)
    publish(folder, "local", "muster")
    with catalog.load_table("muster.members").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("reason")
        update.update_column("host", doc="What it meant then.")
    before = catalog.load_table("muster.members")
    assert "reason" not in before.schema().column_names
    export(tmp_path / "export", built)
    build(tmp_path / "export", folder)
    publish(folder, "local", "muster")

    table = catalog.load_table("muster.members")
    assert {field.name: field.doc for field in table.schema().fields} == {
        one.name: one.doc for one in columns(ALL["members"])
    } | {"day": DAY_DOC}
    found, wanted = rows_of(catalog, "members"), expected(built)["members"]
    assert {row["reason"] for row in found} == {None, "", "enough"}
    assert in_order([row | {"reason": ""} for row in found]) == in_order(
        [row | {"reason": ""} for row in wanted]
    )
    unchanged = before.scan().to_arrow()
    assert "reason" not in unchanged.column_names  # who reads the snapshot before sees it as it was


class Killed(Exception):
    pass


def test_a_run_that_is_killed_anywhere_changes_a_table_whole_or_not_and_the_next_one_does_the_rest(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, folder = drawn(3, 70), tmp_path / "lake"
    export(tmp_path / "export", built, 40)
    build(tmp_path / "export", folder)
    publish(folder, "local", "muster")
    old = {name: rows_of(catalog, name) for name in ALL}
    export(tmp_path / "export", built)
    build(tmp_path / "export", folder)
    new = expected(built)
    left = 0

    def kill_at(method: str) -> None:
        whole = getattr(Transaction, method)

        def counted(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return whole(*args, **kwargs)

        monkeypatch.setattr(Transaction, method, counted)

    for method in ("append", "delete", "set_properties", "commit_transaction"):
        kill_at(method)
    steps, killed = 0, True
    while killed:
        left = steps
        try:
            publish(folder, "local", "muster")
            killed = False
        except Killed:
            steps += 1
        for name in ALL:
            assert rows_of(catalog, name) in (old[name], new[name]), (steps, name)
    assert steps > 5
    check(catalog, built)


def test_a_new_lake_of_the_same_log_takes_the_place_of_the_old_one(tmp_path: Path, catalog: Catalog) -> None:
    built = drawn(4, 90)
    for upto in (20, 50):
        export(tmp_path / "export", built, upto)
        build(tmp_path / "export", tmp_path / "lake")
        publish(tmp_path / "lake", "local", "muster")
    export(tmp_path / "export", built)
    shutil.rmtree(tmp_path / "lake")
    for _ in range(2):
        build(tmp_path / "export", tmp_path / "lake")
        publish(tmp_path / "lake", "local", "muster")
        check(catalog, built)
    lake = json.loads((tmp_path / "lake" / LAKE_MARK).read_text("utf-8"))
    properties = catalog.load_table("muster.commits").properties
    assert (properties[LAKE], properties[RUN]) == (lake["id"], "2")


def test_tables_of_another_cluster_or_a_later_version_and_unknown_catalogs_are_refused(
    tmp_path: Path, catalog: Catalog
) -> None:
    export(tmp_path / "export", healthy(empty(0, 1)))
    build(tmp_path / "export", tmp_path / "lake")
    with pytest.raises(LogUnreadableError, match="catalog 'elsewhere' cannot be loaded"):
        publish(tmp_path / "lake", "elsewhere", "muster")
    publish(tmp_path / "lake", "local", "muster")
    with catalog.load_table("muster.topics").update_schema() as update:
        update.add_column("mood", iceberg._TYPES["string"])
    with pytest.raises(LogUnreadableError, match=r"muster.topics .* \(mood\): a later version"):
        publish(tmp_path / "lake", "local", "muster")
    with catalog.load_table("muster.commits").transaction() as change:
        change.set_properties({iceberg.CLUSTER: "another"})
    with pytest.raises(LogUnreadableError, match=f"is of cluster another, not of {CLUSTER}"):
        publish(tmp_path / "lake", "local", "muster")
    assert publish(tmp_path / "lake", "local", "other") == {
        "generations": 3, "members": 3, "assignments": 4, "commits": 8, "settings": 0, "topics": 0,
        "coordinators": 1, "operations": 0,
    }  # fmt: skip


def test_who_changes_a_table_meanwhile_is_not_overwritten(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = drawn(3, 70)
    export(tmp_path / "export", built, 40)
    build(tmp_path / "export", tmp_path / "lake")
    publish(tmp_path / "lake", "local", "muster")
    export(tmp_path / "export", built)
    build(tmp_path / "export", tmp_path / "lake")
    commit = Transaction.commit_transaction

    def late(change: Transaction) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "commit_transaction", commit)
            catalog.load_table("muster.generations").delete("day = 'open'")
        return commit(change)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit_transaction", late)
        with pytest.raises(LogUnreadableError, match=r"generations .* by somebody else"):
            publish(tmp_path / "lake", "local", "muster")
    publish(tmp_path / "lake", "local", "muster")
    check(catalog, built)
