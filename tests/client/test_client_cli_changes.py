"""What an operator does to a group: its settings, its kind, its members."""

import json
from typing import Any, cast

import muster
import pytest
from client.client_cli import cli
from client.client_scripted import NONE, ScriptedCluster
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, group_conversion_pb2, group_settings_pb2

pytestmark = pytest.mark.cluster
UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
EMPTY = coordinator_pb2.GROUP_STATE_EMPTY


async def test_settings_of_a_group_are_set_shown_and_taken_back(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    code, out, _ = await cli(cluster, "groups", "set", "g", "hold=True", "session_timeout_ms=60000")
    assert (code, out) == (0, "group g: session_timeout_ms=60000, hold=true\n")
    code, out, _ = await cli(cluster, "groups", "set", "g", "assignor=range", "--output", "json")
    assert (code, json.loads(out)) == (0, {"assignor": "range"})
    code, out, _ = await cli(cluster, "groups", "set", "g", "--unset", "hold", "--unset", "assignor")
    assert (code, out) == (0, "group g: nothing is set, its coordinators decide\n")
    asked = [request for method, request in a.seen if method == "AlterGroupSettings"]
    assert [list(request.unset) for request in asked] == [[], [], ["hold", "assignor"]]
    assert asked[0].set == group_settings_pb2.GroupSettings(hold=True, session_timeout_ms=60_000)
    group = coordinator_pb2.DescribeGroupsResponse.Group(group_id="g", state=EMPTY)
    group.settings.convert, group.settings.hold = "auto", False
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert "set for it: convert=auto, hold=false" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["assigner=range"], "assigner: is no setting of a group; there are assignor, "),
        (["assignor"], "assignor: must be NAME=VALUE"),
        (["hold=yes"], "hold: must be true or false, not 'yes'"),
        (["session_timeout_ms=1s"], "session_timeout_ms: must be a whole number, not '1s'"),
        (["hold=true", "hold=false"], "give each setting once"),
        (["hold=true", "--unset", "hold"], "hold is to be set, too"),
        (["--unset", "holt"], "holt: is no setting of a group"),
        ([], "give NAME=VALUE or --unset NAME"),
    ],
)
async def test_a_setting_that_cannot_be_is_named_before_anything_is_sent(
    cluster: ScriptedCluster, arguments: list[str], says: str
) -> None:
    code, _, err = await cli(cluster, "groups", "set", "g", *arguments)
    assert code == 2
    assert says in " ".join(err.replace("│", " ").split())


async def test_what_the_coordinator_does_not_take_is_said_in_its_words(cluster: ScriptedCluster) -> None:
    refused = group_settings_pb2.AlterGroupSettingsResponse(
        error_code=common_pb2.ERROR_CODE_INVALID_CONFIG, error_message="session_timeout_ms must be 6,000 to"
    )
    cluster.coordinators[0].script["AlterGroupSettings"].append(refused)
    code, _, err = await cli(cluster, "groups", "set", "g", "session_timeout_ms=1")
    assert code == 1
    assert "session_timeout_ms must be 6,000 to" in err
    assert "INVALID_CONFIG" in err


async def test_a_group_is_made_one_of_the_other_kind(cluster: ScriptedCluster) -> None:
    """It says what the group is now; why it cannot be is the coordinator's to say."""
    a = cluster.coordinators[0]
    code, out, _ = await cli(cluster, "groups", "convert", "g", "classic", "--reason", "rolled back")
    assert (code, out) == (0, "group g is classic now\n")
    code, out, _ = await cli(cluster, "groups", "convert", "g", "incremental")
    assert (code, out) == (0, "group g is incremental already\n")
    asked = [request for method, request in a.seen if method == "ConvertGroup"]
    assert [(one.kind, one.reason) for one in asked] == [
        (group_conversion_pb2.GROUP_KIND_CLASSIC, "rolled back"),
        (group_conversion_pb2.GROUP_KIND_INCREMENTAL, ""),
    ]
    code, _, err = await cli(cluster, "groups", "convert", "g", "klassic")
    assert code == 2
    assert "klassic" in err
    refused = group_conversion_pb2.ConvertGroupResponse(
        error_code=common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL, error_message="member m can only be"
    )
    a.script["ConvertGroup"].append(refused)
    code, _, err = await cli(cluster, "groups", "convert", "g", "classic")
    assert code == 1
    assert "member m can only be" in err
    async with muster.Cluster(cluster.address) as connected:
        with pytest.raises(muster.SettingsError, match="must be classic or incremental, not 'other'"):
            await connected.convert_group("g", cast(Any, "other"))


async def test_a_group_is_released_from_quarantine(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    listed = coordinator_pb2.ListGroupsResponse(
        groups=[coordinator_pb2.ListGroupsResponse.Group(group_id="g", quarantined=True)]
    )
    a.script["ListGroups"].append(listed)
    code, out, _ = await cli(cluster, "groups", "list")
    assert (code, out.splitlines()[1].split()) == (0, ["g", "Quarantined", "-"])
    a.script["ReleaseGroup"].append(coordinator_pb2.ReleaseGroupResponse(error_code=NONE))
    code, out, _ = await cli(cluster, "groups", "release", "g")
    assert (code, out) == (0, "group g is out of quarantine\n")
    code, _, errors = await cli(cluster, "groups", "release", "g")
    assert code == 1
    assert "GROUP_ID_NOT_FOUND" in errors


@pytest.mark.parametrize("by_instance", [False, True])
async def test_an_operator_removes_a_member_by_its_id_or_instance(
    cluster: ScriptedCluster, by_instance: bool
) -> None:
    a = cluster.coordinators[0]
    asked: list[Any] = []

    def leave(request: Any) -> Any:
        asked.append(request)
        codes = (UNKNOWN, NONE) if by_instance else (NONE, UNKNOWN)
        members = [coordinator_pb2.LeaveGroupResponse.Member(error_code=code) for code in codes]
        return coordinator_pb2.LeaveGroupResponse(members=members)

    a.script["LeaveGroup"].append(leave)
    code, out, err = await cli(cluster, "groups", "remove-member", "g", "m-1", "--reason", "it never syncs")
    assert (code, out, err) == (0, "member m-1 of group g is removed\n", "")
    assert [(m.member_id, m.group_instance_id, m.reason) for m in asked[0].members] == [
        ("m-1", "", "it never syncs"),
        ("", "m-1", "it never syncs"),
    ]


async def test_a_member_that_is_not_there_is_named(cluster: ScriptedCluster) -> None:
    unknown = coordinator_pb2.LeaveGroupResponse.Member(error_code=UNKNOWN)
    answer = coordinator_pb2.LeaveGroupResponse(members=[unknown, unknown])
    cluster.coordinators[0].script["LeaveGroup"].append(answer)
    code, _, err = await cli(cluster, "groups", "remove-member", "g", "m-1")
    assert code == 1
    assert "it has no member 'm-1'" in err
