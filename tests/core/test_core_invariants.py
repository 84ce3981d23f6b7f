"""Every promise about logs can be seen broken: one damaged log for each."""

from collections.abc import Callable

import pytest
from kit.log_builder import LogBuilder, healthy
from muster_core.invariants import INVARIANTS, Findings
from muster_core.log_checker import LogChecker
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2 as log


def check(built: LogBuilder, anchor: tuple[Position, bytes] | None = None) -> Findings:
    checker = LogChecker(3, anchor)
    for entry in built.entries:
        checker.add(entry)
    return checker.findings


def test_a_healthy_log_breaks_nothing_and_is_really_looked_at() -> None:
    findings = check(healthy())
    assert findings.violations == []
    unseen = set(INVARIANTS) - set(findings.checked)
    assert unseen == {"G13"}  # nothing is kept in this log: `test_kept_tokens`


def _a_gap(built: LogBuilder) -> None:
    built.add(log.Record(offset_committed=log.OffsetCommitted(group_id="x", generation=-1)), skip=1)


def _an_older_epoch(built: LogBuilder) -> None:
    built.add(log.Record(offset_committed=log.OffsetCommitted(group_id="x", generation=-1)), epoch=1)


def _a_claim_that_names_another_entry(built: LogBuilder) -> None:
    built.claim("coordinator-3", previous=Position(1, 4))


def _a_second_claim_of_an_epoch(built: LogBuilder) -> None:
    built.claim("coordinator-3", epoch=built.epoch)


def _a_new_epoch_without_a_claim(built: LogBuilder) -> None:
    built.epoch += 1
    built.commit(-1, "")


def _a_record_after_the_handoff(built: LogBuilder) -> None:
    built.handoff("coordinator-2")
    built.commit(-1, "")


def _a_handoff_by_a_stranger(built: LogBuilder) -> None:
    built.handoff("coordinator-9")


def _an_edited_record(built: LogBuilder) -> None:
    record = log.Record.FromString(built.entries[4].record)
    record.offset_committed.offsets[0].offset = 99
    built.change(4, record=record.SerializeToString())


def _a_nonce_twice(built: LogBuilder) -> None:
    built.add(log.Record(offset_committed=log.OffsetCommitted(group_id="x", generation=-1)), nonce=1003)


def _a_log_without_genesis(built: LogBuilder) -> None:
    del built.entries[0]


def _bytes_that_are_no_record(built: LogBuilder) -> None:
    built.add(b"\xff\xff\xff")


def _a_skipped_generation(built: LogBuilder) -> None:
    built.generation(3, "z")


def _a_generation_twice(built: LogBuilder) -> None:
    built.generation(1, "z")


def _two_assignments(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.assignment(1, leader="z", z=[1])


def _an_assignment_of_another_generation(built: LogBuilder) -> None:
    built.assignment(2, leader="z", z=[0])


def _an_assignment_to_a_stranger(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0], stranger=[1])


def _a_leader_that_is_no_member(built: LogBuilder) -> None:
    built.generation(2, "z", leader="stranger")


def _an_assignment_by_another_than_the_leader(built: LogBuilder) -> None:
    built.assignment(1, leader="y", z=[0])


def _a_protocol_that_nobody_supports(built: LogBuilder) -> None:
    built.generation(2, "z", protocol="sticky")


def _a_member_that_leaves_twice(built: LogBuilder) -> None:
    built.left(1, "z")
    built.left(1, "z")


def _a_group_removed_with_members(built: LogBuilder) -> None:
    built.tombstone()


def _a_partition_for_two(built: LogBuilder) -> None:
    built.generation(2, "y", "z")
    built.assignment(2, leader="y", y=[0, 1], z=[1])


def _a_static_id_for_two(built: LogBuilder) -> None:
    built.generation(2, "y=s", "z=s")


def _a_replacement_of_a_dynamic_member(built: LogBuilder) -> None:
    built.replaced(1, "z", "y", "static")


def _a_member_that_comes_back(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2, "z")


def _a_commit_twice(built: LogBuilder) -> None:
    built.commit(1, "z", 5)
    built.commit(1, "z", 5)


def _a_commit_of_an_old_generation(built: LogBuilder) -> None:
    built.generation(2, "z")
    built.commit(1, "z", 1)


def _a_commit_of_a_stranger(built: LogBuilder) -> None:
    built.commit(1, "stranger", 1)


DAMAGES: list[tuple[str, Callable[[LogBuilder], None]]] = [
    ("L1", _a_gap),
    ("L2", _an_older_epoch),
    ("L3", _a_claim_that_names_another_entry),
    ("L3", _a_second_claim_of_an_epoch),
    ("L3", _a_new_epoch_without_a_claim),
    ("L4", _a_record_after_the_handoff),
    ("L4", _a_handoff_by_a_stranger),
    ("L6", _an_edited_record),
    ("L7", _a_nonce_twice),
    ("L8", _a_log_without_genesis),
    ("L10", _bytes_that_are_no_record),
    ("G1", _a_skipped_generation),
    ("G1", _a_generation_twice),
    ("G2", _two_assignments),
    ("G2", _an_assignment_of_another_generation),
    ("G3", _an_assignment_to_a_stranger),
    ("G5", _a_leader_that_is_no_member),
    ("G5", _an_assignment_by_another_than_the_leader),
    ("G6", _a_protocol_that_nobody_supports),
    ("G7", _a_member_that_leaves_twice),
    ("G7", _a_group_removed_with_members),
    ("G9", _a_partition_for_two),
    ("G10", _a_static_id_for_two),
    ("G10", _a_replacement_of_a_dynamic_member),
    ("M4", _a_member_that_comes_back),
    ("O2", _a_commit_twice),
    ("O3", _a_commit_of_an_old_generation),
    ("O3", _a_commit_of_a_stranger),
]


@pytest.mark.parametrize(("invariant", "damage"), DAMAGES, ids=[f"{i}{d.__name__}" for i, d in DAMAGES])
def test_a_damaged_log_is_found_out(invariant: str, damage: Callable[[LogBuilder], None]) -> None:
    built = healthy()
    damage(built)
    findings = check(built)
    assert invariant in findings.broken
    assert all(violation.position in {e.position for e in built.entries} for violation in findings.violations)


def test_every_promise_has_a_damaged_log() -> None:
    assert {invariant for invariant, _ in DAMAGES} | {"G13"} == set(INVARIANTS)


def test_kept_tokens() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.generation(1, "a", "b")
    built.assignment(1, a=[0], b=[1])
    given = built.end
    built.generation(2, "a", "b")
    built.keep(2, "a", 0, given)
    assert check(built).violations == []
    built.generation(3, "a", "b")
    built.keep(3, "b", 0, given)  # a had it
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
