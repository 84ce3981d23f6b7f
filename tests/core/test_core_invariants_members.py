"""Whom members belong to, and their secrets, as a log may say it: G18."""

from core.test_core_invariants import check
from kit.logs.forged_members import FORGED_MEMBERS, ONE, OTHER, generation_with, members_that_may_be
from kit.logs.log_builder import healthy
from muster_core.audit.groups.group_checker import GroupChecker
from muster_core.audit.invariants import Findings
from muster_core.config import GroupConfig
from muster_core.log.record_run import RecordRun
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2


def test_what_a_member_may_get_and_who_may_follow_it_is_no_break() -> None:
    built = healthy()
    members_that_may_be(built)
    assert check(built).violations == []


def test_each_change_is_told_once_with_its_place() -> None:
    for make in FORGED_MEMBERS:
        built = healthy()
        make(built)
        (violation,) = check(built).violations
        assert (violation.invariant, violation.position) == ("G18", built.end), make.__name__


def test_a_group_that_was_removed_leaves_nothing_behind() -> None:
    built = healthy()
    generation_with(built, 2, "z", "alice", ONE)
    built.left(2, "z")
    built.generation(3)
    built.tombstone(3)
    generation_with(built, 1, "y", "bob", OTHER)
    assert check(built).violations == []


def test_what_a_snapshot_knows_of_a_member_counts() -> None:
    built = healthy()
    generation_with(built, 2, "z", "alice", ONE)
    state = Shard(built.shard, GroupConfig())
    for entry in built.entries:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    findings = Findings()
    checker = GroupChecker(findings, trimmed=True)
    checker.begin_with(state.groups, built.end)
    generation_with(built, 3, "z", "bob", OTHER)
    last = built.entries[-1]
    checker.add_run(RecordRun(Position(*last.position), [last.record]))
    assert findings.broken == {"G18": 2}
