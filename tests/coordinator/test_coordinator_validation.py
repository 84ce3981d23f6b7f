from typing import Any

import pytest
from muster_coordinator.validation import violations
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)
from muster_runtime.addresses import host_in_peer

LONG = "x" * 256
TOPIC = coordinator_pb2.OffsetCommitRequest.Topic
ALTER = group_settings_pb2.AlterGroupSettingsRequest
CONVERT = group_conversion_pb2.ConvertGroupRequest
KIND = group_conversion_pb2.GroupKind
SETTINGS = group_settings_pb2.GroupSettings
PARTITION = coordinator_pb2.OffsetCommitRequest.Partition


def join(**fields: Any) -> coordinator_pb2.JoinGroupRequest:
    fields.setdefault("protocols", [coordinator_pb2.GroupProtocol(name="range")])
    return coordinator_pb2.JoinGroupRequest(**{"group_id": "g", "protocol_type": "consumer", **fields})


def commit(**partition: Any) -> coordinator_pb2.OffsetCommitRequest:
    topic = TOPIC(name="t", partitions=[PARTITION(**partition)])
    return coordinator_pb2.OffsetCommitRequest(group_id="g", topics=[topic])


@pytest.mark.parametrize(
    "request_",
    [
        join(),
        join(group_id="é" * 127, member_id="m", group_instance_id="a.b_c-D9", session_timeout_ms=-1),
        join(protocols=[], protocol_type=""),
        join(group_id=""),
        join(rebalance_timeout_ms=2**31 - 1),
        coordinator_pb2.SyncGroupRequest(group_id="g"),
        coordinator_pb2.HeartbeatRequest(group_id="g", generation=-5),
        coordinator_pb2.LeaveGroupRequest(
            group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="m")]
        ),
        commit(offset=0, leader_epoch=-1, metadata="m" * 5_000),
        coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-5, member_seq=2**63 - 1),
        coordinator_pb2.OffsetFetchRequest(groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id="")]),
        coordinator_pb2.OffsetDeleteRequest(group_id="g"),
        coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]),
        coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]),
        coordinator_pb2.ListGroupsRequest(states=["Stable"]),
        coordinator_pb2.GroupHistoryRequest(group_id="g", limit=100),
    ],
)
def test_what_keeps_the_limits_passes(request_: Any) -> None:
    assert violations(request_) == []


def heartbeat_of(topics: int) -> incremental_pb2.ConsumerGroupHeartbeatRequest:
    """From a member that works on one partition of so many topics."""
    request = incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    for number in range(topics):
        request.owned.topics.add(topic=f"t{number}", partitions=[0])
    return request


@pytest.mark.parametrize(
    ("request_", "field", "limit"),
    [
        (
            coordinator_pb2.OffsetFetchRequest(
                groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id="g")] * 2
            ),
            "groups[1].group_id",
            "twice",
        ),
        (
            coordinator_pb2.OffsetFetchRequest(
                groups=[
                    coordinator_pb2.OffsetFetchRequest.Group(
                        group_id="g",
                        topics=[common_pb2.TopicPartitions(topic="t", partitions=[0])] * 2,
                    )
                ]
            ),
            "groups[0].topics[1].topic",
            "twice",
        ),
        (
            coordinator_pb2.OffsetFetchRequest(
                groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id="g", limit=10_001)]
            ),
            "groups[0].limit",
            "10,000",
        ),
        (coordinator_pb2.DescribeGroupsRequest(group_ids=["g", "h", "g"]), "group_ids[2]", "twice"),
        (coordinator_pb2.ListGroupsRequest(limit=10_001), "limit", "10,000"),
        (coordinator_pb2.ListGroupsRequest(limit=1, page_token="x"), "page_token", "next_page_token"),
        (coordinator_pb2.ListGroupsRequest(page_token="1/g"), "page_token", "limit"),
        (join(group_id=LONG), "group_id", "255"),
        (join(group_id="é" * 128), "group_id", "255"),
        (join(group_id="a\nb"), "group_id", "control"),
        (join(member_id="a\x00"), "member_id", "control"),
        (join(group_id="a\u202eb"), "group_id", "control"),
        (join(client_id="a\u2066b"), "client_id", "control"),
        (join(member_id="a\u200fb"), "member_id", "control"),
        (join(group_instance_id=".."), "group_instance_id", "249"),
        (join(group_instance_id="a b"), "group_instance_id", "249"),
        (join(group_instance_id="x" * 250), "group_instance_id", "249"),
        (join(rebalance_timeout_ms=-1), "rebalance_timeout_ms", "2,147,483,647"),
        (join(disconnect_grace_ms=-1), "disconnect_grace_ms", "0"),
        (join(weight=101), "weight", "100"),
        (
            incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", weight=101),
            "weight",
            "100",
        ),
        (
            incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", rollout_hold_ms=3_600_001),
            "rollout_hold_ms",
            "3,600,000",
        ),
        (join(reason="x" * 256), "reason", "255"),
        (join(reason="\x1b[2Jgone"), "reason", "control"),
        (join(reason="a\nb"), "reason", "control"),
        (
            coordinator_pb2.LeaveGroupRequest(
                group_id="g",
                members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="m", reason="a\x9b31m")],
            ),
            "members[0].reason",
            "control",
        ),
        (
            incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", leave_reason="x" * 256),
            "leave_reason",
            "255",
        ),
        (
            incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", disconnect_grace_ms=1_800_001),
            "disconnect_grace_ms",
            "1,800,000",
        ),
        (
            incremental_pb2.ConsumerGroupHeartbeatRequest(group_id="g", leave_reason="a\nb"),
            "leave_reason",
            "control",
        ),
        *(
            (join(group_id=f"a{character}b"), "group_id", "without width")
            for character in "\u200b\u2060\ufeff\xad\u3164\u180e\U000e0041"
        ),
        (join(client_id=LONG), "client_id", "255"),
        (join(request_id="x" * 65), "request_id", "64"),
        (join(protocols=[coordinator_pb2.GroupProtocol(name=f"p{n}") for n in range(17)]), "protocols", "16"),
        (join(protocols=[coordinator_pb2.GroupProtocol(name="")]), "protocols[0].name", "1"),
        (join(protocols=[coordinator_pb2.GroupProtocol(name="p")] * 2), "protocols[1].name", "twice"),
        (
            join(protocols=[coordinator_pb2.GroupProtocol(name="p", metadata=bytes((1 << 19) + 1))]),
            "protocols[0].metadata",
            "524,288",
        ),
        (
            coordinator_pb2.SyncGroupRequest(
                group_id="g",
                assignments=[
                    coordinator_pb2.SyncGroupRequest.Assignment(
                        member_id="m", assignment=bytes((1 << 20) + 1)
                    )
                ],
            ),
            "assignments[0].assignment",
            "1,048,576",
        ),
        (coordinator_pb2.HeartbeatRequest(group_id=LONG), "group_id", "255"),
        (coordinator_pb2.LeaveGroupRequest(group_id="g"), "members", "1,000"),
        (
            coordinator_pb2.LeaveGroupRequest(
                group_id="g",
                members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="m", reason="x" * 256)],
            ),
            "members[0].reason",
            "255",
        ),
        (commit(offset=-1), "topics[0].partitions[0].offset", "negative"),
        (commit(leader_epoch=-2), "topics[0].partitions[0].leader_epoch", "-1"),
        (join(member_seq=2**63), "member_seq", "9,223,372,036,854,775,807"),
        (coordinator_pb2.OffsetCommitRequest(group_id="g", member_seq=2**64 - 1), "member_seq", "0 to"),
        (
            coordinator_pb2.OffsetCommitRequest(group_id="g", topics=[TOPIC(name="t"), TOPIC(name="t")]),
            "topics[1].name",
            "twice",
        ),
        (
            coordinator_pb2.OffsetCommitRequest(
                topics=[TOPIC(name="t", partitions=[PARTITION(partition=n) for n in range(10_001)])]
            ),
            "topics",
            "10,000",
        ),
        (coordinator_pb2.OffsetCommitRequest(group_id="g", retention_ms=-1), "retention_ms", "0"),
        (coordinator_pb2.OffsetFetchRequest(), "groups", "1,000"),
        (
            coordinator_pb2.OffsetFetchRequest(
                groups=[
                    coordinator_pb2.OffsetFetchRequest.Group(
                        group_id="g", topics=[common_pb2.TopicPartitions(topic="", partitions=[1])]
                    )
                ]
            ),
            "groups[0].topics[0].topic",
            "249",
        ),
        (coordinator_pb2.DescribeGroupsRequest(), "group_ids", "1,000"),
        (coordinator_pb2.DeleteGroupsRequest(group_ids=["g"] * 1_001), "group_ids", "1,000"),
        (coordinator_pb2.GroupHistoryRequest(group_id="g", limit=101), "limit", "100"),
        (ALTER(group_id="g"), "set", "must set something"),
        (ALTER(group_id="g", set=SETTINGS(assignor="x" * 256)), "set.assignor", "255"),
        (ALTER(group_id="g", unset=["assignor", "nothing"]), "unset[1]", "convert or hold"),
        (ALTER(group_id="g", unset=["hold", "hold"]), "unset[1]", "twice"),
        (ALTER(group_id="g", set=SETTINGS(hold=True), unset=["hold"]), "unset[0]", "same call"),
        (ALTER(group_id="g", unset=["hold"] * 8), "unset", "0 to 7"),
        (heartbeat_of(10_001), "owned.topics", "10,000"),
        (CONVERT(group_id="g"), "kind", "GROUP_KIND_CLASSIC"),
        (CONVERT(group_id="g", kind=KIND.ValueType(9)), "kind", "GROUP_KIND_INCREMENTAL"),
        (CONVERT(group_id="g", kind=KIND.ValueType(1), reason="x" * 256), "reason", "255"),
    ],
)
def test_each_broken_limit_names_its_field_and_the_limit(request_: Any, field: str, limit: str) -> None:
    found = violations(request_)
    assert [violation.field for violation in found] == [field]
    assert limit in found[0].description


def test_no_more_is_looked_for_than_the_first_hundred_of_many_broken_limits() -> None:
    """LIM-19: to tell of a hundred thousand takes a quarter of a second."""
    topics = [coordinator_pb2.OffsetCommitRequest.Topic(name="\0") for _ in range(1_000)]
    found = violations(coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1, topics=topics))
    assert [one.field for one in found] == [f"topics[{number}].name" for number in range(100)]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:5123", "10.0.0.7"),
        ("ipv6:%5B::1%5D:5123", "::1"),
        ("ipv6:[fe80::1]:80", "fe80::1"),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_member_is_read_from_its_peer(peer: str, host: str) -> None:
    assert host_in_peer(peer) == host
