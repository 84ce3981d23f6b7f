"""Rows OC, OF and OD: commits, fetches and deletions of offsets."""

from typing import Any

import pytest
from conformance import acts, acts_offsets
from conformance.acts import STATES
from conformance.acts_offsets import subscriber
from kit.lives.virtual_shard import WALL_MS
from muster_core.error_code import COORDINATOR_NOT_AVAILABLE, NONE, NOT_COORDINATOR, OFFSET_METADATA_TOO_LARGE
from muster_core.events import TopicsChanged, Unload
from muster_protos.muster.v1 import coordinator_pb2

# --- who may commit


@pytest.mark.row("OC-01")
def test_a_commit_from_outside_makes_a_simple_group() -> None:
    cluster = acts.shard()
    assert acts.commit(cluster, offset=5) == 0
    described = cluster.describe()
    assert (cluster.state(), described.protocol_type, described.generation) == ("Empty", "", 0)
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 5}


@pytest.mark.row("OC-02")
@pytest.mark.parametrize("generation", [0, 1, 2**31 - 1])
def test_a_member_of_an_unknown_group_commits_nothing(generation: int) -> None:
    cluster = acts.shard()
    assert acts.commit(cluster, generation=generation, member_id="m") == 22
    assert (cluster.shard.groups, cluster.kinds()) == ({}, [])


@pytest.mark.row("OC-04")
@pytest.mark.parametrize("ids", [{}, {"member_id": "any"}, {"group_instance_id": "any"}])
@pytest.mark.parametrize("had_members", [False, True])
def test_ids_are_not_looked_at_in_an_empty_group(ids: dict[str, Any], had_members: bool) -> None:
    cluster = acts.shard()
    if had_members:
        acts.in_state(cluster, "Empty")
    else:
        acts.commit(cluster)
    assert acts.commit(cluster, offset=7, **ids) == 0
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 7}


@pytest.mark.row("OC-05")
def test_an_operator_may_commit_once_the_last_member_has_left() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    assert acts.commit(cluster, offset=3) == 25
    who.leave()
    assert cluster.state() == "Empty"
    assert acts.commit(cluster, offset=4) == 0
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 4}


COMMITS: list[Any] = [
    *(
        pytest.param("Empty", {"generation": generation}, 25, marks=pytest.mark.row("OC-06"))
        for generation in (0, 1, 3)
    ),
    *(
        pytest.param(
            state,
            {"generation": -1, "member_id": "", "group_instance_id": ""},
            25,
            marks=pytest.mark.row("OC-07"),
        )
        for state in STATES[1:]
    ),
    *(
        pytest.param(state, {"member_id": "stranger"}, 25, marks=pytest.mark.row("OC-08"))
        for state in STATES[1:]
    ),
    *(
        pytest.param(state, {"generation": generation}, 22, marks=pytest.mark.row("OC-09"))
        for state in STATES[1:]
        for generation in (-1, 0, 2)
    ),
    *(
        pytest.param(state, {"group_instance_id": "stranger"}, 25, marks=pytest.mark.row("OC-10"))
        for state in STATES[1:]
    ),
    pytest.param("CompletingRebalance", {}, 27, marks=pytest.mark.row("OC-12")),
    pytest.param("PreparingRebalance", {}, 0, marks=pytest.mark.row("OC-13")),
    pytest.param("Stable", {}, 0, marks=pytest.mark.row("OC-13")),
]


@pytest.mark.parametrize(("state", "changes", "code"), COMMITS)
@pytest.mark.row("OC-15")
def test_who_may_commit_in_which_state(state: str, changes: dict[str, Any], code: int) -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, state)[0]
    request = acts.commit_of(who, partitions={0: 1, 1: 2}, **changes)
    request.topics.add(name="other").partitions.add(partition=3, offset=4)
    before = cluster.kinds().count("offset_committed")
    assert acts_offsets.commit_codes(cluster, request) == [
        ("t", [(0, code), (1, code)]),
        ("other", [(3, code)]),
    ]
    assert cluster.kinds().count("offset_committed") == before + (code == 0)
    assert acts.fetch(cluster, t=[0, 1], other=[3]) == (
        {("t", 0): 1, ("t", 1): 2, ("other", 3): 4}
        if code == 0
        else {("t", 0): -1, ("t", 1): -1, ("other", 3): -1}
    )


@pytest.mark.row("OC-11")
def test_a_fenced_instance_commits_nothing() -> None:
    cluster = acts.shard()
    (who, other) = acts.stable(cluster, "a=i", "b=j")
    assert acts.commit(cluster, who, offset=1) == 0
    assert acts.commit(cluster, who, offset=2, member_id=other.member_id) == 82
    assert acts.commit(cluster, who, offset=2, member_id="") == 82
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 1}


# --- metadata


@pytest.mark.row("OC-16")
@pytest.mark.parametrize("letter", ["x", "é"])
def test_metadata_that_is_too_long_is_refused_for_its_partition_alone(letter: str) -> None:
    cluster = acts.shard()
    most = 4_096 // len(letter.encode())
    request = acts.commit_of(
        partitions={0: 1, 1: 2, 2: 3}, metadata={0: letter * most, 1: letter * (most + 1)}
    )
    assert acts_offsets.commit_codes(cluster, request) == [
        ("t", [(0, NONE), (1, OFFSET_METADATA_TOO_LARGE), (2, NONE)])
    ]
    assert acts.fetch(cluster) == {("t", 0): 1, ("t", 2): 3}
    [(_, _, entries)] = acts_offsets.fetch_entries(cluster, "g")
    assert entries["t", 0][2] == letter * most


@pytest.mark.row("OC-17")
def test_nothing_is_written_when_all_metadata_is_too_long() -> None:
    cluster = acts_offsets.forgetful_shard()
    acts.commit(cluster)
    appends = len(cluster.appends)
    request = acts.commit_of(partitions={0: 2, 1: 2}, metadata={0: "x" * 4_097, 1: "x" * 4_097})
    assert acts_offsets.commit_codes(cluster, request) == [
        ("t", [(0, OFFSET_METADATA_TOO_LARGE), (1, OFFSET_METADATA_TOO_LARGE)])
    ]
    assert len(cluster.appends) == appends
    assert acts.fetch(cluster) == {("t", 0): 1}
    cluster.advance(acts_offsets.RETENTION_MS)
    assert acts.fetch(cluster) == {}, "a commit that waits for ever would keep it"


# --- from the call to the log


@pytest.mark.row("OC-20")
def test_a_commit_on_its_way_is_refused_when_the_shard_moves() -> None:
    cluster = acts.shard()
    cluster.auto_ack = False
    call = cluster.send(acts.commit_of(offset=5))
    cluster.feed(Unload())
    assert acts.error_of(cluster.answer(call)) == NOT_COORDINATOR


@pytest.mark.row("OC-22")
def test_the_later_of_two_commits_in_the_log_wins() -> None:
    cluster = acts.shard()
    cluster.auto_ack = False
    first = cluster.send(acts.commit_of(offset=9))
    cluster.advance(1)
    second = cluster.send(acts.commit_of(offset=4))
    cluster.advance(4_999)
    assert acts.error_of(cluster.answer(first)) == COORDINATOR_NOT_AVAILABLE, "it took too long; it may land"
    assert cluster.is_parked(second), "the other one is not touched"
    cluster.acknowledge()
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 9}
    assert cluster.is_parked(second)
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(second)) == 0
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 4}
    assert acts.fetch(cluster.reloaded(), t=[0]) == {("t", 0): 4}


@pytest.mark.row("OC-23")
@pytest.mark.row("OF-12")
@pytest.mark.row("PT-26")
def test_a_commit_is_seen_and_answered_when_it_is_stored() -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=1)
    cluster.auto_ack = False
    call = cluster.send(acts.commit_of(offset=2))
    assert cluster.is_parked(call)
    assert acts.fetch(cluster, t=[0]) == acts.fetch(cluster) == {("t", 0): 1}
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(call)) == 0
    assert acts.fetch(cluster, t=[0]) == acts.fetch(cluster) == {("t", 0): 2}


@pytest.mark.row("OC-18")
@pytest.mark.row("OC-19")
def test_a_commit_waits_so_long_for_the_log_and_its_outcome_is_unknown_then() -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=1)
    cluster.auto_ack = False
    call = cluster.send(acts.commit_of(offset=2))
    cluster.advance(4_999)
    assert cluster.is_parked(call)
    cluster.advance(1)
    assert acts.error_of(cluster.answer(call)) == COORDINATOR_NOT_AVAILABLE
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 1}
    cluster.acknowledge()
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 2}


@pytest.mark.row("OC-18")
def test_a_retry_of_a_commit_on_its_way_shares_its_fate() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.auto_ack = False
    calls = [cluster.send(acts.commit_of(who, offset=2, member_seq=1)) for _ in range(2)]
    cluster.advance(4_999)
    assert [cluster.is_parked(call) for call in calls] == [True, True]
    cluster.advance(1)
    assert [acts.error_of(cluster.answer(call)) for call in calls] == [
        COORDINATOR_NOT_AVAILABLE,
        COORDINATOR_NOT_AVAILABLE,
    ]
    assert len(cluster.waiting) == 1, "it is stored once"
    cluster.acknowledge()
    assert acts.commit(cluster, who, offset=2, member_seq=1) == 0, "the next retry learns that it landed"
    assert acts.fetch(cluster) == {("t", 0): 2}


@pytest.mark.row("OC-24")
def test_a_commit_may_bring_its_own_retention() -> None:
    cluster = acts.shard()
    for retention_ms in (1, 7_000):
        assert acts.commit(cluster, retention_ms=retention_ms) == 0
        stamp_ms = acts.last_record(cluster).offset_committed.expire_at_ms
        assert stamp_ms == WALL_MS + cluster.now_ms + retention_ms
    assert acts.commit(cluster, retention_ms=0) == 0
    assert acts.last_record(cluster).offset_committed.expire_at_ms == 0


@pytest.mark.row("OC-26")
def test_a_group_may_be_deleted_while_a_commit_is_on_its_way() -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=1)
    cluster.auto_ack = False
    committing = cluster.send(acts.commit_of(offset=2))
    deleting = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    late = cluster.send(acts.commit_of(offset=3))
    for call in (committing, deleting):
        cluster.acknowledge()
        assert acts.error_of(cluster.answer(call)) == 0
    assert cluster.state() == "Dead"
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(late)) == 0
    for each in (cluster, cluster.reloaded()):
        each.auto_ack = True
        assert acts.fetch(each, t=[0]) == {("t", 0): 3}


@pytest.mark.row("OC-27")
@pytest.mark.row("OF-03")
@pytest.mark.parametrize("leader_epoch", [-1, 0, 2**31 - 1])
def test_a_fetch_gives_what_was_committed(leader_epoch: int) -> None:
    cluster = acts.shard()
    request = acts.commit_of(offset=2**63 - 1, metadata={0: "näher"})
    request.topics[0].partitions[0].leader_epoch = leader_epoch
    assert acts.error_of(cluster.ask(request)) == 0
    expected = [("g", 0, {("t", 0): (2**63 - 1, leader_epoch, "näher")})]
    for each in (cluster, cluster.reloaded()):
        assert acts_offsets.fetch_entries(each, "g", t=[0]) == expected


# --- OffsetFetch


@pytest.mark.parametrize(
    "exists",
    [
        pytest.param(False, marks=pytest.mark.row("OF-01")),
        pytest.param(True, marks=pytest.mark.row("OF-02")),
    ],
)
def test_what_was_never_committed_has_no_offset(exists: bool) -> None:
    cluster = acts.shard()
    if exists:
        acts.commit(cluster, topic="other")
        acts.commit(cluster, partitions={7: 7})
    nothing = {("t", 0): (-1, -1, ""), ("t", 5): (-1, -1, "")}
    assert acts_offsets.fetch_entries(cluster, "g", t=[0, 5]) == [("g", 0, nothing)]
    assert ("g" in cluster.shard.groups) is exists


@pytest.mark.row("OF-01")
def test_a_deleted_group_has_no_offsets() -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    acts.delete_groups(cluster, "g")
    assert acts_offsets.fetch_entries(cluster, "g", t=[0]) == [("g", 0, {("t", 0): (-1, -1, "")})]


@pytest.mark.row("OF-04")
@pytest.mark.row("OF-05")
def test_a_fetch_without_topics_gives_all() -> None:
    cluster = acts.shard()
    assert acts_offsets.fetch_entries(cluster, "g") == [("g", 0, {})]
    acts.commit(cluster, partitions={2: 2, 0: 1})
    acts.commit(cluster, topic="other", partitions={9: 3})
    acts.commit(cluster, group_id="another", offset=8)
    assert acts.fetch(cluster) == {("t", 0): 1, ("t", 2): 2, ("other", 9): 3}
    assert acts.fetch(cluster, t=[2]) == {("t", 2): 2}


@pytest.mark.row("OF-07")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_fetch_is_served_in_every_state(state: str, in_flight: bool) -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=6)
    members = acts.in_state(cluster, state)
    if in_flight:
        cluster.auto_ack = False
        cluster.send(
            coordinator_pb2.LeaveGroupRequest(
                group_id="g",
                members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=members[0].member_id)],
            )
        )
        assert len(cluster.waiting) == (state != "Empty")
    assert acts.fetch(cluster, t=[0]) == {("t", 0): 6}
    assert acts.fetch(cluster) == {("t", 0): 6}


@pytest.mark.row("OF-09")
def test_several_groups_are_fetched_in_one_call() -> None:
    cluster = acts.shard()
    for offset, group in enumerate(("a", "b")):
        acts.commit(cluster, group_id=group, offset=offset)
    assert acts_offsets.fetch_entries(cluster, "b", "unknown", "a", "b", t=[0]) == [
        ("b", 0, {("t", 0): (1, -1, "")}),
        ("unknown", 0, {("t", 0): (-1, -1, "")}),
        ("a", 0, {("t", 0): (0, -1, "")}),
        ("b", 0, {("t", 0): (1, -1, "")}),
    ]


# --- OffsetDelete (KIP-496)


@pytest.mark.row("OD-01")
def test_offsets_of_an_unknown_group_are_not_deleted() -> None:
    cluster = acts.shard()
    assert acts.delete_offsets(cluster, "t") == (69, [])
    assert (cluster.shard.groups, cluster.kinds()) == ({}, [])


@pytest.mark.row("OD-03")
@pytest.mark.parametrize("state", STATES[1:])
def test_offsets_of_a_group_of_another_kind_stay_while_it_has_members(state: str) -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    acts.in_state(cluster, state)
    cluster.shard.groups["g"].protocol_type = "connect"
    assert acts.delete_offsets(cluster, "t") == (68, [])
    assert acts.fetch(cluster) == {("t", 0): 1}


@pytest.mark.row("OD-04")
@pytest.mark.row("RF-10")
@pytest.mark.parametrize("kind", ["", "consumer", "connect"])
def test_offsets_of_an_empty_group_are_deleted(kind: str) -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    acts.commit(cluster, topic="other")
    if kind:
        who = acts.member(cluster, "a=i")
        cluster.send(acts.join_of(who, protocol_type=kind))
        cluster.advance(acts.DELAY_MS)
        acts.leave(cluster, ("", "i"))
    assert (cluster.state(), cluster.describe().protocol_type) == ("Empty", kind)
    assert acts.delete_offsets(cluster, "t") == (0, [0])
    tombstone = acts.last_record(cluster).offset_tombstone
    assert [(entry.topic, list(entry.partitions)) for entry in tombstone.topics] == [("t", [0])]
    assert tombstone.reason == "deleted"
    assert acts.fetch(cluster) == acts.fetch(cluster.reloaded()) == {("other", 0): 1}


@pytest.mark.row("OD-05")
@pytest.mark.row("OD-06")
def test_offsets_of_a_subscribed_topic_stay() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, subscriber(cluster, "a", "t"))
    for topic in ("t", "other"):
        assert acts.commit(cluster, who, topic=topic) == 0
    assert acts.delete_offsets(cluster, "t", "other") == (0, [86, 0])
    assert acts.fetch(cluster) == {("t", 0): 1}
    assert acts.delete_offsets(cluster, "t", "other") == (0, [86, 0])


@pytest.mark.row("OD-07")
def test_a_subscription_that_cannot_be_read_counts_for_every_topic() -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, "a"), subscriber(cluster, "b", "t")]
    members[0].protocols = [("range", b"foreign")]
    (who, _) = acts.stable(cluster, *members)
    for topic in ("t", "other"):
        assert acts.commit(cluster, who, topic=topic) == 0
    assert acts.delete_offsets(cluster, "t", "other") == (0, [86, 86])
    assert acts.fetch(cluster) == {("t", 0): 1, ("other", 0): 1}


@pytest.mark.row("OD-08")
def test_a_partition_without_an_offset_is_deleted_without_a_record() -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    appends = len(cluster.appends)
    assert acts.delete_offsets(cluster, "other") == (0, [0])
    assert len(cluster.appends) == appends
    assert acts.fetch(cluster) == {("t", 0): 1}


@pytest.mark.row("OD-09")
def test_a_group_without_its_last_offset_goes_with_the_next_clean_up() -> None:
    cluster = acts.shard(retention_check_interval_ms=1_000)
    acts.commit(cluster)
    assert acts.delete_offsets(cluster, "t") == (0, [0])
    cluster.advance(999)
    assert cluster.state() == "Empty"
    cluster.advance(1)
    assert cluster.state() == "Dead"


@pytest.mark.row("OD-12")
@pytest.mark.parametrize("state", STATES)
def test_a_deleted_topic_takes_the_offsets_of_all_groups_with_it(state: str) -> None:
    cluster = acts.shard()
    for topic in ("t", "other"):
        acts.commit(cluster, topic=topic)
        acts.commit(cluster, group_id="simple", topic=topic)
    acts.commit(cluster, group_id="bare", topic="t")
    acts.commit(cluster, group_id="untouched", topic="other")
    acts.in_state(cluster, state)
    before = len(cluster.appends)
    cluster.feed(TopicsChanged(frozenset({"t"}), frozenset({"t"})))
    (append,) = cluster.appends[before:]
    tombstones = [record.offset_tombstone for record in append.records]
    assert sorted(tombstone.group_id for tombstone in tombstones) == ["bare", "g", "simple"]
    assert {tombstone.reason for tombstone in tombstones} == {"topic_deleted"}
    for each in (cluster, cluster.reloaded()):
        for group in ("g", "simple", "untouched"):
            assert acts.fetch(each, group) == {("other", 0): 1}
        assert acts.fetch(each, "bare") == {}
