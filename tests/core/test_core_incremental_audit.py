"""What the audit knows of incremental groups: lives of the core break no promise, snapshots are compared."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from kit.lives.incremental_life import CONFIG, IncrementalLife, as_log
from kit.logs.core_audit import broken_promises
from kit.logs.incremental_log import IncrementalLog, with_incremental_group
from kit.logs.log_builder import LogBuilder, healthy, page_of
from muster_core import cause_kind
from muster_core.audit.groups.incremental.state import GroupState, MemberState, Since
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Held, Member
from muster_core.log.snapshot import Covered, parts
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2


@pytest.mark.parametrize("seed", range(12))
def test_a_life_breaks_no_promise(seed: int) -> None:
    life = IncrementalLife(seed).play()
    assert broken_promises(life.cluster) == [], life.steps
    assert {"member_stepped", "target_assigned", "member_removed"} <= {*life.cluster.kinds()}


def replayed(built: LogBuilder, count: int) -> Shard:
    """The state after so many entries."""
    state = Shard(built.shard, CONFIG)
    for entry in built.entries[:count]:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    return state


def audited(built: LogBuilder, count: int, state: Shard, begin: int = 0) -> list[str]:
    """Which promises a log breaks that has a snapshot of a state after so many entries, and is trimmed."""
    last = built.entries[count - 1]
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
    audit.add_page(page_of(built.entries[begin:]))
    return sorted({violation.invariant for violation in audit.findings.violations})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_is_what_the_records_say(seed: int) -> None:
    built = as_log(IncrementalLife(seed).play().cluster)
    for count in range(20, len(built.entries), 40):
        assert audited(built, count, replayed(built, count)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_trimmed_log_is_followed_from_its_snapshot(seed: int) -> None:
    built = as_log(IncrementalLife(seed).play().cluster)
    count = len(built.entries) // 2
    assert audited(built, count, replayed(built, count), begin=count - 5) == []
    log = IncrementalLog(built)
    log.group = "g"
    log.raised(1_000)
    assert "I4" in audited(built, count, replayed(built, count), begin=count - 5)


def test_what_no_snapshot_covers_is_not_judged() -> None:
    built = as_log(IncrementalLife(1).play().cluster)
    audit = LogAudit(0, limits=CONFIG)
    audit.add_page(page_of(built.entries[len(built.entries) // 2 :]))
    assert not audit.findings.violations


def _with_token(member: Member, place: Position) -> Member:
    return replace(
        member, held={partition: Held(place, held.taken) for partition, held in member.held.items()}
    )


def _taken(member: Member, place: Position) -> Member:
    return replace(
        member, held={partition: Held(held.token, place) for partition, held in member.held.items()}
    )


@pytest.mark.parametrize("change", [_with_token, _taken])
def test_a_snapshot_with_another_token_is_found(change: Callable[[Member, Position], Member]) -> None:
    built = with_incremental_group(healthy())
    state = replayed(built, len(built.entries))
    incremental = state.groups[IncrementalLog(built).group].incremental
    assert incremental is not None
    incremental.put(change(incremental.members["a"], Position(1, 3)))
    assert {"G12", "I7"} <= {*audited(built, len(built.entries), state)}


def test_the_audit_does_not_believe_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the core's own replay makes snapshots that it finds right; the audit counts by itself."""
    built = with_incremental_group(healthy())
    right = IncrementalGroup.put
    monkeypatch.setattr(
        IncrementalGroup, "put", lambda group, member: right(group, _with_token(member, Position(1, 3)))
    )
    assert audited(built, len(built.entries), replayed(built, len(built.entries))) == ["I7"]


def test_the_place_of_an_away_member_is_followed() -> None:
    """What was to be given back is free once its member is away, and a new process has new tokens."""
    built = healthy()
    log = IncrementalLog(with_incremental_group(built))
    log.target(5, ("d", (), (3,)), ("a", (3,), ()))
    log.step("d", 3, taken=(3,))
    log.away("d")
    log.step("a", 5, given=(3,))
    assert audited(built, len(built.entries), replayed(built, len(built.entries))) == []


def test_a_deadline_is_counted_within_one_owner() -> None:
    built = healthy()
    log = IncrementalLog(with_incremental_group(built))
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 3, taken=(2,))
    built.claim("coordinator-3")
    log.removed("b", cause_kind.REBALANCE_TIMEOUT)
    assert audited(built, len(built.entries), replayed(built, len(built.entries))) == []


def test_who_has_something_to_give_back_keeps_its_epoch() -> None:
    """Also where the target has it again, or its topic was deleted; a step from there goes on, not back."""
    told = incremental_pb2.IncrementalMember(member_id="a", on_session=True)
    given, later = Position(1, 5), Position(1, 9)
    member = MemberState(told, epoch=1, held={("t", 0): Since(given)}, target={("t", 0)})
    group = GroupState(epoch=3, target_epoch=3, members={"a": member})
    assert group.derived_epoch(member) == 3
    member.held["t", 0] = Since(given, taken=later)
    assert group.derived_epoch(member) == 1
    member.held["t", 0] = Since(given)
    group.renew(["t"], later)
    group.target_epoch = 4
    assert group.derived_epoch(member) == 3
