"""Every promise about logs can be seen broken: one damaged log for each."""

import pytest
from kit.logs.damaged_logs import DAMAGES, OF_NODES_AND_SNAPSHOTS, OF_THE_CATALOG, Damage
from kit.logs.incremental_log import with_converted_group, with_incremental_group
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.reverted_log import with_reverted_group
from muster_core.audit.invariants import INVARIANTS, Findings
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.log_checker import LogChecker
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.log.snapshot import Covered, parts
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2

CLUSTER = records_pb2.Genesis(cluster_id="c", shard_count=50)


def check(built: LogBuilder, anchor: tuple[Position, bytes] | None = None) -> Findings:
    checker = LogChecker(3, anchor, cluster=CLUSTER)
    for entry in built.entries:
        checker.add(entry)
    return checker.finish()


def check_in_pages(built: LogBuilder, size: int) -> Findings:
    """Checks a log in pages of `size` entries, as a reader of streams makes them."""
    checker = LogChecker(3, cluster=CLUSTER)
    for start in range(0, len(built.entries), size):
        part = built.entries[start : start + size]
        checker.add_page(
            Page.of_stream(
                [entry.position.stream_id.encode() for entry in part],
                [entry.record for entry in part],
                [entry.nonce for entry in part],
                [entry.hash for entry in part],
            )
        )
    return checker.finish()


def with_every_kind() -> LogBuilder:
    """A healthy log of groups of both kinds, and of such as changed theirs, either way."""
    return with_reverted_group(with_converted_group(with_incremental_group(healthy())))


def test_a_healthy_log_breaks_nothing_and_is_really_looked_at() -> None:
    findings = check(with_every_kind())
    assert findings.violations == []
    assert set(INVARIANTS) - set(findings.checked) == OF_NODES_AND_SNAPSHOTS | OF_THE_CATALOG | {"L9", "G12"}
    assert check_in_pages(with_every_kind(), 4).checked == findings.checked


FOUND_BY_ENTRIES = [damage for damage in DAMAGES if damage.invariant != "G12"]  # the replay finds that one


@pytest.mark.parametrize("damage", FOUND_BY_ENTRIES, ids=lambda damage: f"{damage.invariant}: {damage.name}")
def test_a_damaged_log_is_found_out(damage: Damage) -> None:
    built = healthy()
    damage.make(built)
    findings = check(built)
    assert damage.invariant in findings.broken
    assert all(violation.position in {e.position for e in built.entries} for violation in findings.violations)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"{damage.invariant}: {damage.name}")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_log_read_in_pages_shows_the_same(damage: Damage, size: int) -> None:
    built = healthy()
    damage.make(built)
    one_by_one, in_pages = check(built), check_in_pages(built, size)
    assert in_pages.checked == one_by_one.checked
    assert in_pages.broken == one_by_one.broken
    assert set(in_pages.violations) == set(one_by_one.violations)


def test_every_promise_has_a_damaged_log() -> None:
    assert {damage.invariant for damage in DAMAGES} | OF_NODES_AND_SNAPSHOTS | OF_THE_CATALOG == set(
        INVARIANTS
    )


def test_kept_tokens() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.generation(1, "a")
    built.assignment(1, a=[0])
    given = built.end
    built.generation(2, "a")
    built.keep(2, "a", 0, given)
    assert check(built).violations == []
    built.generation(3, "b")
    built.keep(3, "b", 0, given, leader="b")  # a had it
    assert check(built).broken == {"G13": 1}


def test_a_token_from_the_future() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.generation(1, "a")
    built.keep(1, "a", 0, Position(1, 99))
    assert check(built).broken == {"G13": 1}


def test_a_trimmed_log_begins_where_its_snapshot_reaches() -> None:
    whole = healthy()
    anchor = whole.entries[6]
    tail = LogBuilder(entries=whole.entries[7:])
    del tail.entries[0]  # the replacement speaks of members that only the snapshot knows
    anchor = whole.entries[7]
    findings = check(tail, (anchor.position, anchor.hash))
    assert {key for key in findings.broken if key.startswith("L")} == set()


def test_violations_are_bounded_and_all_are_counted() -> None:
    built = healthy()
    for _ in range(50):
        built.commit(7, "stranger")
    findings = check(built)
    assert findings.broken["O3"] == 50
    assert len(findings.violations) == 20


@pytest.mark.parametrize("kib", [2_500, 3_000])
def test_a_generation_of_more_bytes_than_a_record_may_have_is_found_out(kib: int) -> None:
    built = healthy()
    built.metadata = bytes(kib << 10)
    built.generation(2, "a", "b", "c")
    findings = check_in_pages(built, 100)
    too_long = kib == 3_000
    assert ("G11" in findings.broken) == too_long
    assert check(built).broken["G11"] == too_long


def test_what_groups_remember_is_compared_with_a_snapshot_and_not_kept_for_nothing() -> None:
    """AUD-18."""
    built = with_every_kind()
    state = Shard(built.shard, GroupConfig())
    for entry in built.entries:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    covered = Covered(built.shard, built.end, built.entries[-1].hash, catalog_place=state.catalog_place)

    def audited(stored: bool) -> LogAudit:
        snapshot = StoredSnapshot(list(parts(state.groups.values(), covered)), b"")
        audit = LogAudit(built.shard, snapshots={built.end: lambda: snapshot} if stored else {})
        audit.add_page(page_of(built.entries))
        return audit

    assert audited(stored=True).findings.violations == audited(stored=False).findings.violations == []
    assert any(group.history for group in state.groups.values())
    assert not any(group.history for group in audited(stored=False).groups.values())
    for group in state.groups.values():
        if group.history:
            group.history[-1].started_at_ms += 1
            assert audited(stored=True).findings.broken == {"G12": 1}
            group.history[-1].started_at_ms -= 1


@pytest.mark.parametrize(("length", "moves"), [(100, 1_000), (2, 1_000), (1, 0), (100, 1), (3, 4)])
def test_how_much_groups_remember_is_a_setting_and_what_they_remember_is_compared(
    length: int, moves: int
) -> None:
    """AUD-18."""
    built = healthy()
    for number in range(2, 7):
        built.generation(number, "z", "y")
        built.assignment(number, "z", z=[number % 2, 3], y=[1 - number % 2, 4])
    state = Shard(built.shard, GroupConfig(history_length=length, history_moves=moves))
    for entry in built.entries:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    history = state.groups[built.group].history
    covered = Covered(built.shard, built.end, built.entries[-1].hash, catalog_place=state.catalog_place)

    def broken() -> dict[str, int]:
        snapshot = StoredSnapshot(list(parts(state.groups.values(), covered)), b"")
        audit = LogAudit(built.shard, snapshots={built.end: lambda: snapshot})
        audit.add_page(page_of(built.entries))
        return dict(audit.findings.broken)

    assert broken() == {}
    latest, first = history[-1], history[0]
    latest.moves_truncated = not latest.moves_truncated
    assert broken() == {"G12": 1}
    latest.moves_truncated = not latest.moves_truncated
    history.insert(0, first)
    assert broken() == {"G12": 1}
    history.pop(0)
    del history[-1]
    assert broken() == {"G12": 1}
    history.clear()
    assert broken() == {"G12": 1}
