"""Commits that say which partitions are parked: fenced and stored as others, and bound to their topic."""

from conformance import acts, acts_offsets
from conformance.acts_offsets import RETENTION_MS, subscriber
from core.test_core_sync_edges import given, owning
from core.test_core_topics import UNKNOWN_TOPIC, hear
from muster_core import error_code
from muster_protos.limits import PARKED_PREFIX

MARK = PARKED_PREFIX + "t"


def test_what_is_parked_stays_so_while_members_want_its_topic() -> None:
    cluster = acts_offsets.forgetful_shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    for topic in (MARK, PARKED_PREFIX + "other"):
        assert acts.commit(cluster, who, topic=topic) == 0
    cluster.advance(10 * RETENTION_MS)
    assert acts.fetch(cluster) == {(MARK, 0): 1}


def test_a_deletion_takes_what_is_parked_of_the_topic() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2, "other": 1})
    for topic in ("t", MARK, PARKED_PREFIX + "other"):
        acts.commit(cluster, topic=topic)
    cluster.auto_ack = False
    cluster.send(acts.commit_of(topic=MARK, partitions={1: 7}))  # on its way
    hear(cluster, 7, {"t": 2, "other": 1}, {"t": 6})
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    for each in (cluster, cluster.reloaded()):
        assert acts.fetch(each) == {(PARKED_PREFIX + "other", 0): 1}


def test_a_later_topic_of_the_name_is_not_parked_by_who_worked_on_the_one_before() -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    who.sync({who.member_id: given(0, 1)}).synced()
    assert acts.commit(cluster, who, topic=MARK) == 0
    hear(cluster, 7, {"t": 2}, {"t": 6})
    assert acts.commit(cluster, who, topic=MARK) == UNKNOWN_TOPIC
    acts.rejoined(who)
    assert acts.commit(cluster, who, topic=MARK) == error_code.REBALANCE_IN_PROGRESS
    who.sync({who.member_id: given(0, 1)}).synced()
    assert acts.fetch(cluster) == {}


def test_who_is_of_another_generation_parks_nothing() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    late = acts.commit_of(who, topic=MARK)
    late.generation -= 1
    assert acts.error_of(cluster.ask(late)) == error_code.ILLEGAL_GENERATION
    assert acts.fetch(cluster) == {}


def test_it_is_released_while_members_want_its_topic_and_over_loads_not_before() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    assert acts.commit(cluster, who, topic=MARK) == 0
    cluster = cluster.reloaded()
    assert acts.fetch(cluster) == {(MARK, 0): 1}
    assert acts.delete_offsets(cluster, MARK, "t") == (0, [0, error_code.GROUP_SUBSCRIBED_TO_TOPIC])
    for each in (cluster, cluster.reloaded()):
        assert acts.fetch(each) == {}


def test_it_is_released_where_nobody_knows_what_members_want() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, acts.member(cluster, "a", protocols=[("range", b"\xff foreign")]))
    assert acts.commit(cluster, who, topic=MARK) == 0
    assert acts.delete_offsets(cluster, MARK) == (0, [0])
    assert acts.fetch(cluster) == {}
