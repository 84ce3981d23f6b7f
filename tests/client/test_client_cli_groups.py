"""`muster groups list`, `describe`: what they show of groups of both kinds."""

import json
from typing import Any

import pytest
from client.client_cli import cli
from client.client_scripted import ScriptedCluster
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

pytestmark = pytest.mark.cluster


async def test_a_group_is_described(cluster: ScriptedCluster) -> None:
    assignment = common_pb2.Assignment(
        version=1, partitions=[common_pb2.TopicPartitions(topic="t", partitions=[0, 1, 2, 5])]
    )
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g",
        state=coordinator_pb2.GROUP_STATE_STABLE,
        generation=4,
        protocol_name="range",
        leader="m-1",
        cause=common_pb2.RebalanceCause(sentence="Member m-2 left: it was closed."),
        members=[
            coordinator_pb2.DescribeGroupsResponse.Member(
                member_id="m-1", host="10.0.0.7", assignment=assignment.SerializeToString(), token="T"
            )
        ],
    )
    answer = coordinator_pb2.DescribeGroupsResponse(groups=[group])
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].extend([answer, answer])
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert code == 0
    assert out.startswith("group g: Stable since")
    assert "because: Member m-2 left: it was closed." in out
    assert out.splitlines()[-1].split() == ["m-1", "10.0.0.7", "-", "t", "0-2", "5", "T"]
    code, out, _ = await cli(cluster, "groups", "describe", "g", "--output", "json")
    assert json.loads(out)["members"][0]["member_id"] == "m-1"
    code, out, _ = await cli(cluster, "groups", "describe", "other")
    assert (code, out) == (1, "there is no group other\n")


async def test_weights_are_shown_where_members_have_any(cluster: ScriptedCluster) -> None:
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, generation=4, type="consumer"
    )
    group.members.add(member_id="m-1", host="h")
    group.members.add(member_id="m-2", host="h")
    detail = incremental_pb2.ConsumerGroupDescribeResponse.Group(group_id="g")
    detail.members.add(member_id="m-1", weight=1, revocation_remaining_ms=-1)
    detail.members.add(member_id="m-2", weight=4, revocation_remaining_ms=-1)
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    a.script["ConsumerGroupDescribe"].append(incremental_pb2.ConsumerGroupDescribeResponse(groups=[detail]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert code == 0
    assert "held back" not in out
    assert [line.split()[:4] for line in out.splitlines()[-3:]] == [
        ["MEMBER", "HOST", "CLIENT", "WEIGHT"],
        ["m-1", "h", "-", "1"],
        ["m-2", "h", "-", "4"],
    ]


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        ({}, "moves are held back until `muster groups set` ends it (hold)"),
        (
            {"member_id": "m-1", "began_ms": 1, "until_ms": 60_000},
            "moves are held back until 1970-01-01 00:01:00 UTC: i joined with rollout_hold_ms",
        ),
    ],
)
async def test_who_holds_moves_back_is_shown(
    cluster: ScriptedCluster, hold: dict[str, Any], text: str
) -> None:
    """INC-174."""
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, generation=4, type="consumer"
    )
    detail = incremental_pb2.ConsumerGroupDescribeResponse.Group(group_id="g")
    detail.members.add(member_id="m-1", group_instance_id="i", revocation_remaining_ms=-1, weight=3)
    detail.hold.CopyFrom(incremental_pb2.ConsumerGroupDescribeResponse.Hold(**hold))
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    a.script["ConsumerGroupDescribe"].append(incremental_pb2.ConsumerGroupDescribeResponse(groups=[detail]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert (code, out.splitlines()[-1]) == (0, text)
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    a.script["ConsumerGroupDescribe"].append(incremental_pb2.ConsumerGroupDescribeResponse(groups=[detail]))
    shown = json.loads((await cli(cluster, "groups", "describe", "g", "--output", "json"))[1])["incremental"]
    assert {name: value for name, value in shown["hold"].items() if value not in ("", "0")} == {
        name: value if name == "member_id" else str(value) for name, value in hold.items()
    }
    assert [member["weight"] for member in shown["members"]] == [3]


async def test_what_is_on_its_way_in_an_incremental_group_is_shown(cluster: ScriptedCluster) -> None:
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_RECONCILING, generation=4, type="consumer"
    )
    detail = incremental_pb2.ConsumerGroupDescribeResponse.Group(group_id="g")
    moving = common_pb2.TopicPartitions(topic="t", partitions=[2, 3])
    detail.members.add(member_id="m-1", revoking=[moving], revocation_remaining_ms=9_000)
    waits = detail.members.add(member_id="m-2", group_instance_id="i", revocation_remaining_ms=-1)
    waits.awaits.add(member_id="m-1", topics=[moving])
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    answer = incremental_pb2.ConsumerGroupDescribeResponse(groups=[detail])
    a.script["ConsumerGroupDescribe"].append(answer)
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert code == 0
    assert "epoch 4" in out
    gives, waiting = (" ".join(line.split()) for line in out.splitlines()[-2:])
    assert gives == "m-1 gives back, within 9 s t 2-3"
    assert waiting == "i waits for m-1 t 2-3"


async def test_whom_a_classic_group_waits_for_is_shown(cluster: ScriptedCluster) -> None:
    """Who is to release what, for how long, and who makes the group stop everything."""
    described = coordinator_pb2.DescribeGroupsResponse
    group = described.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, generation=4, type="classic", unused_ids=1
    )
    both = ["cooperative-sticky", "range"]
    keeper = group.members.add(member_id="m-1", awaited=described.AWAITED_RELEASE, protocols=both)
    keeper.awaited_remaining_ms = 9_000
    keeper.withheld.add(topic="t", partitions=[2, 3])
    group.members.add(member_id="m-2", group_instance_id="i", awaited_remaining_ms=-1, protocols=["range"])
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(described(groups=[group]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert code == 0
    *_, row, unused, eager = (" ".join(line.split()) for line in out.splitlines() if line)
    assert row == "m-1 is to release, and to join again, within 9 s t 2-3"
    assert unused == "1 more have an id and have not joined with it yet"
    assert eager == "its rebalances stop everything: i can use no assignor that keeps partitions"


@pytest.mark.parametrize("protocols", [["range"], ["cooperative-sticky", "range"], []])
async def test_a_group_that_waits_for_nobody_has_no_more_to_show(
    cluster: ScriptedCluster, protocols: list[str]
) -> None:
    """Nor where all members are alike, or a coordinator of before does not say what they can."""
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, generation=4, type="classic"
    )
    for name in ("m-1", "m-2"):
        group.members.add(member_id=name, protocols=protocols)
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    _, out, _ = await cli(cluster, "groups", "describe", "g")
    assert out.splitlines()[-1].startswith("m-2")


async def test_what_a_later_version_or_a_wrong_clock_says_is_shown_as_it_is(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    state = coordinator_pb2.GroupState.ValueType(77)
    described = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=state, state_since_ms=2**62, cause=common_pb2.RebalanceCause(sentence="why")
    )
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[described]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert (code, out.splitlines()[0]) == (0, f"group g: 77 since {2**62} ms UTC")
    listed = coordinator_pb2.ListGroupsResponse.Group(group_id="g", state=state)
    a.script["ListGroups"].append(coordinator_pb2.ListGroupsResponse(groups=[listed]))
    code, out, _ = await cli(cluster, "groups", "list")
    assert (code, out.splitlines()[1].split()) == (0, ["g", "77", "simple"])


async def test_groups_of_all_coordinators_are_listed(cluster: ScriptedCluster) -> None:
    for coordinator, name in zip(cluster.coordinators, ("z", "b"), strict=True):
        entry = coordinator_pb2.ListGroupsResponse.Group(
            group_id=name, protocol_type="consumer", state=coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE
        )
        coordinator.script["ListGroups"].append(coordinator_pb2.ListGroupsResponse(groups=[entry]))
    code, out, _ = await cli(cluster, "groups", "list")
    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["b", "PreparingRebalance", "consumer"],
        ["z", "PreparingRebalance", "consumer"],
    ]


async def test_a_missing_group_is_said_to_be_missing_once(cluster: ScriptedCluster) -> None:
    _, _, err = await cli(cluster, "groups", "history", "nobody")
    assert err.count("no such group") <= 1
    assert "`muster groups list` shows those that exist" in err


async def test_a_leadership_is_described_by_who_leads(cluster: ScriptedCluster) -> None:
    describe = coordinator_pb2.DescribeGroupsResponse
    leads = common_pb2.Assignment(
        version=1, partitions=[common_pb2.TopicPartitions(topic="muster.leadership", partitions=[0])]
    )
    group = describe.Group(
        group_id="lead/report",
        state=coordinator_pb2.GROUP_STATE_STABLE,
        protocol_name="leader",
        members=[
            describe.Member(member_id="a-1", host="h"),
            describe.Member(member_id="b-2", host="h", assignment=leads.SerializeToString()),
        ],
    )
    cluster.coordinators[0].script["DescribeGroups"].append(describe(groups=[group]))
    code, out, _ = await cli(cluster, "groups", "describe", "lead/report")
    assert code == 0
    assert "leadership report: led by b-2; 1 stand by" in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["b-2", "a-1"]
