"""What a report shows of the groups in one log."""

from collections import Counter

from kit.logs.incremental_log import IncrementalLog, with_converted_group, with_incremental_group
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.reverted_log import with_reverted_group
from muster_audit.reading.facts import Fact, GroupSeen, Rebalances
from muster_audit.reading.timeline import Timeline
from muster_core import cause_kind
from muster_core.audit.log_audit import LogAudit


def facts_of(built: LogBuilder) -> list[Fact]:
    """What a pass over a log tells, which breaks no promise."""
    timeline = Timeline(built.shard, span_ms=1_000)
    audit = LogAudit(built.shard, watch=timeline.watch)
    audit.add_page(page_of(built.entries))
    assert audit.finish(built.end).violations == []
    return list(timeline.facts(audit.groups))


def test_groups_of_both_kinds_have_members_and_rebalances() -> None:
    before = facts_of(healthy(LogBuilder()))
    facts = facts_of(with_reverted_group(with_converted_group(with_incremental_group(healthy(LogBuilder())))))
    seen = {one.group_id: one for one in facts if isinstance(one, GroupSeen)}
    (classic,) = (one for one in before if isinstance(one, GroupSeen))
    assert seen.pop(classic.group_id) == classic
    kinds = [seen[LogBuilder().named(name)].group_kind for name in "ikr"]
    assert [classic.group_kind, *kinds] == ["classic", "incremental", "incremental", "classic"]
    incremental, converted = seen[LogBuilder().named("i")], seen[LogBuilder().named("k")]
    # Its epochs 1 to 3 moved partitions; the target of epoch 4 moved none, and epoch 5 has none yet.
    assert (incremental.members, incremental.generation, incremental.rebalances) == (3, 5, 3)
    assert (incremental.state, incremental.last_cause, incremental.unexpected) == (
        "assigning",
        "member joined",
        0,
    )
    # A generation as a classic group, and the epoch after it became incremental, by which nothing moved.
    assert (converted.members, converted.generation, converted.rebalances) == (2, 2, 2)
    assert (converted.state, converted.last_cause) == ("stable", "converted")
    # Epoch 2 moved partitions, and so did epoch 1; a generation followed when it was classic again.
    reverted = seen[LogBuilder().named("r")]
    assert (reverted.members, reverted.generation, reverted.rebalances) == (2, 3, 3)
    assert (reverted.state, reverted.last_cause) == ("stable", "converted")


def test_the_picture_of_members_follows_groups_of_both_kinds() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    rebalances, changes = Counter[str](), Counter[str]()
    for one in facts_of(with_converted_group(with_incremental_group(built))):
        if isinstance(one, Rebalances):
            rebalances[one.cause] += one.generations
            changes[one.cause] += one.members_change
    assert sum(changes.values()) == 3 + 2
    assert changes["session expired"] == -1
    # Three epochs of the one group, and the generation of the other.
    assert (rebalances["member joined"], rebalances["converted"]) == (3 + 1, 1)


def test_work_of_a_lost_member_that_moves_is_unexpected() -> None:
    built = with_incremental_group(healthy(LogBuilder()))
    log = IncrementalLog(built)
    built.now_ms += 45_000
    log.removed("d", cause_kind.SESSION_EXPIRED, 45_000)
    log.raised(6, cause_kind.SESSION_EXPIRED)
    log.target(6, ("a", (3,), ()))
    (seen,) = (one for one in facts_of(built) if isinstance(one, GroupSeen) and one.group_id == log.group)
    assert (seen.members, seen.rebalances, seen.unexpected) == (2, 4, 1)
    assert seen.last_cause == "session expired"
