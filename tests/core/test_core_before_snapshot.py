"""A trimmed log says the same before the end of its oldest snapshot as that snapshot does."""

from collections.abc import Callable

import pytest
from kit.lives.conversion_fuzz import life as converted_life
from kit.lives.incremental_life import CONFIG, IncrementalLife, as_log
from kit.logs.damaged_fronts import FORGED_FRONTS, Front
from kit.logs.forged_members import ONE, generation_with
from kit.logs.incremental_log import IncrementalLog, with_incremental_group
from kit.logs.lived_logs import lived
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.reverted_log import RevertedLog
from muster_core.audit.groups.group_checker import GroupChecker
from muster_core.audit.groups.removal_checker import Catalog, RemovalChecker
from muster_core.audit.invariants import Findings
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.log.record_run import RecordRun
from muster_core.log.snapshot import Covered, parts
from muster_core.log.topics.topics import StoredTopic, Topics
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

_Named = common_pb2.PartitionNames.Partition

LIVES: dict[str, Callable[[int], LogBuilder]] = {
    "classic": lambda seed: lived(seed, length=1_500),
    "incremental": lambda seed: as_log(IncrementalLife(seed).play().cluster),
    "both kinds": lambda seed: as_log(converted_life(seed, 600).cluster),
}


def audited(built: LogBuilder, begin: int, upto: int, forged: LogBuilder | None = None) -> list[str]:
    """Which promises a log breaks that begins with an entry and has a snapshot up to another one.

    `forged`: the log that is read instead of the one that the snapshot is of.
    """
    state = Shard(built.shard, CONFIG)
    for entry in built.entries[: upto + 1]:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    last = (forged or built).entries[upto]
    covered = Covered(
        built.shard,
        last.position,
        last.hash,
        catalog_place=state.catalog_place,
        incarnations=state.incarnations,
        removed=state.removed,
    )
    stored = StoredSnapshot(list(parts(state.groups.values(), covered)), b"")
    audit = LogAudit(built.shard, limits=CONFIG, snapshots={last.position: lambda: stored})
    audit.add_page(page_of((forged or built).entries[begin:]))
    return sorted({violation.invariant for violation in audit.findings.violations})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lives", LIVES)
def test_a_life_says_what_its_snapshots_say(lives: str, seed: int) -> None:
    built = LIVES[lives](seed)
    count = len(built.entries)
    assert count > 30
    for upto in range(10, count, max(count // 12, 1)):
        for begin in (1, upto // 2, upto - 3):
            assert audited(built, begin, upto) == [], (begin, upto)


def _forged(make: Callable[[LogBuilder], None], change: Callable[[records_pb2.Record], object]) -> list[str]:
    """What is found where the last entry before the end of the snapshot was forged, with all hashes right."""
    built, forged = healthy(), healthy()
    for log in (built, forged):
        begin = len(log.entries)
        make(log)
    record = records_pb2.Record.FromString(forged.entries.pop().record)
    change(record)
    forged.add(record)
    upto = len(built.entries) - 1
    assert audited(built, begin, upto) == []
    return audited(built, begin, upto, forged)


def _member_of(record: records_pb2.Record) -> records_pb2.Member:
    return record.generation_started.members[0]


def _tombstone(record: records_pb2.Record) -> records_pb2.GroupTombstone:
    return records_pb2.GroupTombstone(group_id=record.offset_committed.group_id, last_generation=1)


def _joined(built: LogBuilder) -> None:
    IncrementalLog(with_incremental_group(built)).subscribe("f")


def _stepped(built: LogBuilder) -> None:
    log = IncrementalLog(with_incremental_group(built))
    log.target(5)
    log.step("a", 5)


def _raised(built: LogBuilder) -> None:
    IncrementalLog(with_incremental_group(built)).raised(6)


def _set(built: LogBuilder) -> None:
    altered = records_pb2.GroupSettingsAltered(group_id=built.group)
    altered.settings.hold = True
    built.add(records_pb2.Record(critical=True, group_settings_altered=altered))


def _held(built: LogBuilder) -> None:
    log = IncrementalLog(with_incremental_group(built))
    until_ms = built.now_ms + 60_000
    log.add(
        moves_held=incremental_pb2.MovesHeld(
            group_id=log.group, member_id="a", began_ms=built.now_ms, until_ms=until_ms
        )
    )


def _reverted(built: LogBuilder) -> None:
    RevertedLog(built).revert()


@pytest.mark.parametrize(
    ("invariant", "make", "change"),
    [
        (
            "G18",
            lambda built: generation_with(built, 2, "z", "alice", ONE),
            lambda record: setattr(_member_of(record), "identity", "bob"),
        ),
        (
            "G18",
            lambda built: generation_with(built, 2, "z", "alice", ONE),
            lambda record: setattr(_member_of(record), "secret_hash", b""),
        ),
        (
            "G12",
            lambda built: generation_with(built, 2, "z"),
            lambda record: setattr(_member_of(record), "session_timeout_ms", 1),
        ),
        (
            "G12",
            lambda built: generation_with(built, 2, "z"),
            lambda record: setattr(record.generation_started, "generation", 3),
        ),
        (
            "O2",
            lambda built: built.commit(1, "z", 9),
            lambda record: setattr(record.offset_committed.offsets[0], "offset", 8),
        ),
        (
            "G12",
            lambda built: built.commit(1, "z", 9),
            lambda record: record.group_tombstone.MergeFrom(_tombstone(record)),
        ),
        ("G18", _joined, lambda record: setattr(record.member_subscribed.member, "identity", "bob")),
        ("G12", _joined, lambda record: setattr(record.member_subscribed.member, "member_id", "g")),
        ("I3", _stepped, lambda record: setattr(record.member_stepped, "epoch", 4)),
        ("I4", _raised, lambda record: setattr(record.epoch_raised, "epoch", 7)),
        ("G12", _set, lambda record: setattr(record.group_settings_altered.settings, "hold", False)),
        ("G12", _set, lambda record: record.group_settings_altered.ClearField("settings")),
        ("I10", _held, lambda record: setattr(record.moves_held, "until_ms", record.moves_held.until_ms + 1)),
        ("G12", _reverted, lambda record: setattr(record.group_reverted, "generation", 3)),
        ("G18", _reverted, lambda record: setattr(record.group_reverted.members[0], "identity", "bob")),
    ],
)
def test_what_was_forged_before_the_oldest_snapshot_is_found(
    invariant: str,
    make: Callable[[LogBuilder], None],
    change: Callable[[records_pb2.Record], object],
) -> None:
    assert invariant in _forged(make, change)


@pytest.mark.parametrize(
    "front", [front for front in FORGED_FRONTS if "in the oldest snapshot" in front.name]
)
def test_an_oldest_snapshot_that_cannot_be_is_found(front: Front) -> None:
    built = healthy()
    front.make(built)
    state = Shard(built.shard, CONFIG)
    for entry in built.entries:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    findings = Findings()
    GroupChecker(findings, trimmed=True).begin_with(state.groups, built.end)
    assert not findings.broken
    front.change(state)
    GroupChecker(findings, trimmed=True).begin_with(state.groups, built.end)
    assert front.invariant in findings.broken


def _noted(
    number: int, *, incarnation: int | None = 3, seen: int = 5, restored_ms: int = 0
) -> dict[str, int]:
    """What is broken where a number was noted as removed; of `t` the catalog removed number 1."""
    built = healthy()
    removed = records_pb2.PartitionsRemoved()
    removed.topics.add(topic="t", partitions=[number])
    built.add(records_pb2.Record(critical=True, partitions_removed=removed))
    findings = Findings()
    checker = RemovalChecker(findings)
    checker.add_run(RecordRun(built.end, [built.entries[-1].record]))
    names = common_pb2.PartitionNames(partitions=[_Named(name="a"), _Named()])
    topics = Topics()
    topics.by_name["t"] = StoredTopic(2, 3, names=names.SerializeToString(deterministic=True))
    known = {} if incarnation is None else {"t": incarnation}
    checker.check_catalog(Catalog(topics, restored_ms), known, Position(1, seen), built.end)
    return dict(findings.broken)


def test_a_removal_of_the_catalog_is_right() -> None:
    assert _noted(1) == {}


def test_a_removal_that_is_not_in_the_catalog_is_found() -> None:
    assert _noted(0) == {"G17": 1}
    assert _noted(0, incarnation=None) == {"G17": 1}


def test_another_topic_of_the_name_is_no_matter() -> None:
    assert _noted(0, incarnation=2) == {}
    assert _noted(0, incarnation=None, seen=2) == {}


def test_a_restore_may_have_lost_a_removal() -> None:
    assert _noted(0, restored_ms=2**60) == {}
