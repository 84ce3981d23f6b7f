"""Partitions that the catalog has removed, as the core carries that out."""

from typing import Any

import pytest
from conformance import acts
from core.test_core_sync_edges import given, owning
from core.test_core_topics import UNKNOWN_TOPIC, codes
from kit.lives.incremental_shard import NumberedMember, incremental_of, incremental_shard, settle
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import through_snapshot
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import TopicsChanged
from muster_core.features import NO_FEATURES
from muster_core.incremental.group import IncrementalGroupState
from muster_core.position import Position
from muster_core.protocol.topics import removed_partitions
from muster_core.state.quarantine import Quarantine
from muster_protos.limits import PARKED_PREFIX
from muster_protos.muster.v1 import coordinator_pb2

RANGE: dict[str, Any] = {"protocols": [("range", owning())]}


def hear(
    cluster: VirtualShard,
    offset: int,
    count: int,
    *removed: int,
    deleted: dict[str, int] | None = None,
    incarnation: int | None = 1,
) -> None:
    """The shard hears that topic `t` has so many partitions, removed ones included."""
    catalog = Catalog(
        offset,
        {"t": count, "other": 9},
        deleted or {},
        {} if incarnation is None else {"t": incarnation},
        epoch=1,
        removed={"t": frozenset(removed)} if removed else {},
    )
    cluster.feed(TopicsChanged(frozenset({"t"}) if removed else frozenset(), catalog=catalog))


def notes(cluster: VirtualShard) -> list[tuple[str, list[int]]]:
    return [
        (entry.topic, list(entry.partitions))
        for _, record in cluster.log
        for entry in record.partitions_removed.topics
    ]


def test_what_was_committed_in_a_removed_partition_goes_and_nothing_is_committed_there_again() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    acts.commit(cluster, partitions={0: 1, 1: 2})
    acts.commit(cluster, topic="other", partitions={1: 3})
    acts.commit(cluster, topic=f"{PARKED_PREFIX}t", partitions={0: 4, 1: 5})
    acts.commit(cluster, group_id="h", partitions={1: 6})
    hear(cluster, 6, 3, 1)
    for each in (cluster, cluster.reloaded()):
        hear(each, 6, 3, 1)
        assert acts.fetch(each) == {("other", 1): 3, ("parked/t", 0): 4, ("t", 0): 1}
        assert acts.fetch(each, "h") == {}
        assert acts.commit(each, topic=f"{PARKED_PREFIX}t", partitions={1: 8}) == UNKNOWN_TOPIC
        answer = each.ask(acts.commit_of(partitions={0: 7, 1: 8}))
        assert codes(answer) == [0, UNKNOWN_TOPIC]
        acts.commit(each, partitions={0: 1})
        assert notes(each) == [("t", [1])], "it is noted once"


def test_a_removal_takes_what_is_on_its_way() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    acts.commit(cluster, partitions={2: 8})
    cluster.auto_ack = False
    early = cluster.send(acts.commit_of(partitions={1: 7}))
    first = cluster.send(acts.commit_of(group_id="first", partitions={1: 7}))
    hear(cluster, 6, 3, 1)
    late = cluster.send(acts.commit_of(partitions={1: 9}))
    while cluster.waiting:
        cluster.acknowledge()
        assert ("t", 1) not in acts.fetch(cluster)
    cluster.auto_ack = True
    assert [codes(cluster.answer(call)) for call in (early, first, late)] == [[0], [0], [UNKNOWN_TOPIC]]
    for each in (cluster, cluster.reloaded()):
        assert acts.fetch(each) == {("t", 2): 8}
        assert acts.fetch(each, "first") == {}


def test_the_next_owner_removes_what_nobody_removed() -> None:
    before = acts.shard()
    hear(before, 5, 3)
    acts.commit(before, partitions={0: 1, 1: 2})
    after = before.reloaded()
    hear(after, 9, 3, 1)
    for each in (after, after.reloaded()):
        assert acts.fetch(each) == {("t", 0): 1}


def test_an_assignment_that_names_a_removed_partition_is_refused_and_the_leader_joins_again() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    who, other = acts.joined(cluster, acts.member(cluster, "a", **RANGE), acts.member(cluster, "b", **RANGE))
    plan = {who.member_id: given(0, 1), other.member_id: given(2)}
    hear(cluster, 6, 3, 1)
    refused = who.sync(plan).synced()
    assert refused.error_code in (UNKNOWN_TOPIC, error_code.REBALANCE_IN_PROGRESS)
    for each in (who, other):
        each.join()
    for each in (who, other):
        assert each.joined().error_code == 0
    answer = who.sync(plan).synced()
    assert answer.error_code == UNKNOWN_TOPIC
    assert "t/1 is given, and was removed" in answer.error_message
    assert who.sync({**plan, who.member_id: given(0)}).synced().error_code == 0


def test_who_owns_a_partition_that_is_removed_commits_nothing_there() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    (who,) = acts.joined(cluster, acts.member(cluster, "a", **RANGE))
    who.sync({who.member_id: given(0, 1, 2)}).synced()
    assert acts.commit(cluster, who, partitions={1: 5}) == 0
    catalog = Catalog(6, {"t": 3}, {}, {"t": 1}, epoch=1, removed={"t": frozenset({1})})
    cluster.feed(TopicsChanged(frozenset(), catalog=catalog))
    assert acts.commit(cluster, who, partitions={1: 6}) == UNKNOWN_TOPIC
    assert acts.commit(cluster, who, partitions={0: 6}) == 0


def test_a_topic_that_is_created_again_has_what_was_removed_of_the_one_before() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    acts.commit(cluster, partitions={0: 1, 1: 2})
    hear(cluster, 6, 3, 1)
    hear(cluster, 9, 2, deleted={"t": 8}, incarnation=9)
    assert acts.commit(cluster, partitions={1: 3}) == 0
    hear(cluster, 12, 2, 0, deleted={"t": 8}, incarnation=9)
    assert acts.fetch(cluster) == {("t", 1): 3}
    after = cluster.reloaded()
    hear(after, 12, 2, 0, deleted={"t": 8}, incarnation=9)
    assert acts.fetch(after) == {("t", 1): 3}
    assert after.shard.removed == (("t", (0,)),)


def test_what_the_log_says_of_removals_stands_in_the_snapshot() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3)
    acts.commit(cluster, partitions={0: 1, 1: 2})
    hear(cluster, 6, 3, 1, 2)
    copy = through_snapshot(cluster.reloaded().shard, Position(2, 9), cluster.config)
    assert copy.removed == (("t", (1, 2)),)


def test_a_removal_takes_the_offsets_of_a_group_that_cannot_be_read_either() -> None:
    before = acts.shard()
    hear(before, 5, 3)
    acts.commit(before, group_id="bad", partitions={0: 1, 1: 2})
    bad = frozenset({"bad"})
    held = before.reloaded(quarantine=Quarantine(bad, unreadable=bad))
    hear(held, 6, 3, 1)
    assert acts.fetch(held.reloaded(), "bad") == {("t", 0): 1}


def test_a_shard_that_knows_nothing_of_the_topic_writes_nothing() -> None:
    cluster = acts.shard()
    acts.commit(cluster, topic="other")
    written = len(cluster.log)
    hear(cluster, 6, 3, 1)
    assert len(cluster.log) == written


@pytest.mark.parametrize("removed", [(), (0, 1, 2)])
def test_a_plan_counts_the_partitions_that_there_are(removed: tuple[int, ...]) -> None:
    cluster = acts.shard(max_partitions=2)
    hear(cluster, 5, 4, *removed)
    (who,) = [acts.member(cluster, "a", **RANGE)]
    who.join()
    cluster.advance(60_000)
    assert (who.joined().error_code == 0) == bool(removed)


def test_nothing_of_it_happens_without_removed_partitions() -> None:
    cluster = VirtualShard(features=NO_FEATURES)
    hear(cluster, 5, 3)
    acts.commit(cluster)
    hear(cluster, 6, 4)
    assert "partitions_removed" not in cluster.kinds()


def test_a_removal_takes_what_some_groups_have_at_a_time_and_nobody_is_shown_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-32: what 20,000 groups had in a partition held the loop for 0.9 s."""
    monkeypatch.setattr(removed_partitions, "_STEP_GROUPS", 2)
    cluster = acts.shard()
    hear(cluster, 5, 3)
    ids = [f"g{number}" for number in range(7)]
    for group_id in ids:
        acts.commit(cluster, group_id=group_id, partitions={0: 1, 1: 2})
    hear(cluster, 6, 3, 1)
    left, turns = 7, 0
    while left:
        assert [acts.fetch(cluster, one) for one in ids] == [{("t", 0): 1}] * 7
        assert acts.commit(cluster, group_id="g6", partitions={1: 8}) == UNKNOWN_TOPIC
        before, turns = left, turns + 1
        left = sum([("t", 1) in cluster.shard.groups[one].offsets.table for one in ids])
        assert before - left <= 2
        cluster.advance(1)
    assert turns > 7 // 2
    assert notes(cluster) == [("t", [1])]


def test_the_rest_of_a_removal_takes_nothing_of_a_later_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_partitions, "_STEP_GROUPS", 1)
    cluster = acts.shard()
    hear(cluster, 5, 3)
    ids = [f"g{number}" for number in range(4)]
    for group_id in ids:
        acts.commit(cluster, group_id=group_id, partitions={1: 2})
    hear(cluster, 6, 3, 1)
    hear(cluster, 9, 3, deleted={"t": 8}, incarnation=9)
    for group_id in ids:
        assert acts.commit(cluster, group_id=group_id, partitions={1: 3}) == 0
    cluster.advance(1_000)
    assert [acts.fetch(cluster, one) for one in ids] == [{("t", 1): 3}] * 4


def test_a_removal_that_was_not_carried_out_to_its_end_is_by_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(removed_partitions, "_STEP_GROUPS", 1)
    before = acts.shard()
    hear(before, 5, 3)
    for group_id in "abc":
        acts.commit(before, group_id=group_id, partitions={0: 1, 1: 2})
    hear(before, 6, 3, 1)
    after = before.reloaded()
    assert sum([("t", 1) in group.offsets.table for group in after.shard.groups.values()]) == 2
    hear(after, 6, 3, 1)
    after.advance(1_000)
    for each in (after, after.reloaded()):
        assert [group.offsets.topics() for group in each.shard.groups.values()] == [{"t"}] * 3
        assert not any(("t", 1) in group.offsets.table for group in each.shard.groups.values())


class Unread(dict[Any, Any]):
    """A table that nobody goes through."""

    def __iter__(self) -> Any:
        raise AssertionError("all offsets of a group were looked at")


def test_a_removal_looks_at_no_group_without_offsets_in_the_topic() -> None:
    """A thousand partitions were looked for in each of 5,000 groups, for 2.5 s, ten times a second."""
    cluster = acts.shard()
    hear(cluster, 5, 3)
    acts.commit(cluster, group_id="other", topic="other", partitions={1: 3})
    acts.commit(cluster, partitions={0: 1, 1: 2})
    acts.commit(cluster, group_id="parks", topic=f"{PARKED_PREFIX}t", partitions={1: 2})
    acts.commit(cluster, group_id="gave up", partitions={1: 3})
    removal = coordinator_pb2.OffsetDeleteRequest(group_id="gave up")
    removal.topics.add(topic="t", partitions=[1])
    cluster.ask(removal)
    for group_id in ("other", "gave up"):
        offsets = cluster.shard.groups[group_id].offsets
        offsets.table = Unseen(offsets.table)
    hear(cluster, 6, 3, 1)
    assert acts.fetch(cluster) == {("t", 0): 1}
    assert not cluster.shard.groups["parks"].offsets.table


def test_a_removal_of_many_partitions_looks_at_the_few_that_a_group_has() -> None:
    cluster = acts.shard()
    hear(cluster, 5, 1_000)
    acts.commit(cluster, partitions={0: 1, 1: 2})
    offsets = cluster.shard.groups["g"].offsets
    offsets.table = Unasked(offsets.table)
    hear(cluster, 6, 1_000, *range(1, 1_000))
    offsets.table = {**offsets.table}
    assert acts.fetch(cluster) == {("t", 0): 1}


class Unasked(dict[Any, Any]):
    """A table in which nobody looks for what is not there."""

    def __contains__(self, partition: object) -> bool:
        raise AssertionError(f"{partition} was looked for")


class Unseen(Unread, Unasked):
    """A table that nobody looks at."""


def test_a_catalog_that_removes_nothing_is_taken_in_without_a_look_at_offsets() -> None:
    """LIM-49: a shard may have a million, and each topic that is created or deleted makes a new catalog."""
    cluster = acts.shard()
    hear(cluster, 5, 3, 2)
    acts.commit(cluster, partitions={0: 1, 1: 2})
    offsets = cluster.shard.groups["g"].offsets
    offsets.table = Unread(offsets.table)
    hear(cluster, 6, 3, 2)
    hear(cluster, 7, 4, 2)
    with pytest.raises(AssertionError, match="were looked at"):
        hear(cluster, 8, 4, 1, 2)


@pytest.mark.parametrize("incarnation", [1, None], ids=["known", "of-an-earlier-version"])
@pytest.mark.parametrize("is_reloaded", [False, True], ids=["same-owner", "next-owner"])
def test_a_removal_goes_with_its_topic_also_where_no_group_has_anything_of_it(
    is_reloaded: bool, incarnation: int | None
) -> None:
    cluster = acts.shard()
    hear(cluster, 5, 3, incarnation=incarnation)
    (gone,) = acts.joined(cluster, acts.member(cluster, "a", **RANGE))
    hear(cluster, 6, 3, 1, incarnation=incarnation)
    assert notes(cluster) == [("t", [1])]
    assert gone.leave() == 0
    after = cluster.reloaded() if is_reloaded else cluster
    hear(after, 9, 2, deleted={"t": 8}, incarnation=9)
    (member,) = acts.joined(after, acts.member(after, "b", **RANGE))
    assert member.sync({member.member_id: given(0, 1)}).synced().error_code == 0
    assert acts.commit(after, member, partitions={1: 5}) == 0
    assert after.shard.removed == ()
    assert broken_promises(after) == []


def test_nobody_is_given_what_was_removed_since_the_target_was_computed() -> None:
    cluster = incremental_shard(4, config=GroupConfig(incremental_assignment_interval_ms=20_000))
    first, second = NumberedMember(cluster, "a"), NumberedMember(cluster, "b")
    first.join()
    cluster.advance(20_001)
    second.join()
    first.beat(first.owned)
    target = incremental_of(cluster).members["b"].target
    removed, left = sorted(target)
    catalog = Catalog(9, {"t": 4}, {}, {"t": 2}, removed={"t": frozenset({removed[1]})})
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=catalog))
    first.beat(first.owned)
    second.beat(second.owned)
    assert incremental_of(cluster).members["b"].target == target, "the next one is not computed yet"
    assert second.has == {left}
    cluster.advance(20_001)
    settle(first, second)
    assert incremental_of(cluster).state is IncrementalGroupState.STABLE
    assert first.has | second.has == {("t", number) for number in range(4)} - {removed}
    assert broken_promises(cluster) == []
