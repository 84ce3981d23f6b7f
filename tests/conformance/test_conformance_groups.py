"""Rows DG, LS and DL: describing, listing and deleting groups."""

from typing import Any

import pytest
from conformance import acts
from muster_protos.muster.v1 import coordinator_pb2 as pb


@pytest.mark.row("DG-01")
@pytest.mark.parametrize("instance", ["", "i"])
def test_a_stable_group_is_described_whole(instance: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, f"a={instance}")
    described = cluster.describe()
    assert (described.protocol_type, described.protocol_name, described.leader) == (
        "consumer",
        "range",
        who.member_id,
    )
    (entry,) = described.members
    assert (entry.member_id, entry.group_instance_id, entry.client_id) == (who.member_id, instance, "a")
    assert (entry.host, entry.metadata) == ("10.0.0.1", b"m")
    assert entry.assignment == f"for {who.member_id}".encode()


@pytest.mark.row("DG-02")
@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_a_rebalancing_group_shows_no_protocol(state: str) -> None:
    cluster = acts.shard()
    members = acts.in_state(cluster, state)
    described = cluster.describe()
    assert (cluster.state(), described.protocol_name) == (state, "")
    assert [entry.member_id for entry in described.members] == sorted(who.member_id for who in members)
    assert {entry.metadata for entry in described.members} == {b""}
    shown = {entry.assignment for entry in described.members}
    assert shown == ({f"for {who.member_id}".encode() for who in members} if state[0] == "P" else {b""})


@pytest.mark.row("DG-03")
@pytest.mark.row("LD-05")
def test_an_unknown_group_is_dead() -> None:
    cluster = acts.shard()
    described = cluster.describe("nobody")
    assert described == pb.DescribeGroupsResponse.Group(
        group_id="nobody", state=pb.GROUP_STATE_DEAD, shard_epoch=cluster.epoch
    )


@pytest.mark.row("DG-05")
def test_one_entry_for_each_group() -> None:
    cluster = acts.shard()
    acts.commit(cluster, group_id="simple")
    answer: Any = cluster.ask(pb.DescribeGroupsRequest(group_ids=["none", "simple", "none"]))
    assert [(group.group_id, group.state) for group in answer.groups] == [
        ("none", pb.GROUP_STATE_DEAD),
        ("simple", pb.GROUP_STATE_EMPTY),
        ("none", pb.GROUP_STATE_DEAD),
    ]


@pytest.mark.row("DG-07")
def test_a_description_shows_what_is_acknowledged() -> None:
    cluster = acts.shard()
    (who,) = acts.joined(cluster, "a")
    cluster.auto_ack = False
    who.sync({who.member_id: b"x"})
    assert (cluster.state(), cluster.describe().members[0].assignment) == ("CompletingRebalance", b"")
    cluster.acknowledge()
    assert (cluster.state(), cluster.describe().members[0].assignment) == ("Stable", b"x")


@pytest.mark.row("DG-08")
def test_an_empty_group_keeps_its_type() -> None:
    cluster = acts.shard()
    acts.in_state(cluster, "Empty")
    described = cluster.describe()
    assert (described.protocol_type, described.protocol_name, len(described.members)) == ("consumer", "", 0)


@pytest.mark.parametrize(
    "state",
    [pytest.param(s, marks=pytest.mark.row("LS-01" if s == "Stable" else "LS-02")) for s in acts.STATES],
)
def test_groups_are_listed_in_every_state(state: str) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, state)
    answer: Any = cluster.ask(pb.ListGroupsRequest())
    (group,) = answer.groups
    assert (group.group_id, group.protocol_type, group.type) == ("g", "consumer", "classic")
    assert group.state == cluster.describe().state


@pytest.mark.parametrize(
    ("types", "count"),
    [
        pytest.param(["classic"], 2, marks=pytest.mark.row("LS-04")),
        pytest.param(["consumer", "CLASSIC"], 2, marks=pytest.mark.row("LS-04")),
        pytest.param(["consumer"], 0, marks=pytest.mark.row("LS-05")),
        pytest.param(["nonsense"], 0, marks=pytest.mark.row("LS-05")),
    ],
)
def test_the_filter_of_types(types: list[str], count: int) -> None:
    cluster = acts.shard()
    for group in ("g", "h"):
        acts.commit(cluster, group_id=group)
    answer: Any = cluster.ask(pb.ListGroupsRequest(types=types))
    assert (answer.error_code, len(answer.groups)) == (0, count)


@pytest.mark.row("LS-06")
def test_a_simple_group_has_no_type() -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    answer: Any = cluster.ask(pb.ListGroupsRequest())
    assert answer.groups[0].protocol_type == ""


@pytest.mark.row("LS-09")
def test_an_empty_shard_lists_nothing() -> None:
    assert acts.shard().ask(pb.ListGroupsRequest()) == pb.ListGroupsResponse()


@pytest.mark.row("DL-01")
@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Stable"])
def test_a_group_with_members_is_not_deleted(state: str) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, state)
    assert acts.delete_groups(cluster, "g") == [("g", 68)]
    assert cluster.state() == state


@pytest.mark.row("DL-04")
@pytest.mark.row("DL-08")
@pytest.mark.row("DL-09")
def test_each_id_has_one_result() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    acts.commit(cluster, group_id="simple")
    results = acts.delete_groups(cluster, "simple", "g", "none", "simple")
    assert results == [("simple", 0), ("g", 68), ("none", 69)]
    assert cluster.kinds().count("group_tombstone") == 1


@pytest.mark.row("DL-05")
@pytest.mark.row("DL-06")
@pytest.mark.row("DL-12")
@pytest.mark.row("LD-07")
def test_deleting_removes_offsets_then_the_group_and_it_may_be_made_again() -> None:
    cluster = acts.shard()
    first, _ = acts.stable(cluster, "a", "b")
    acts.commit(cluster, first, 5)
    acts.leave(cluster, *[(entry.member_id, "") for entry in cluster.describe().members])
    assert cluster.state() == "Empty"
    assert acts.delete_groups(cluster, "g") == [("g", 0)]
    assert cluster.kinds()[-2:] == ["offset_tombstone", "group_tombstone"]
    assert (cluster.state(), acts.fetch(cluster, t=[0])) == ("Dead", {("t", 0): -1})
    assert cluster.reloaded().state() == "Dead"
    (again,) = acts.joined(cluster, "a=i")
    assert again.generation == 1
