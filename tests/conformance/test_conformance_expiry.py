"""Rows EX: when offsets and groups go by themselves (KIP-211)."""

from itertools import pairwise

import pytest
from conformance import acts, acts_offsets
from conformance.acts_offsets import RETENTION_MS, subscriber
from kit.lives.virtual_shard import WALL_MS, VirtualShard
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.features import NO_FEATURES
from muster_core.protocol.offsets.offsets import Offsets
from muster_core.shard import Shard
from muster_protos.muster.v1 import coordinator_pb2


def emptied(cluster: VirtualShard, *, leaves: bool = True) -> None:
    """A group whose only member has committed and, later, left."""
    (who,) = acts.stable(cluster, "a")
    assert acts.commit(cluster, who) == 0
    cluster.advance(RETENTION_MS // 2)
    if leaves:
        assert who.leave() == 0
        assert cluster.state() == "Empty"


@pytest.mark.row("EX-01")
@pytest.mark.row("EX-02")
def test_offsets_outlive_the_last_member_by_the_retention() -> None:
    cluster = acts_offsets.forgetful_shard()
    emptied(cluster)
    assert cluster.describe().state_since_ms == cluster.now.wall_ms
    cluster.advance(RETENTION_MS - 1)
    assert acts.fetch(cluster) == {("t", 0): 1}
    appends = len(cluster.appends)
    cluster.advance(1)
    assert [record.WhichOneof("kind") for record in cluster.appends[appends].records] == [
        "offset_tombstone",
        "group_tombstone",
    ]
    for each in (cluster, cluster.reloaded()):
        assert (acts.fetch(each), each.state()) == ({}, "Dead")


@pytest.mark.row("EX-01")
def test_the_retention_goes_on_over_a_load() -> None:
    cluster = acts_offsets.forgetful_shard()
    emptied(cluster)
    cluster.advance(RETENTION_MS - 2)
    after = cluster.reloaded()
    after.advance(cluster.now_ms - after.now_ms)
    assert acts.fetch(after) == {("t", 0): 1}
    after.advance(1)
    assert acts.fetch(after) == {("t", 0): 1}
    after.advance(1)
    assert (acts.fetch(after), after.state()) == ({}, "Dead")


@pytest.mark.row("EX-04")
@pytest.mark.row("EX-13")
def test_each_offset_of_a_simple_group_goes_by_its_own_commit() -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster, partitions={0: 1, 1: 1})
    cluster.advance(100)
    acts.commit(cluster, partitions={1: 2})
    cluster.advance(RETENTION_MS - 101)
    assert acts.fetch(cluster) == {("t", 0): 1, ("t", 1): 2}
    cluster.advance(1)
    assert (acts.fetch(cluster), cluster.state()) == ({("t", 1): 2}, "Empty")
    cluster.advance(99)
    assert acts.fetch(cluster) == {("t", 1): 2}
    cluster.advance(1)
    assert (acts.fetch(cluster), cluster.state()) == ({}, "Dead")


@pytest.mark.row("EX-05")
@pytest.mark.row("EX-06")
def test_a_stable_group_forgets_only_what_it_is_not_subscribed_to() -> None:
    cluster = acts_offsets.forgetful_shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    for topic in ("t", "other"):
        assert acts.commit(cluster, who, topic=topic) == 0
    cluster.advance(RETENTION_MS - 1)
    assert acts.fetch(cluster) == {("t", 0): 1, ("other", 0): 1}
    cluster.advance(1)
    assert acts.fetch(cluster) == {("t", 0): 1}
    cluster.advance(10 * RETENTION_MS)
    assert (acts.fetch(cluster), cluster.state()) == ({("t", 0): 1}, "Stable")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        pytest.param("PreparingRebalance", "consumer", marks=pytest.mark.row("EX-07")),
        pytest.param("CompletingRebalance", "consumer", marks=pytest.mark.row("EX-07")),
        *(
            pytest.param(state, "connect", marks=pytest.mark.row("EX-08"))
            for state in ("PreparingRebalance", "CompletingRebalance", "Stable")
        ),
    ],
)
def test_nothing_expires_while_a_group_rebalances_or_is_of_another_kind(state: str, kind: str) -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster, retention_ms=1)
    acts.commit(cluster, topic="other")
    acts.in_state(cluster, state)
    cluster.shard.groups["g"].protocol_type = kind
    cluster.advance(2 * RETENTION_MS)
    assert acts.fetch(cluster) == {("t", 0): 1, ("other", 0): 1}
    assert cluster.state() == state


@pytest.mark.row("EX-09")
@pytest.mark.row("LD-25")
@pytest.mark.parametrize("retention_ms", [10, 3 * RETENTION_MS])
@pytest.mark.parametrize("reload", [False, True])
def test_a_retention_of_its_own_counts_from_the_commit(retention_ms: int, reload: bool) -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster, retention_ms=retention_ms)
    since_ms = cluster.now_ms
    if reload:
        cluster = cluster.reloaded()
    cluster.advance(since_ms + retention_ms - 1 - cluster.now_ms)
    assert acts.fetch(cluster) == {("t", 0): 1}
    cluster.advance(1)
    assert acts.fetch(cluster) == {}


@pytest.mark.row("EX-09")
def test_a_retention_of_its_own_does_not_touch_a_subscribed_topic() -> None:
    cluster = acts_offsets.forgetful_shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    for topic in ("t", "other"):
        assert acts.commit(cluster, who, topic=topic, retention_ms=10) == 0
    cluster.advance(9)
    assert acts.fetch(cluster) == {("t", 0): 1, ("other", 0): 1}
    cluster.advance(1)
    assert acts.fetch(cluster) == {("t", 0): 1}


@pytest.mark.row("EX-10")
def test_an_offset_with_a_commit_on_its_way_stays() -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster)
    cluster.advance(RETENTION_MS - 1)
    cluster.auto_ack = False
    call = cluster.send(acts.commit_of(offset=2))
    cluster.advance(100)
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting] == ["offset_committed"]
    cluster.auto_ack = True
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(call)) == 0
    cluster.advance(RETENTION_MS - 101)
    assert acts.fetch(cluster) == {("t", 0): 2}, "it counts from when the commit came"
    cluster.advance(1)
    assert cluster.state() == "Dead"


@pytest.mark.row("EX-10")
def test_the_last_of_several_commits_on_their_way_counts() -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster)
    cluster.auto_ack = False
    for offset in (2, 3):
        cluster.send(acts.commit_of(offset=offset, retention_ms=1))
    cluster.acknowledge()
    cluster.advance(RETENTION_MS)
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting] == ["offset_committed"]
    cluster.acknowledge()
    cluster.advance(1)
    assert [append.records[0].WhichOneof("kind") for append in cluster.waiting] == ["offset_tombstone"]


@pytest.mark.row("EX-12")
@pytest.mark.row("RF-09")
@pytest.mark.row("DL-05")
def test_an_empty_group_without_offsets_goes_with_the_next_clean_up() -> None:
    cluster = acts.shard(retention_check_interval_ms=1_000)
    (who,) = acts.stable(cluster, "a")
    who.leave()
    cluster.advance(10_000 + 999 - cluster.now_ms)
    assert cluster.state() == "Empty"
    cluster.advance(1)
    tombstone = acts.last_record(cluster).group_tombstone
    assert (tombstone.group_id, tombstone.last_generation, tombstone.reason) == ("g", 2, "empty")
    assert cluster.state() == cluster.reloaded().state() == "Dead"


@pytest.mark.row("EX-14")
@pytest.mark.parametrize("state", acts.STATES[1:])
def test_a_group_with_members_needs_no_offsets(state: str) -> None:
    cluster = acts.shard(retention_check_interval_ms=1)
    acts.in_state(cluster, state)
    cluster.advance(100)
    assert cluster.state() == state


@pytest.mark.row("EX-14")
def test_an_id_that_was_given_out_keeps_its_group() -> None:
    cluster = acts.shard(retention_check_interval_ms=1)
    told = acts.ask_join(acts.member(cluster, "a"))
    cluster.advance(acts.SESSION_MS - 1)
    assert list(cluster.shard.groups["g"].pending_members) == [told.member_id]
    cluster.advance(2)
    assert cluster.state() == "Dead"


@pytest.mark.row("EX-15")
def test_old_offsets_are_looked_for_at_the_interval() -> None:
    cluster = acts_offsets.forgetful_shard(retention_check_interval_ms=10_000)
    acts.commit(cluster)
    for _ in range(3):
        cluster.advance(9_999)
        assert acts.fetch(cluster) == {("t", 0): 1}
        cluster.advance(1)
        assert acts.fetch(cluster) == {}
        acts.commit(cluster)


@pytest.mark.row("EX-15")
@pytest.mark.row("PT-14")
def test_a_clean_up_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = acts_offsets.forgetful_shard(retention_check_interval_ms=10_000)
    acts.commit(cluster)

    def fail(_: Offsets) -> None:
        raise RuntimeError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(Offsets, "expire", fail)
        with pytest.raises(RuntimeError, match="unforeseen"):
            cluster.advance(10_000)
    assert acts.fetch(cluster) == {("t", 0): 1}
    cluster.advance(9_999)
    assert acts.fetch(cluster) == {("t", 0): 1}
    cluster.advance(1)
    assert acts.fetch(cluster) == {}


@pytest.mark.row("EX-16")
def test_what_expired_is_there_until_its_tombstone_is_stored() -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster)
    cluster.auto_ack = False
    cluster.advance(3 * RETENTION_MS)
    assert len(cluster.waiting) == 1, "one tombstone is on its way, not one for each clean-up"
    assert acts.fetch(cluster) == acts.fetch(cluster.reloaded()) == {("t", 0): 1}
    cluster.acknowledge()
    assert acts.fetch(cluster) == acts.fetch(cluster.reloaded()) == {}


@pytest.mark.row("EX-17")
def test_no_stamp_is_no_stamp_of_the_past() -> None:
    record = acts_offsets.stored_commit(5, written_at_ms=WALL_MS + 10_000, expire_at_ms=0)
    cluster = acts_offsets.from_records(record)
    cluster.advance(2 * cluster.config.retention_check_interval_ms)
    assert acts.fetch(cluster) == {("t", 0): 5}


@pytest.mark.row("EX-01")
@pytest.mark.parametrize("trusted", [True, False])
def test_nothing_expires_while_the_wall_clock_is_not_trusted(trusted: bool) -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster, retention_ms=1)
    cluster.wall_trusted = trusted
    cluster.advance(1)
    assert (acts.fetch(cluster) == {}) is trusted
    cluster = cluster.reloaded()
    cluster.wall_trusted = trusted
    cluster.advance(cluster.config.retention_check_interval_ms)
    assert (acts.fetch(cluster) == {}) is trusted, "nor after a load"


@pytest.mark.row("EX-12")
def test_a_join_that_comes_while_its_group_goes_makes_a_new_one() -> None:
    cluster = acts.shard(retention_check_interval_ms=1_000)
    (who,) = acts.stable(cluster, "a=i")
    acts.leave(cluster, ("", "i"))
    cluster.auto_ack = False
    cluster.advance(1_000)
    assert len(cluster.waiting) == 1
    call = cluster.send(acts.join_of(who, member_id=""))
    cluster.auto_ack = True
    cluster.acknowledge()
    cluster.advance(acts.DELAY_MS)
    answer = cluster.answer(call)
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    assert (answer.error_code, answer.generation) == (0, 1)


def test_shards_that_are_loaded_together_do_not_search_together() -> None:
    """A coordinator may have two million offsets: one look at all of them would keep everybody waiting."""
    first = []
    for number in range(50):
        shard = Shard(number, GroupConfig(retention_check_interval_ms=600_000))
        shard.loaded(1, Now(0, 0), NO_FEATURES)
        first.append(shard._retention.deadline_ms)
    first.sort()
    assert (first[0] >= 300_000, first[-1]) == (True, 600_000)
    assert min(later - earlier for earlier, later in pairwise(first)) > 1_000
