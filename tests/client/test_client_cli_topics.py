"""`muster topics`: topics, their zones and names, and who works on them."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from client.client_cli import cli
from client.client_scripted import ScriptedCluster
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

pytestmark = pytest.mark.cluster


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
