"""The lake of a log that was trimmed before its first export: what began before comes from the snapshot."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from kit.lives.incremental_life import IncrementalLife, as_log
from kit.logs.damaged_catalogs import healthy_catalog
from kit.logs.drawn_logs import drawn
from kit.logs.lake_folders import build, expected, export_trimmed, rows_of
from kit.logs.lived_logs import lived
from kit.logs.log_builder import LogBuilder
from kit.logs.log_nodes import empty
from kit.logs.plain_tables import Table
from muster_audit.reading.exported import ShardExport
from muster_core.position import NOWHERE
from muster_protos.muster.log.v1 import records_pb2
from muster_server.verify.reader import LogUnreadableError

pytestmark = pytest.mark.spark

KEYS = {
    "members": ("group_id", "member_id"),
    "assignments": ("group_id", "topic", "partition", "member_id", "token"),
    "generations": ("group_id", "generation"),
    "settings": ("group_id",),
    "topics": ("topic", "incarnation"),
}
KNOWN = {
    "members": (
        "group_instance_id",
        "client_id",
        "last_generation",
        "reason",
        "client_version",
        "identity",
        "secret_hash",
    ),
    "assignments": ("epoch", "offset"),
    "generations": (
        "epoch",
        "offset",
        "from_ms",
        "leader",
        "protocol_name",
        "members",
        "cause",
        "assigned_at_ms",
    ),
    "settings": ("convert", "hold", "session_timeout_ms", "assignor"),
    "topics": ("partitions", "zones", "names", "weights"),
}
"""What a row that began before has of the whole log's row, besides its key and its end."""

LOGS = [*((drawn, seed) for seed in range(4)), *((lived, seed) for seed in (1, 4, 9))]


def key(name: str, row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[column] for column in KEYS[name])


def check(folder: Path, built: LogBuilder, first: int, upto: int) -> int:
    """Holds a lake against the tables of the whole log; gives the number of rows that began before."""
    covered_ms = records_pb2.Record.FromString(built.entries[upto - 1].record).written_at_ms
    begun = 0
    for name, wanted in expected(built).items():
        found = rows_of(folder, name)
        if name not in KEYS:
            later = [row for row in wanted if row["offset"] >= first]
            check_without_owner_before(found, later)
            continue
        assert [row for row in found if not row["begun_before"]] == [
            row for row in wanted if row["offset"] > upto
        ], name
        whole = {
            key(name, row): row
            for row in sorted(wanted, key=lambda row: row["offset"])
            if row["offset"] <= upto
        }
        for row in (row for row in found if row["begun_before"]):
            begun += 1
            known = whole.pop(key(name, row))
            same = KNOWN[name]
            if known["to_ms"] is None or known["to_ms"] > covered_ms:
                same = (*same, "to_ms", "ended_by", "day")
            else:  # one that was given up, and that nobody else had got yet
                assert row["to_ms"] <= covered_ms, (name, row)
            assert [row[column] for column in same] == [known[column] for column in same], (name, row)
        lost = [row for row in whole.values() if row["to_ms"] is None or row["to_ms"] > covered_ms]
        assert not lost, name
    return begun


def check_without_owner_before(found: Table, later: Table) -> None:
    """Commits, and owners but for what the first one says of the one before, which nobody knows."""
    if found and "unowned_ms" in found[0]:
        first = min(later, key=lambda row: row["offset"])
        first |= {"unowned_ms": None, "planned": False}

    def order(row: dict[str, Any]) -> tuple[int, str, int]:
        return row["offset"], str(row.get("topic")), row.get("partition", 0)

    assert sorted(found, key=order) == sorted(later, key=order)


@pytest.mark.parametrize("where", [0.25, 0.5, 0.8])
@pytest.mark.parametrize(("make", "seed"), LOGS)
def test_what_began_before_a_trimmed_log_is_marked_and_not_lost(
    make: object, seed: int, where: float, tmp_path: Path
) -> None:
    built = drawn(seed, 150) if make is drawn else lived(seed)
    upto = int(len(built.entries) * where)
    first = max(upto - 5, 2)
    export_trimmed(tmp_path / "export", built, first, upto)
    build(tmp_path / "export", tmp_path / "lake")
    begun = check(tmp_path / "lake", built, first, upto)
    assert begun > 0 or make is lived


def test_topics_of_a_trimmed_catalog_are_there(tmp_path: Path) -> None:
    built = healthy_catalog(empty(2, 2))
    export_trimmed(tmp_path / "export", built, 7, 8)
    build(tmp_path / "export", tmp_path / "lake")
    assert check(tmp_path / "lake", built, 7, 8) == 2
    topics = rows_of(tmp_path / "lake", "topics")
    found = {
        (topic["topic"], topic["partitions"], topic["zones"], topic["day"])
        for topic in topics
        if topic["topic"] not in ("tenants", "regions")  # they come later
    }
    assert found == {("orders", 4, None, "open"), ("near", 4, '{"eu": [0, 1]}', "open")}


def test_a_log_without_its_beginning_and_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    built = drawn(3, 60)
    export_trimmed(tmp_path / "export", built, 20, 25)
    shard = ShardExport.open(tmp_path / "export", 0)
    shard.snapshot_upto = NOWHERE
    shard._list()
    with pytest.raises(LogUnreadableError, match="and no snapshot stands for what was before"):
        build(tmp_path / "export", tmp_path / "lake")


@pytest.mark.parametrize("seed", range(3))
def test_who_has_what_in_an_incremental_group_comes_from_the_snapshot(seed: int, tmp_path: Path) -> None:
    built = as_log(IncrementalLife(seed).play(150).cluster)
    first = len(built.entries) // 2
    export_trimmed(tmp_path / "export", built, first, first + 5)
    build(tmp_path / "export", tmp_path / "lake")
    for name in ("assignments", "members"):
        lasting = [
            {key(name, row) for row in rows if row["to_ms"] is None}
            for rows in (rows_of(tmp_path / "lake", name), expected(built)[name])
        ]
        assert lasting[0] == lasting[1]
    targets = [
        {(row["member_id"], row["target"]) for row in rows if row["to_ms"] is None}
        for rows in (rows_of(tmp_path / "lake", "members"), expected(built)["members"])
    ]
    assert targets[0] == targets[1]
    begun_before = [row for row in rows_of(tmp_path / "lake", "assignments") if row["begun_before"]]
    assert all(row["offset"] <= first + 5 for row in begun_before)
