"""Rows DG, LS and DL: describe, list and delete groups."""

from typing import Any

import pytest
from conformance import acts, acts_offsets
from conformance.acts import STATES
from kit.lives.virtual_shard import WALL_MS, VirtualShard
from muster_core.error_code import GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NONE
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import coordinator_pb2

PROTO = {state.value: state.proto for state in GroupState}

# --- DescribeGroups


@pytest.mark.row("DG-01")
def test_a_stable_group_is_described_whole() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a=i", "b")
    first.cluster.advance(1_000)
    second.heartbeat()
    since_ms = cluster.describe().state_since_ms
    token = cluster.log[-1][0].token
    described = cluster.describe()
    assert described == coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g",
        state=coordinator_pb2.GROUP_STATE_STABLE,
        protocol_type="consumer",
        protocol_name="range",
        generation=1,
        leader=first.member_id,
        state_since_ms=since_ms,
        cause=described.cause,
        shard_epoch=1,
        type="classic",
        members=[
            coordinator_pb2.DescribeGroupsResponse.Member(
                member_id=who.member_id,
                group_instance_id=who.instance,
                client_id=who.name,
                host="10.0.0.1",
                metadata=b"m",
                assignment=f"for {who.member_id}".encode(),
                token=token,
                session_remaining_ms=remaining_ms,
                confirmed=True,
                awaited_remaining_ms=-1,
                protocols=["range"],
            )
            for who, remaining_ms in sorted(
                ((first, acts.SESSION_MS - 1_000), (second, acts.SESSION_MS)),
                key=lambda entry: entry[0].member_id,
            )
        ],
    )
    assert since_ms == WALL_MS + cluster.now_ms - 1_000


@pytest.mark.row("DG-02")
@pytest.mark.parametrize("state", STATES[1:3])
def test_a_rebalancing_group_is_described_without_a_protocol(state: str) -> None:
    cluster = acts.shard()
    members = acts.in_state(cluster, state)
    described = cluster.describe()
    assert (described.state, described.protocol_type) == (PROTO[state], "consumer")
    assert (described.protocol_name, described.generation) == ("", 1)
    assert {entry.member_id for entry in described.members} == {who.member_id for who in members}
    for entry in described.members:
        assert entry.metadata == b""
        given = f"for {entry.member_id}".encode() if state == "PreparingRebalance" else b""
        assert entry.assignment == given, "what they were given is shown as long as they may hold it"
        waits = state == "PreparingRebalance" and entry.member_id == members[1].member_id
        assert entry.session_remaining_ms == (-1 if waits else acts.SESSION_MS), "who waits has no deadline"


@pytest.mark.row("DG-03")
@pytest.mark.row("LD-05")
def test_an_unknown_group_is_described_as_dead() -> None:
    cluster = acts_offsets.from_records(acts_offsets.stored_commit(1))
    answer = cluster.ask(coordinator_pb2.DescribeGroupsRequest(group_ids=["nobody"]))
    dead = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="nobody", state=coordinator_pb2.GROUP_STATE_DEAD, shard_epoch=2
    )
    assert answer == coordinator_pb2.DescribeGroupsResponse(groups=[dead])
    assert list(cluster.shard.groups) == ["g"]


@pytest.mark.row("DG-05")
def test_each_group_that_is_asked_for_has_its_entry() -> None:
    cluster = acts.shard()
    acts.stable(cluster, acts.member(cluster, "a", group="busy"))
    acts.commit(cluster, group_id="simple")
    answer: Any = cluster.ask(
        coordinator_pb2.DescribeGroupsRequest(group_ids=["simple", "unknown", "busy", "simple"])
    )
    assert [(group.group_id, group.state, group.error_code) for group in answer.groups] == [
        ("simple", coordinator_pb2.GROUP_STATE_EMPTY, NONE),
        ("unknown", coordinator_pb2.GROUP_STATE_DEAD, NONE),
        ("busy", coordinator_pb2.GROUP_STATE_STABLE, NONE),
        ("simple", coordinator_pb2.GROUP_STATE_EMPTY, NONE),
    ]


@pytest.mark.row("DG-07")
def test_what_is_not_stored_yet_is_not_described() -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b")
    cluster.auto_ack = False
    for who in members:
        who.sync({who.member_id: b"new"})
    described = cluster.describe()
    assert described.state == coordinator_pb2.GROUP_STATE_COMPLETING_REBALANCE
    assert [entry.assignment for entry in described.members] == [b"", b""]
    cluster.acknowledge()
    assert cluster.state() == "Stable"
    members[0].join()
    members[1].join()
    described = cluster.describe()
    assert (described.state, described.generation) == (coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE, 1)
    cluster.acknowledge()
    assert cluster.describe().generation == 2


@pytest.mark.row("DG-08")
def test_an_empty_group_keeps_its_kind() -> None:
    cluster = acts.shard()
    acts.in_state(cluster, "Empty")
    for each in (cluster, cluster.reloaded()):
        described = each.describe()
        assert (described.state, described.protocol_type) == (coordinator_pb2.GROUP_STATE_EMPTY, "consumer")
        assert (described.protocol_name, described.leader, list(described.members)) == ("", "", [])


# --- GroupHistory


@pytest.mark.parametrize(("limit", "count"), [(0, 20), (1, 1), (5, 5), (100, 25)])
def test_the_history_gives_the_last_generations(limit: int, count: int) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    for _ in range(24):
        acts.rejoined(who)
        acts.assigned([who])
    answer: Any = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g", limit=limit))
    assert [entry.generation for entry in answer.generations] == list(range(26 - count, 26))
    assert (answer.error_code, answer.shard_epoch) == (NONE, 1)


@pytest.mark.parametrize(("group_id", "code"), [("nobody", GROUP_ID_NOT_FOUND), ("", INVALID_GROUP_ID)])
def test_a_group_that_does_not_exist_has_no_history(group_id: str, code: int) -> None:
    answer: Any = acts.shard().ask(coordinator_pb2.GroupHistoryRequest(group_id=group_id))
    assert (answer.error_code, list(answer.generations)) == (code, [])


# --- ListGroups (KIP-518, KIP-848)


def several(cluster: VirtualShard) -> list[tuple[str, str, int, str]]:
    """A group in each state and a simple one; what a list of all says."""
    for state in STATES:
        members = [acts.member(cluster, name, group=state) for name in ("a", "b")]
        acts.joined(cluster, *members)
        if state != "CompletingRebalance":
            acts.assigned(members)
        if state == "PreparingRebalance":
            members[0].join()
        if state == "Empty":
            for who in members:
                who.leave()
    cluster.advance(acts.DELAY_MS)
    acts.commit(cluster, group_id="simple")
    rows = [(state, "consumer", PROTO[state], "classic") for state in STATES]
    return sorted([*rows, ("simple", "", coordinator_pb2.GROUP_STATE_EMPTY, "classic")])


@pytest.mark.row("LS-01")
@pytest.mark.row("LS-02")
@pytest.mark.row("LS-06")
def test_all_groups_are_listed_with_kind_and_state() -> None:
    cluster = acts.shard(min_session_timeout_ms=1_000)
    everything = several(cluster)
    assert acts_offsets.listed(cluster) == everything
    assert [row[0] for row in everything if row[2] == coordinator_pb2.GROUP_STATE_STABLE] == ["Stable"]


@pytest.mark.row("LS-03")
def test_the_filter_of_states() -> None:
    cluster = acts.shard()
    everything = several(cluster)
    for states in (["stable"], ["EMPTY", "PreparingRebalance"], ["nonsense"], ["nonsense", "Stable"]):
        wanted = {PROTO.get(state) for state in STATES if state.lower() in {s.lower() for s in states}}
        expected = [row for row in everything if row[2] in wanted]
        assert acts_offsets.listed(cluster, states=states) == expected


@pytest.mark.parametrize(
    ("types", "all_of_them"),
    [
        pytest.param(["classic"], True, marks=pytest.mark.row("LS-04")),
        pytest.param(["CLASSIC"], True, marks=pytest.mark.row("LS-04")),
        pytest.param(["nonsense", "Classic"], True, marks=pytest.mark.row("LS-04")),
        pytest.param(["consumer"], False, marks=pytest.mark.row("LS-05")),
        pytest.param(["nonsense"], False, marks=pytest.mark.row("LS-05")),
    ],
)
def test_the_filter_of_types(types: list[str], all_of_them: bool) -> None:
    cluster = acts.shard()
    everything = several(cluster)
    assert acts_offsets.listed(cluster, types=types) == (everything if all_of_them else [])
    stable = [row for row in everything if row[2] == coordinator_pb2.GROUP_STATE_STABLE]
    assert acts_offsets.listed(cluster, types=types, states=["stable"]) == (stable if all_of_them else [])


def test_a_shard_without_groups_lists_none() -> None:
    cluster = acts.shard()
    assert acts_offsets.listed(cluster) == []
    acts.commit(cluster)
    acts.delete_groups(cluster, "g")
    assert acts_offsets.listed(cluster) == []


# --- DeleteGroups (KIP-229)


@pytest.mark.row("DL-01")
@pytest.mark.parametrize("state", STATES[1:])
def test_a_group_with_members_is_not_deleted(state: str) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, state)
    appends = len(cluster.appends)
    assert acts.delete_groups(cluster, "g") == [("g", 68)]
    assert (cluster.state(), len(cluster.appends)) == (state, appends)


@pytest.mark.row("DL-04")
def test_an_unknown_group_is_not_deleted() -> None:
    cluster = acts.shard()
    assert acts.delete_groups(cluster, "g") == [("g", 69)]
    assert (cluster.shard.groups, cluster.kinds()) == ({}, [])


@pytest.mark.row("DL-05")
@pytest.mark.row("DL-06")
@pytest.mark.row("LD-07")
@pytest.mark.row("RF-09")
@pytest.mark.parametrize("offsets", [0, 2])
def test_an_empty_group_is_deleted_with_its_offsets(offsets: int) -> None:
    cluster = acts.shard()
    for number in range(offsets):
        acts.commit(cluster, partitions={number: 5})
    acts.in_state(cluster, "Empty")
    assert acts.delete_groups(cluster, "g") == [("g", 0)]
    records = cluster.appends[-1].records
    assert [record.WhichOneof("kind") for record in records] == ["group_tombstone"], "all or nothing"
    assert (records[-1].group_tombstone.reason, records[-1].group_tombstone.last_generation) == ("deleted", 2)
    for each in (cluster, cluster.reloaded()):
        assert (each.state(), acts_offsets.listed(each)) == ("Dead", [])
        assert acts.fetch(each, t=[0]) == {("t", 0): -1}
        assert acts.delete_groups(each, "g") == [("g", 69)]


@pytest.mark.row("DL-05")
def test_a_group_is_there_until_its_tombstone_is_stored() -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    cluster.auto_ack = False
    first = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    second = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    assert (cluster.state(), acts.fetch(cluster)) == ("Empty", {("t", 0): 1})
    assert cluster.reloaded().state() == "Empty"
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(first)) == 0
    assert acts.error_of(cluster.answer(second)) == GROUP_ID_NOT_FOUND
    assert cluster.state() == "Dead"


@pytest.mark.row("DL-08")
@pytest.mark.row("DL-09")
def test_each_group_of_a_batch_has_one_result() -> None:
    cluster = acts.shard()
    acts.stable(cluster, acts.member(cluster, "a", group="busy"))
    for group in ("x", "y", "stays"):
        acts.commit(cluster, group_id=group)
    assert acts.delete_groups(cluster, "x", "unknown", "busy", "y", "x", "busy") == [
        ("x", 0),
        ("unknown", 69),
        ("busy", 68),
        ("y", 0),
    ]
    assert [row[0] for row in acts_offsets.listed(cluster)] == ["busy", "stays"]
    assert cluster.kinds().count("group_tombstone") == 2


@pytest.mark.row("DL-08")
def test_a_batch_is_answered_when_all_of_it_is_known() -> None:
    cluster = acts.shard()
    for group in ("x", "y"):
        acts.commit(cluster, group_id=group)
    cluster.auto_ack = False
    call = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["x", "unknown", "y"]))
    cluster.acknowledge()
    assert cluster.is_parked(call)
    cluster.acknowledge()
    answer = cluster.answer(call)
    assert isinstance(answer, coordinator_pb2.DeleteGroupsResponse)
    assert [result.error_code for result in answer.results] == [NONE, GROUP_ID_NOT_FOUND, NONE]


@pytest.mark.row("DL-12")
def test_a_group_that_was_deleted_starts_again_with_a_higher_token() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    before = cluster.describe().members[0].token
    who.leave()
    cluster.auto_ack = False
    deleting = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    fresh = acts.member(cluster, "b")
    joining = cluster.send(acts.join_of(fresh, group_instance_id="i"))
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    assert acts.error_of(cluster.answer(deleting)) == 0
    described = cluster.describe()
    assert (cluster.state(), described.generation) == ("PreparingRebalance", 0)
    cluster.advance(acts.DELAY_MS)
    answer = cluster.answer(joining)
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    assert (answer.error_code, answer.generation) == (NONE, 1)
    fresh.member_id, fresh.generation, fresh.instance = answer.member_id, 1, "i"
    assert fresh.sync({answer.member_id: b"x"}).synced().token > before
    assert acts.leave(cluster, (who.member_id, "")) == [25]
