"""The command line, as a process; `piped` and `interrupted` start it as a user does."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import muster
import pytest
from client.client_scripted import NONE, ScriptedCluster
from kit import forked
from kit.interrupted import interrupted
from muster.cli import _app
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)

pytestmark = pytest.mark.cluster
FULL_DISK = Path("/dev/full")
UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
EMPTY = coordinator_pb2.GROUP_STATE_EMPTY


async def cli(scripted: ScriptedCluster | None, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command whose output goes into files."""
    servers = scripted.address if scripted else "127.0.0.1:1"
    environment = {**os.environ, "MUSTER_SERVERS": servers}
    environment.pop("COLUMNS", None)
    done = await forked.run_beside(["muster", *arguments], environment)
    return done.returncode, done.stdout, done.stderr


async def test_topics_from_creation_to_deletion(cluster: ScriptedCluster) -> None:
    code, out, err = await cli(cluster, "topics", "create", "sites", "12", "--output", "json")
    assert (code, json.loads(out), err) == (0, [{"name": "sites", "partitions": 12, "zones": {}}], "")
    code, out, _ = await cli(cluster, "topics", "alter", "sites", "24")
    assert (code, out.split()) == (0, ["TOPIC", "PARTITIONS", "sites", "24"])
    code, out, _ = await cli(cluster, "topics", "list")
    assert (code, out.split()) == (0, ["TOPIC", "PARTITIONS", "sites", "24", "t", "3"])
    code, out, _ = await cli(cluster, "topics", "delete", "sites")
    assert (code, cluster.topics) == (0, {"t": 3})


def work_on_t(cluster: ScriptedCluster) -> None:
    """Two groups with members, one of which works on topic `t`, and a group without."""
    describe = coordinator_pb2.DescribeGroupsResponse
    stable, empty = coordinator_pb2.GROUP_STATE_STABLE, coordinator_pb2.GROUP_STATE_EMPTY
    owns = common_pb2.Assignment(
        version=1, partitions=[common_pb2.TopicPartitions(topic="t", partitions=[0])]
    )
    wants = common_pb2.Subscription(version=1, topics=["t"])
    members = [
        describe.Member(member_id="m-1", assignment=owns.SerializeToString()),
        describe.Member(member_id="m-2", metadata=wants.SerializeToString()),
        describe.Member(member_id="m-3", metadata=b"foreign", assignment=b"foreign"),
    ]
    listed = coordinator_pb2.ListGroupsResponse(
        groups=[
            coordinator_pb2.ListGroupsResponse.Group(group_id=group_id, state=state)
            for group_id, state in (("g", stable), ("idle", empty), ("other", stable))
        ]
    )

    def described(request: Any) -> Any:
        (group_id,) = request.group_ids
        found = members if group_id == "g" else []
        return describe(groups=[describe.Group(group_id=group_id, state=stable, members=found)])

    for coordinator in cluster.coordinators:
        coordinator.script["ListGroups"].append(listed)
        coordinator.script["DescribeGroups"].extend([described] * 2)


async def test_a_topic_that_members_work_on_is_deleted_by_force_only(cluster: ScriptedCluster) -> None:
    work_on_t(cluster)
    code, out, err = await cli(cluster, "topics", "delete", "t")
    assert (code, err) == (1, "muster: nothing was deleted; --force deletes it all the same\n")
    assert [line.split() for line in out.splitlines()][1] == ["g", "2", "0"]
    assert "their work on it ends, and their progress on it is lost" in out
    assert cluster.topics == {"t": 3}
    assert await cli(cluster, "topics", "delete", "t", "--force") == (0, "topic t is deleted\n", "")
    assert cluster.topics == {}


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, {}), ("n\n", 1, {"t": 3})])
async def test_at_a_terminal_it_is_asked_whether_to_delete_a_topic(
    cluster: ScriptedCluster, answer: str, code: int, left: dict[str, int]
) -> None:
    work_on_t(cluster)
    ours, theirs = pty.openpty()
    muster_command = str(Path(sys.executable).with_name("muster"))
    command = [muster_command, "topics", "delete", "t", "--servers", cluster.address]
    try:
        os.write(ours, answer.encode())
        done = await asyncio.create_subprocess_exec(
            *command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(done.communicate(), 60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, cluster.topics) == (code, left)
    assert b"Delete it? [y/N]:" in out


async def test_zones_are_given_shown_kept_and_removed(cluster: ScriptedCluster) -> None:
    zones = ("--zone", "eu=0-2,5", "--zone", "us=3")
    code, out, err = await cli(cluster, "topics", "create", "sites", "6", *zones, "--output", "json")
    shown = {"name": "sites", "partitions": 6, "zones": {"eu": [0, 1, 2, 5], "us": [3]}}
    assert (code, json.loads(out), err) == (0, [shown], "")
    _, out, _ = await cli(cluster, "topics", "alter", "sites", "8")
    assert out.split() == ["TOPIC", "PARTITIONS", "ZONES", "sites", "8", "eu=0-2,5", "us=3"]
    _, out, _ = await cli(cluster, "topics", "alter", "sites", "8", "--no-zones")
    assert out.split() == ["TOPIC", "PARTITIONS", "sites", "8"]


async def test_partitions_with_names_are_added_weighed_described_and_removed(
    cluster: ScriptedCluster,
) -> None:
    names = ("--partition", "acme", "--partition", "globex")
    code, out, err = await cli(cluster, "topics", "create", "tenants", *names)
    assert (code, out.split(), err) == (0, ["TOPIC", "PARTITIONS", "tenants", "2"], "")
    await cli(cluster, "topics", "add-partition", "tenants", "hooli", "--weight", "5")
    code, out, err = await cli(cluster, "topics", "remove-partition", "tenants", "globex")
    assert (code, out, err) == (0, "partition globex of topic tenants is removed\n", "")
    _, out, _ = await cli(cluster, "topics", "describe", "tenants")
    assert out.split("\n")[0] == "topic tenants: 2 partitions"
    assert out.split()[5:] == ["NAME", "WEIGHT", "ZONES", "0", "acme", "1", "-", "2", "hooli", "5", "-"]
    _, out, _ = await cli(cluster, "topics", "describe", "tenants", "--output", "json")
    names_and_weights = {"names": ["acme", "", "hooli"], "weights": [1, 0, 5]}
    assert json.loads(out) == [{"name": "tenants", "partitions": 3, "zones": {}, **names_and_weights}]
    code, _, err = await cli(cluster, "topics", "remove-partition", "tenants", "globex")
    assert (code, "has no partition 'globex'" in err) == (1, True)
    code, _, err = await cli(cluster, "topics", "describe", "absent")
    assert code == 1
    for wrong in (("7", "--partition", "a"), ()):
        code, _, err = await cli(cluster, "topics", "create", "both", *wrong)
        assert code == 2
        assert "give PARTITIONS, or --partition for each of them" in " ".join(err.replace("│", " ").split())


async def test_who_works_on_a_topic_is_asked_before_a_partition_of_it_is_removed(
    cluster: ScriptedCluster,
) -> None:
    cluster.names["t"] = common_pb2.PartitionNames(
        partitions=[common_pb2.PartitionNames.Partition(name=name) for name in ("a", "b", "c")]
    )
    work_on_t(cluster)
    code, out, err = await cli(cluster, "topics", "remove-partition", "t", "b")
    assert code == 1
    assert "These groups work on partition b of topic t" in out
    assert "--force" in err
    assert cluster.names["t"].partitions[1].name == "b"
    code, _, _ = await cli(cluster, "topics", "remove-partition", "t", "b", "--force")
    assert (code, cluster.names["t"].partitions[1].name) == (0, "")


@pytest.mark.parametrize(
    ("zones", "problem"),
    [
        (["--zone", "eu"], "'eu' is not ZONE=NUMBERS, such as eu-1=0-4,7"),
        (["--zone", "eu=1-0"], "'1-0' is no partition and no range of them"),
        (["--zone", "eu=x"], "'x' is no partition"),
        (["--zone", "eu=0-100000"], "'0-100000' is no partition"),
        (["--zone", "eu=0", "--zone", "eu=1"], "zone 'eu' is given more than once"),
        (["--zone", "eu=0", "--no-zones"], "give --zone or --no-zones, not both"),
    ],
)
async def test_zones_that_cannot_be_read_are_named(
    cluster: ScriptedCluster, zones: list[str], problem: str
) -> None:
    code, _, err = await cli(cluster, "topics", "alter", "t", "3", *zones)
    assert code == 2
    assert problem in " ".join(err.replace("│", " ").split())


async def test_servers_that_drop_zones_are_found_out(cluster: ScriptedCluster) -> None:
    cluster.knows_no_zones = True
    code, _, err = await cli(cluster, "topics", "alter", "t", "3", "--zone", "eu=0")
    assert code == 1
    assert "topic 't' is stored without its zones: the servers are of 0.1" in err


async def test_in_a_pipe_each_row_is_one_line(cluster: ScriptedCluster) -> None:
    name = "a" * 249
    await cli(cluster, "topics", "create", name, "12")
    _, out, _ = await cli(cluster, "topics", "list")
    assert [line.split() for line in out.splitlines()][1:] == [[name, "12"], ["t", "3"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("topics", "create", "t", "5"),
            "topic 't' exists already, with 3 partitions; use it, or another name",
        ),
        (("topics", "create", "a b", "5"), "topic: 'a b': must be 1 to 249 letters"),
        (("topics", "delete", "nothing"), "there is no topic 'nothing'"),
        (("groups", "history", "nobody"), "group 'nobody': GROUP_ID_NOT_FOUND"),
    ],
)
async def test_an_error_is_one_line(
    cluster: ScriptedCluster, arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = await cli(cluster, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"muster: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets",), ("groups", "list", "--servers")])
def test_an_argument_that_is_no_text_is_named(command: tuple[str, ...]) -> None:
    done = forked.run(["muster", *command, "a\udcff"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "muster: the argument 'a\\udcff' is not UTF-8\n"


async def piped(scripted: ScriptedCluster, arguments: str, into: str) -> tuple[int | None, str]:
    """Exit code and standard error of a command whose output goes somewhere else."""
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -c 'from muster.cli import main; main()' {arguments} {into}",
        env={**os.environ, "MUSTER_SERVERS": scripted.address},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, err.decode()


@pytest.mark.skipif(not FULL_DISK.exists(), reason="/dev/full is a disk without room")
@pytest.mark.parametrize("arguments", ["groups list", "topics list --output json", "--version"])
async def test_output_that_cannot_be_written_is_one_line(cluster: ScriptedCluster, arguments: str) -> None:
    code, err = await piped(cluster, arguments, f"> {FULL_DISK}")
    assert (code, err) == (1, "muster: it cannot be written: No space left on device\n")


async def test_who_reads_no_further_ends_it_without_a_word(cluster: ScriptedCluster) -> None:
    assert await piped(cluster, "groups list", "| true") == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["groups", "list", "redis://user:se@cret@a:1,b:2"],
        ["redis://user:secret@a:1"],
        ["groups", "redis://user:secret@a:1"],
    ],
)
async def test_a_password_on_a_wrong_command_line_is_not_repeated(arguments: list[str]) -> None:
    code, out, err = await cli(None, *arguments)
    assert (code, out) == (2, "")
    assert "redis://…@" in err
    assert "cret" not in err


async def test_the_library_names_a_group_id_that_is_no_text(cluster: ScriptedCluster) -> None:
    async with muster.Cluster(cluster.address) as connection:
        for question in (connection.committed, connection.describe_group, connection.delete_group):
            with pytest.raises(muster.SettingsError, match="no text that UTF-8 can hold"):
                await question("a\udcff")


async def test_a_missing_group_is_said_to_be_missing_once(cluster: ScriptedCluster) -> None:
    _, _, err = await cli(cluster, "groups", "history", "nobody")
    assert err.count("no such group") <= 1
    assert "`muster groups list` shows those that exist" in err


async def test_it_says_its_version() -> None:
    assert await cli(None, "--version") == (0, f"muster {version('muster-client')}\n", "")


async def test_nobody_there_is_one_line() -> None:
    code, _, err = await cli(None, "cluster")
    assert code == 1
    assert err.count("\n") == 1
    assert "no server of 127.0.0.1:1 answered" in err
    assert "Connection refused" in err


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
            await connected.convert_group("g", "other")  # type: ignore[arg-type]


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


async def test_offsets_and_history_and_cluster(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    entry = coordinator_pb2.OffsetFetchResponse.Partition(partition=2, offset=17, metadata="[bold]")
    topic = coordinator_pb2.OffsetFetchResponse.Topic(name="t", partitions=[entry])
    fetched = coordinator_pb2.OffsetFetchResponse(
        groups=[coordinator_pb2.OffsetFetchResponse.Group(group_id="g", topics=[topic])]
    )
    a.script["OffsetFetch"].append(fetched)
    code, out, _ = await cli(cluster, "offsets", "g")
    assert (code, out.splitlines()[1].split()) == (0, ["t", "2", "17", "[bold]"])

    generation = coordinator_pb2.GroupHistoryResponse.Generation(
        generation=3, started_at_ms=86_400_000, cause=common_pb2.RebalanceCause(sentence="It was new.")
    )
    a.script["GroupHistory"].append(
        coordinator_pb2.GroupHistoryResponse(error_code=NONE, generations=[generation])
    )
    code, out, _ = await cli(cluster, "groups", "history", "g")
    assert out.splitlines()[1].split() == ["3", "1970-01-02", "00:00:00", "0", "0", "It", "was", "new."]

    code, out, _ = await cli(cluster, "cluster", "--servers", cluster.address)
    assert out.splitlines()[3].split()[0::2] == ["a", "live"]


@pytest.mark.parametrize("asked", [(), ("--help",), ("redis://a", "--deep")])
def test_a_command_that_cannot_be_loaded_says_why(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "muster_of_nobody.command:run", _app.PLUGINS)
    monkeypatch.setattr(_app, "entry_points", lambda group: [broken])
    with pytest.raises(SystemExit) as end:
        _app.build(["broken", *asked])(["broken", *asked])
    assert end.value.code == (
        "muster: the command 'broken' cannot be loaded: "
        "ModuleNotFoundError: No module named 'muster_of_nobody'"
    )


def test_without_its_packages_it_says_how_to_get_them() -> None:
    script = "import sys; sys.modules['typer'] = None\nfrom muster.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "muster: the command line needs two more packages: pip install 'muster-client[cli]'\n"
    )


def test_importing_the_client_imports_no_command_line_and_no_server() -> None:
    script = (
        "import sys, logging, signal; before = signal.getsignal(signal.SIGINT); from muster import *\n"
        "assert signal.getsignal(signal.SIGINT) is before and not logging.getLogger().handlers\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('typer', 'rich', 'click', 'structlog')"
        " or m.startswith('muster_') and not m.startswith(('muster_protos', 'muster_assignors'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "module",
    ["muster.cli._app", "typer", "grpc", "google.protobuf", "muster._cluster.cluster", "muster.cli._topics"],
)
def test_an_interrupt_while_it_starts_ends_it_without_a_word(module: str) -> None:
    done = interrupted("muster", module, "groups", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


async def test_what_others_wrote_does_nothing_to_the_terminal(cluster: ScriptedCluster) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\nforged \x9b31m\u202e\u200b"
    shown = "\\x1b]0;title\\x07\\x1b[2J\\nforged \\x9b31m\\u202e\\u200b"
    member = coordinator_pb2.DescribeGroupsResponse.Member(member_id=evil, host=evil)
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, leader=evil, members=[member]
    )
    group.cause.sentence = evil
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert (code, out.count(shown)) == (0, 4)
    assert all(line.isprintable() for line in out.splitlines())
    partition = coordinator_pb2.OffsetFetchResponse.Partition(offset=1, metadata=evil)
    topic = coordinator_pb2.OffsetFetchResponse.Topic(name=evil, partitions=[partition])
    fetched = coordinator_pb2.OffsetFetchResponse(
        groups=[coordinator_pb2.OffsetFetchResponse.Group(group_id="g", topics=[topic])]
    )
    a.script["OffsetFetch"].append(fetched)
    code, out, _ = await cli(cluster, "offsets", "g")
    assert (code, out.count(shown)) == (0, 2)
    a.script["GroupHistory"].append(
        coordinator_pb2.GroupHistoryResponse(
            error_code=common_pb2.ERROR_CODE_INVALID_REQUEST, error_message=evil
        )
    )
    code, _, err = await cli(cluster, "groups", "history", "g")
    assert (code, err.count("\n")) == (1, 1)
    assert "\x1b" not in err


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
