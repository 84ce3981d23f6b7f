"""Deletions of topics, as the core carries them out: each once, at one place of the log."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conformance import acts
from core.test_core_kept_partitions import first_alone, generation, join, published, share
from core.test_core_sync_edges import given, kept, owning
from kit.lives.incremental_shard import GROUP, incremental_shard, joined
from kit.lives.virtual_shard import VirtualShard
from kit.logs.snapshots import through_snapshot
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.events import TopicsChanged
from muster_core.features import ALL_FEATURES, NO_FEATURES
from muster_core.position import Position
from muster_core.protocol.incremental.heartbeats import IncrementalHeartbeats
from muster_core.protocol.topics import topic_deletions
from muster_core.state.group import Group
from muster_core.state.offsets.offset_store import OffsetStore
from muster_core.state.quarantine import Quarantine
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2

UNKNOWN_TOPIC = error_code.UNKNOWN_TOPIC_OR_PARTITION


def hear(
    cluster: VirtualShard,
    offset: int,
    partitions: dict[str, int],
    deletions: dict[str, int] | None = None,
    *,
    carried_out: int = 0,
    incarnations: dict[str, int] | None = None,
    deletions_since: int = 0,
    epoch: int = 0,
) -> None:
    """The shard hears of the catalog as of a place of its log."""
    catalog = Catalog(offset, partitions, deletions or {}, incarnations or {}, deletions_since, epoch)
    cluster.feed(TopicsChanged(frozenset(), catalog=catalog, carried_out=carried_out))


def test_a_change_of_topics_looks_closely_at_those_groups_that_it_may_concern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that was created took 0.1 s of a shard with 40,000 groups, and one that was deleted 0.5 s."""
    looked_at: list[str] = []

    def counting(owner: Any, name: str, group_of: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def counted(*args: Any) -> Any:
            looked_at.append(f"{name} {group_of(*args)}")
            return real(*args)

        monkeypatch.setattr(owner, name, counted)

    counting(IncrementalHeartbeats, "look_again", lambda _, group, *__: group.group_id)
    counting(Group, "renew", lambda group, _: group.group_id)
    counting(topic_deletions, "tombstones_by_topic", lambda _, group_id, *__: group_id)
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1, "other": 1})
    acts.stable(cluster, "a")
    for topic in ("t", "other"):
        acts.commit(cluster, topic=topic, group_id=f"commits in {topic}")
    counting(OffsetStore, "numbers_of", lambda store, _: str(len(store)))
    cluster.feed(TopicsChanged(frozenset({"new"}), catalog=Catalog(6, {"t": 1, "other": 1, "new": 1}, {})))
    assert looked_at == []
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(8, {"other": 1, "new": 1}, {"t": 7})))
    assert looked_at == [
        "numbers_of 1",
        "tombstones_by_topic commits in t",
        "renew g",
        "renew g",  # as the log says it
    ]
    assert acts.fetch(cluster, "commits in t") == {}
    assert acts.fetch(cluster, "commits in other") == {("other", 0): 1}


def test_a_deletion_after_a_snapshot_finds_who_owns_something() -> None:
    before = incremental_shard()
    joined(before, "a")
    copy = through_snapshot(before.reloaded().shard, Position(2, 9), before.config)
    record = records_pb2.Record()
    record.topics_seen.topics.append("t")
    record.topics_seen.catalog_offset = 7
    copy.replay(Position(2, 10), record)
    group = copy.groups[GROUP].incremental
    assert group is not None
    assert group.renewed == {"t": Position(2, 10)}


def codes(answer: object) -> list[int]:
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


class Counted(dict[Any, Any]):
    """A table that counts how often it is gone through."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += 1
        return super().__iter__()


def test_a_deletion_goes_once_through_what_a_plan_gives() -> None:
    """LIM-32: 200,000 partitions took 20 ms for each topic that was deleted, and again once it was noted."""
    cluster = acts.shard()
    hear(cluster, 5, {"t": 3, "u": 3, "v": 3})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    group = cluster.shard.groups["g"]
    group.owners = owners = Counted(group.owners)
    for offset, topic in enumerate("uv", 6):
        acts.commit(cluster, group_id="other", topic=topic, partitions={0: 1})
        hear(cluster, offset, {"t": 3}, {topic: offset})
        assert group.renewed_topics == set()
    assert owners.looks == 1
    hear(cluster, 9, {}, {"t": 9})
    assert group.renewed_topics == {"t"}
    assert owners.looks == 1
    known = weakref.ref(owners)
    del owners
    who.join().joined()
    who.sync({who.member_id: given(2)}).synced()
    assert known() is None, "it goes with the plan"


def test_a_deletion_that_concerns_no_member_looks_at_none() -> None:
    """LIM-32, in groups that the coordinator assigns."""
    cluster = incremental_shard()
    (who,) = joined(cluster, "a")
    group = cluster.shard.groups[GROUP].incremental
    assert group is not None
    member = group.members[who.member_id]
    held = Counted(member.held)
    group.members[who.member_id] = replace(member, told=replace(member.told, on_session=True), held=held)
    group.renew(["u"], Position(1, 9))
    assert held.looks == 0
    assert group.renewed == {}
    group.renew(["t"], Position(1, 10))
    assert held.looks > 0
    assert group.renewed == {"t": Position(1, 10)}


def test_a_topic_that_was_deleted_and_created_again_begins_without_offsets() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1, "other": 1})
    for topic in ("t", "other"):
        acts.commit(cluster, topic=topic)
    hear(cluster, 7, {"t": 1, "other": 1}, {"t": 6})
    for each in (cluster, cluster.reloaded()):
        assert acts.fetch(each) == {("other", 0): 1}


def test_a_deletion_takes_what_is_on_its_way_and_nothing_that_comes_later() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 3})
    acts.commit(cluster, partitions={2: 8})
    cluster.auto_ack = False
    early = cluster.send(acts.commit_of(offset=7))
    hear(cluster, 7, {"t": 3}, {"t": 6})
    late = cluster.send(acts.commit_of(partitions={1: 9}))
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    assert [codes(cluster.answer(call)) for call in (early, late)] == [[0], [0]]
    for each in (cluster, cluster.reloaded()):
        assert acts.fetch(each) == {("t", 1): 9}


def test_the_next_owner_carries_no_deletion_out_a_second_time() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1})
    acts.commit(cluster, offset=1)
    hear(cluster, 7, {"t": 1}, {"t": 6})
    acts.commit(cluster, offset=2)
    after = cluster.reloaded()
    hear(after, 5, {"t": 1})  # an instance of metadata that knows less
    hear(after, 7, {"t": 1}, {"t": 6})
    assert acts.fetch(after) == {("t", 0): 2}


def test_a_deletion_of_what_the_shard_knew_nothing_of_is_noted_before_the_next_commit() -> None:
    cluster = acts.shard()
    hear(cluster, 7, {"t": 1}, {"t": 6})
    acts.commit(cluster, offset=2)
    acts.commit(cluster, offset=3)
    hear(cluster, 9, {"t": 1}, {"t": 8})
    hear(cluster, 10, {"t": 2}, {"t": 8})
    acts.commit(cluster, offset=4)
    acts.commit(cluster, offset=5)
    seen = [record.topics_seen.catalog_offset for _, record in cluster.log if record.HasField("topics_seen")]
    assert seen == [7, 9]
    after = cluster.reloaded()
    hear(after, 10, {"t": 2}, {"t": 8})
    assert acts.fetch(after) == {("t", 0): 5}


def test_the_next_owner_carries_out_what_the_one_before_did_not_hear_of() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1, "other": 1})
    for topic in ("t", "other"):
        acts.commit(cluster, topic=topic)
    after = cluster.reloaded()
    hear(after, 12, {"t": 1, "other": 1}, {"t": 6}, carried_out=12)
    for each in (after, after.reloaded()):
        assert acts.fetch(each) == {("other", 0): 1}


def test_a_deletion_is_carried_out_whose_offset_a_history_that_was_lost_had_before() -> None:
    """The catalog's log ended at 4-100, came back as it was at 90, and goes on from there in epoch 5."""
    both = {"t": 1, "other": 1}
    before = acts.shard()
    hear(before, 100, both, incarnations={"t": 50, "other": 51}, epoch=4)
    for topic in ("t", "other"):
        acts.commit(before, topic=topic, offset=1)
    for cluster in (before.reloaded(), before):
        lost = {"t": 99, "other": 51}
        hear(cluster, 100, both, incarnations={"t": 50, "other": 51}, epoch=4)
        hear(cluster, 96, both, {"t": 93}, incarnations={"t": 95, "other": 51}, epoch=5)
        assert acts.fetch(cluster) == {("other", 0): 1}
        acts.commit(cluster, topic="t", offset=2)
        hear(cluster, 100, both, {"t": 98}, incarnations=lost, epoch=4)  # from an instance that is late
        hear(cluster, 120, both, {"t": 93}, incarnations={"t": 95, "other": 51}, epoch=6)
        for each in (cluster, cluster.reloaded()):
            hear(each, 120, both, {"t": 93}, incarnations={"t": 95, "other": 51}, epoch=6)
            assert acts.fetch(each) == {("other", 0): 1, ("t", 0): 2}


def test_an_owner_of_an_earlier_version_names_no_epoch_of_the_catalog() -> None:
    """What it wrote is taken for a place in the epoch that the catalog has when its log is loaded."""
    before = acts.shard()
    hear(before, 100, {"t": 1}, incarnations={"t": 97})
    acts.commit(before, offset=1)
    after = before.reloaded()
    hear(after, 96, {"t": 1}, incarnations={"t": 50}, epoch=5)  # from an instance that is late
    hear(after, 100, {"t": 1}, incarnations={"t": 97}, epoch=5)
    assert acts.fetch(after) == {("t", 0): 1}


def test_a_deletion_takes_the_offsets_of_a_group_in_quarantine() -> None:
    before = acts.shard()
    hear(before, 5, {"t": 1, "other": 1})
    for group_id in ("bad", "good"):
        for topic in ("t", "other"):
            acts.commit(before, group_id=group_id, topic=topic)
    held = before.reloaded(quarantine=Quarantine(frozenset({"bad"})))
    hear(held, 7, {"t": 1, "other": 1}, {"t": 6})
    released = held.reloaded()
    hear(released, 7, {"t": 1, "other": 1}, {"t": 6})
    for each in (held, released):
        for group_id in ("bad", "good"):
            assert acts.fetch(each, group_id) == {("other", 0): 1}


def test_a_deletion_takes_the_offsets_of_a_group_that_cannot_be_read_either() -> None:
    before = acts.shard()
    hear(before, 5, {"t": 1, "other": 1})
    for topic in ("t", "other"):
        acts.commit(before, group_id="bad", topic=topic)
    bad = frozenset({"bad"})
    held = before.reloaded(quarantine=Quarantine(bad, unreadable=bad))
    hear(held, 7, {"t": 1, "other": 1}, {"t": 6})
    released = held.reloaded()
    hear(released, 7, {"t": 1, "other": 1}, {"t": 6})
    assert acts.fetch(released, "bad") == {("other", 0): 1}


def test_what_a_group_owned_in_quarantine_is_nothing_of_a_later_topic() -> None:
    before = acts.shard()
    hear(before, 5, {"t": 2})
    (who,) = acts.joined(before, acts.member(before, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    held = before.reloaded(quarantine=Quarantine(frozenset({"g"})))
    hear(held, 7, {"t": 2}, {"t": 6}, carried_out=5)
    who.cluster = released = held.reloaded()
    hear(released, 7, {"t": 2}, {"t": 6})
    assert acts.commit(released, who) == UNKNOWN_TOPIC


def test_what_was_carried_out_stands_in_the_snapshot() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1})
    acts.commit(cluster, offset=1)
    hear(cluster, 7, {"t": 1}, {"t": 6})
    acts.commit(cluster, offset=2)
    copy = through_snapshot(cluster.reloaded().shard, Position(2, 9), cluster.config)
    assert copy.catalog_place.offset == 7


def test_where_no_record_says_it_the_owner_goes_by_what_it_knew_when_it_claimed() -> None:
    """As in a cluster that has not enabled the feature."""
    before = VirtualShard(features=NO_FEATURES)
    hear(before, 5, {"t": 1, "u": 1})
    for topic in ("t", "u"):
        acts.commit(before, topic=topic)
    assert "topics_seen" not in before.kinds()
    after = before.reloaded()
    hear(after, 12, {"t": 1, "u": 1}, {"t": 6, "u": 11}, carried_out=10)
    assert acts.fetch(after) == {("t", 0): 1}
    hear(after, 14, {"u": 1}, {"t": 13, "u": 11})
    assert acts.fetch(after) == {}
    assert "topics_seen" not in after.kinds()


def test_what_a_member_keeps_of_a_topic_that_was_created_again_has_a_new_token() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2, "u": 1})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    first = who.sync({who.member_id: given(0, 1)}).synced()
    who.protocols = [("range", owning(0, 1))]
    hear(cluster, 7, {"t": 2, "u": 1}, {"t": 6})
    for each in (cluster, cluster.reloaded()):
        who.cluster = each
        acts.rejoined(who)
        again = who.sync({who.member_id: given(0, 1)}).synced()
        assert kept(again) == {}
        assert again.token > first.token
        acts.rejoined(who)
        third = who.sync({who.member_id: given(0, 1)}).synced()
        assert kept(third) == {("t", 0): again.token, ("t", 1): again.token}


def test_what_a_member_commits_of_a_topic_that_was_deleted_since_its_assignment_is_refused() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    assert acts.commit(cluster, who) == 0
    hear(cluster, 7, {"t": 2}, {"t": 6})
    assert acts.commit(cluster, who) == UNKNOWN_TOPIC
    assert acts.commit(cluster, who, topic="u") == 0
    acts.rejoined(who)
    who.sync({who.member_id: given(0, 1)}).synced()
    assert acts.commit(cluster, who, offset=3) == 0
    assert acts.fetch(cluster) == {("t", 0): 3, ("u", 0): 1}


@pytest.mark.parametrize("deleted_first", [True, False])
def test_what_a_member_has_yet_to_release_is_of_no_later_topic(deleted_first: bool) -> None:
    """Its last commit comes in the generation in which it owns nothing of the topic any more."""
    cluster = VirtualShard()
    hear(cluster, 5, {"t": 2})
    who = first_alone(cluster, 0, 1)
    assert acts.commit(cluster, who, offset=7) == 0
    join(who, 0, 1)
    generation(who)
    if deleted_first:
        hear(cluster, 7, {}, {"t": 6})
    assert share(who, {who: published()}) == {who: []}
    hear(cluster, 7, {}, {"t": 6})
    assert acts.commit(cluster, who, offset=8) == UNKNOWN_TOPIC
    for each in (cluster, cluster.reloaded()):
        hear(each, 8, {"t": 2}, {"t": 6}, incarnations={"t": 8})
        who.cluster = each
        assert acts.commit(each, who, offset=8) == UNKNOWN_TOPIC
    join(who)
    assert share(generation(who), {who: published(0, 1)}) == {who: [0, 1]}
    assert acts.fetch(who.cluster) == {}
    assert acts.commit(who.cluster, who, offset=1) == 0


def test_an_assignment_on_its_way_gives_nothing_of_a_topic_that_is_deleted_meanwhile() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning(0, 1))]))
    cluster.auto_ack = False
    who.sync({who.member_id: given(0, 1)})
    cluster.acknowledge()  # how far deletions were carried out before it
    hear(cluster, 7, {"t": 2}, {"t": 6})
    cluster.acknowledge()
    who.synced()
    assert acts.commit(cluster, who) == UNKNOWN_TOPIC
    cluster.acknowledge()
    assert not cluster.waiting
    cluster.auto_ack = True
    for each in (cluster, cluster.reloaded()):
        hear(each, 7, {"t": 2}, {"t": 6})
        who.cluster = each
        assert acts.commit(each, who) == UNKNOWN_TOPIC
    acts.rejoined(who)
    assert kept(who.sync({who.member_id: given(0, 1)}).synced()) == {}
    assert acts.commit(who.cluster, who) == 0


def test_what_a_group_owned_of_a_deleted_topic_goes_with_its_last_member() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    hear(cluster, 7, {"t": 2}, {"t": 6})
    assert cluster.shard.groups["g"].renewed_topics == {"t"}
    who.leave()
    for each in (cluster, cluster.reloaded()):
        assert not each.shard.groups["g"].renewed_topics


def test_a_deletion_is_carried_out_in_all_groups_before_it_is_noted() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1})
    for number in range(20):
        acts.commit(cluster, group_id=f"g-{number}")
    before = len(cluster.kinds())
    hear(cluster, 7, {"t": 1}, {"t": 6})
    assert cluster.kinds()[before:] == ["offset_tombstone"] * 20 + ["topics_seen"]


def test_a_partition_beyond_its_topic_s_count_is_refused_and_the_others_are_stored() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    answer = cluster.ask(acts.commit_of(partitions={1: 7, 2: 8, 9: 9}))
    assert codes(answer) == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert acts.commit(cluster, topic="not-in-the-catalog", partitions={50: 1}) == 0
    assert acts.fetch(cluster) == {("not-in-the-catalog", 50): 1, ("t", 1): 7}
    assert codes(cluster.ask(acts.commit_of(partitions={2: 8}))) == [UNKNOWN_TOPIC]


def test_who_was_given_a_partition_may_know_of_it_before_the_coordinator_does() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    assert codes(cluster.ask(acts.commit_of(who, partitions={1: 7, 2: 8}))) == [0, UNKNOWN_TOPIC]


def test_a_retry_is_not_told_that_a_partition_is_stored_that_was_refused() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1})
    (who,) = acts.joined(cluster, acts.member(cluster, "a"))
    who.sync({who.member_id: b"foreign"}).synced()
    commit = acts.commit_of(who, partitions={0: 7, 1: 8}, member_seq=1)
    assert codes(cluster.ask(commit)) == [0, UNKNOWN_TOPIC]
    hear(cluster, 6, {"t": 2})
    assert codes(cluster.ask(commit)) == [0, UNKNOWN_TOPIC]
    commit.member_seq = 2
    assert codes(cluster.ask(commit)) == [0, 0]
    after = cluster.reloaded()
    hear(after, 6, {"t": 2})
    assert codes(after.ask(commit)) == [0, 0]
    assert acts.fetch(after) == {("t", 0): 7, ("t", 1): 8}


def seen(cluster: VirtualShard) -> list[dict[str, int]]:
    """Of the records of TopicsSeen which topics they name."""
    return [
        {one.name: one.incarnation for one in record.topics_seen.incarnations}
        for _, record in cluster.log
        if record.HasField("topics_seen")
    ]


def committed_in_three_topics() -> VirtualShard:
    """Offsets of two groups in `t` and `u`, and in `raw`, which is no topic."""
    cluster = acts.shard()
    hear(cluster, 5, {"t": 1, "u": 1}, incarnations={"t": 2, "u": 3})
    for group_id in ("g", "bad"):
        for topic in ("t", "u", "raw", "t"):
            acts.commit(cluster, group_id=group_id, topic=topic)
    assert seen(cluster) == [{"t": 2}, {"u": 3}], "each once"
    return cluster


@pytest.mark.parametrize("incarnations", [{"u": 3}, {"t": 900, "u": 3}], ids=["deleted", "created again"])
def test_a_deletion_that_the_catalog_has_forgotten_is_carried_out_at_a_load(
    incarnations: dict[str, int],
) -> None:
    before = committed_in_three_topics()
    held = before.reloaded(quarantine=Quarantine(frozenset({"bad"})))
    partitions = dict.fromkeys(incarnations, 1)
    hear(held, 5_000, partitions, {"x": 4_999}, incarnations=incarnations, deletions_since=4_900)
    for each in (held, held.reloaded()):
        for group_id in ("g", "bad"):
            assert acts.fetch(each, group_id) == {("raw", 0): 1, ("u", 0): 1}


def test_nothing_is_lost_of_a_topic_that_is_still_the_same_however_much_the_catalog_forgot() -> None:
    before = committed_in_three_topics()
    hear(before, 8, {"t": 1, "u": 1, "v": 1}, incarnations={"t": 2, "u": 3, "v": 7})
    (who,) = acts.joined(before, acts.member(before, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, topic="v")}).synced()
    assert seen(before)[-1] == {"v": 7}
    who.cluster = after = before.reloaded()
    same = {"t": 2, "u": 3, "v": 7}
    hear(after, 5_000, dict.fromkeys(same, 1), {"x": 4_999}, incarnations=same, deletions_since=4_900)
    assert acts.commit(after, who, topic="v") == 0
    assert acts.fetch(after) == {("raw", 0): 1, ("t", 0): 1, ("u", 0): 1, ("v", 0): 1}


def test_what_an_assignment_gave_of_a_topic_whose_deletion_is_forgotten_is_nothing_of_a_later_one() -> None:
    before = acts.shard()
    hear(before, 5, {"t": 2}, incarnations={"t": 2})
    (who,) = acts.joined(before, acts.member(before, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    who.cluster = after = before.reloaded()
    hear(after, 5_000, {"t": 2}, {"x": 4_999}, incarnations={"t": 900}, deletions_since=4_900)
    assert acts.commit(after, who) == UNKNOWN_TOPIC


def test_an_assignment_that_was_made_after_a_deletion_lasts_for_the_next_owner_too() -> None:
    before = acts.shard()
    hear(before, 5, {"t": 2})
    acts.commit(before, topic="u")
    hear(before, 7, {"t": 2}, {"t": 6})
    (who,) = acts.joined(before, acts.member(before, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    who.cluster = after = before.reloaded()
    hear(after, 7, {"t": 2}, {"t": 6})
    assert acts.commit(after, who) == 0


def test_which_topics_are_meant_stands_in_the_snapshot() -> None:
    before = committed_in_three_topics()
    copy = through_snapshot(before.reloaded().shard, Position(2, 9), before.config)
    assert copy.incarnations == (("t", 2), ("u", 3))


def test_a_topic_that_was_deleted_and_created_again_is_named_again() -> None:
    cluster = committed_in_three_topics()
    hear(cluster, 12, {"t": 1, "u": 1}, {"t": 10}, incarnations={"t": 11, "u": 3})
    assert cluster.shard.incarnations == (("u", 3),)
    acts.commit(cluster, topic="t", offset=7)
    after = cluster.reloaded()
    assert after.shard.incarnations == (("t", 11), ("u", 3))
    now = {"t": 11, "u": 3}
    hear(after, 5_000, {"t": 1, "u": 1}, {"x": 4_999}, incarnations=now, deletions_since=4_900)
    assert acts.fetch(after) == {("raw", 0): 1, ("t", 0): 7, ("u", 0): 1}


def test_where_the_feature_comes_late_topics_with_offsets_are_named_with_the_first_record() -> None:
    before = VirtualShard(features=NO_FEATURES)
    hear(before, 5, {"t": 1, "u": 1}, incarnations={"t": 2, "u": 3})
    acts.commit(before, topic="t")
    after = VirtualShard(records=before.log, features=ALL_FEATURES)
    hear(after, 5, {"t": 1, "u": 1}, incarnations={"t": 2, "u": 3}, carried_out=5)
    acts.commit(after, topic="raw")
    assert seen(after) == [{"t": 2}]
