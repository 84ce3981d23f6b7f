"""Whom members belong to, and their secrets, as a log may say it: G18."""

from typing import Any

import pytest
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
from muster_protos.muster.v1 import coordinator_pb2


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


@pytest.mark.parametrize(
    ("invariant", "wrong"),
    [
        ("G6", {"protocols": [coordinator_pb2.GroupProtocol(name="other")]}),
        ("G16", {"session_timeout_ms": 0}),
        ("G16", {"secret_hash": b"short"}),
        ("G18", {"identity": "bob"}),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
def test_what_is_wrong_with_a_later_join_is_told(invariant: str, wrong: dict[str, Any], others: int) -> None:
    built = healthy()
    generation_with(built, 2, "z", "alice")
    for generation in (3, 4):
        record = records_pb2.Record.FromString(built.entries[-1].record)
        started = record.generation_started
        started.generation = generation
        started.members[0].member_seq += 1
        if generation == 4:
            said = {field.name: value for field, value in started.members[0].ListFields()}
            started.members[0].CopyFrom(records_pb2.Member(**{**said, **wrong}))
            started.members.add().CopyFrom(started.members[0])
            started.members[1].MergeFrom(records_pb2.Member(member_id="y", session_timeout_ms=1))
            del started.members[1 + others :]
        built.add(record)
        assert (invariant in check(built).broken) == (generation == 4)


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
