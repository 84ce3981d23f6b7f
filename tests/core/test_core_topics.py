"""Deletions of topics, as the core carries them out: each once, at one place of the log."""

from conformance import acts
from core.test_core_sync_edges import given, kept, owning
from kit.snapshots import through_snapshot
from kit.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.events import TopicsChanged
from muster_core.features import NO_FEATURES
from muster_core.position import Position
from muster_core.quarantine import Quarantine
from muster_protos.muster.v1 import coordinator_pb2 as pb

UNKNOWN_TOPIC = error_code.UNKNOWN_TOPIC_OR_PARTITION


def hear(
    cluster: VirtualShard,
    offset: int,
    partitions: dict[str, int],
    deletions: dict[str, int] | None = None,
    *,
    carried_out: int = 0,
) -> None:
    """The shard hears of the catalog as of a place of its log."""
    catalog = Catalog(offset, partitions, deletions or {})
    cluster.feed(TopicsChanged(frozenset(), catalog=catalog, carried_out=carried_out))


def codes(answer: object) -> list[int]:
    assert isinstance(answer, pb.OffsetCommitResponse)
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


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
    assert copy.catalog_offset == 7


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


def test_an_assignment_on_its_way_gives_nothing_of_a_topic_that_is_deleted_meanwhile() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning(0, 1))]))
    cluster.auto_ack = False
    who.sync({who.member_id: given(0, 1)})
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
