"""Bad input over the wire: the error that the design names, a process that lives, and nothing written."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.clusters.server_cluster import find, running
from kit.waiting import until_equal
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc
from muster_server.dev.cluster import DevCluster
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

SECONDS = 10.0
GROUP = "g"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster:
        assert await find(cluster.servers, GROUP) == cluster.coordinators[0].address
        yield cluster


def join(**changes: Any) -> coordinator_pb2.JoinGroupRequest:
    fields: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
        **changes,
    }
    return coordinator_pb2.JoinGroupRequest(**fields)


def code_of(answer: Any) -> str:
    if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
        code = answer.topics[0].partitions[0].error_code
    elif isinstance(answer, coordinator_pb2.LeaveGroupResponse) and not answer.error_code:
        code = answer.members[0].error_code
    else:
        code = answer.error_code
    return common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


COMMIT = coordinator_pb2.OffsetCommitRequest.Topic(
    name="t", partitions=[coordinator_pb2.OffsetCommitRequest.Partition(partition=0, offset=1)]
)

OUTCOMES: list[tuple[str, str, Any]] = [
    ("INVALID_GROUP_ID", "JoinGroup", join(group_id="")),
    ("INVALID_SESSION_TIMEOUT", "JoinGroup", join(session_timeout_ms=1)),
    ("INVALID_SESSION_TIMEOUT", "JoinGroup", join(session_timeout_ms=2_000_000_000)),
    ("UNKNOWN_MEMBER_ID", "JoinGroup", join(member_id="stranger")),
    ("INCONSISTENT_GROUP_PROTOCOL", "JoinGroup", join(protocols=[])),
    (
        "UNKNOWN_MEMBER_ID",
        "SyncGroup",
        coordinator_pb2.SyncGroupRequest(group_id=GROUP, generation=1, member_id="x"),
    ),
    (
        "UNKNOWN_MEMBER_ID",
        "Heartbeat",
        coordinator_pb2.HeartbeatRequest(group_id=GROUP, generation=1, member_id="x"),
    ),
    (
        "UNKNOWN_MEMBER_ID",
        "LeaveGroup",
        coordinator_pb2.LeaveGroupRequest(
            group_id=GROUP, members=[coordinator_pb2.LeaveGroupRequest.Member(member_id="x")]
        ),
    ),
    (
        "ILLEGAL_GENERATION",
        "OffsetCommit",
        coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=9, member_id="x", topics=[COMMIT]),
    ),
]

REFUSED: list[tuple[str, Any]] = [
    ("JoinGroup", join(group_id="g" * 256)),
    ("JoinGroup", join(group_id="a\x00b")),
    ("JoinGroup", join(rebalance_timeout_ms=-5)),
    (
        "JoinGroup",
        join(protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=bytes((512 << 10) + 1))]),
    ),
    ("JoinGroup", join(request_id="r" * 65)),
    ("LeaveGroup", coordinator_pb2.LeaveGroupRequest(group_id=GROUP)),
]


async def test_bad_input(cluster: DevCluster) -> None:
    async with grpc.aio.insecure_channel(cluster.coordinators[0].address) as channel:
        stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
        for expected, method, request in OUTCOMES:
            answer = await getattr(stub, method)(request, timeout=SECONDS)
            assert code_of(answer) == expected, (method, request)
        for method, request in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT") as refusal:
                await getattr(stub, method)(request, timeout=SECONDS)
            assert "Traceback" not in (refusal.value.details() or "")
        garbage: Any = channel.unary_unary("/muster.v1.GroupCoordinatorService/JoinGroup")
        for body in (b"\xff\xff\xff\xff", b"\x0a\xff", b"\x00" * 100):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await garbage(body, timeout=SECONDS)
            assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await garbage(bytes(8 << 20), timeout=SECONDS)
        assert refusal.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        described = await stub.DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]), timeout=SECONDS
        )
        assert described.groups[0].state == coordinator_pb2.GROUP_STATE_DEAD
    assert all(process.process.running for process in cluster.roles)
    report = verify(cluster.redis_url)
    assert report.clean
    assert report.kinds.keys() <= {"genesis", "claim", "feature_enabled"}


async def test_a_member_with_a_wrong_generation_or_a_foreign_leader(cluster: DevCluster) -> None:
    async with grpc.aio.insecure_channel(cluster.coordinators[0].address) as channel:
        stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
        first = await stub.JoinGroup(join(), timeout=SECONDS)
        assert code_of(first) == "MEMBER_ID_REQUIRED"
        member_id = first.member_id
        joined = await stub.JoinGroup(join(member_id=member_id), timeout=SECONDS)
        assert (joined.generation, joined.leader) == (1, member_id)
        for generation in (0, 2, -1):
            sync = coordinator_pb2.SyncGroupRequest(
                group_id=GROUP, generation=generation, member_id=member_id
            )
            assert code_of(await stub.SyncGroup(sync, timeout=SECONDS)) == "ILLEGAL_GENERATION"
        mixed = coordinator_pb2.SyncGroupRequest(
            group_id=GROUP, generation=1, member_id=member_id, protocol_type="connect", protocol_name="range"
        )
        assert code_of(await stub.SyncGroup(mixed, timeout=SECONDS)) == "INCONSISTENT_GROUP_PROTOCOL"
        other = join(protocol_type="connect")
        assert code_of(await stub.JoinGroup(other, timeout=SECONDS)) == "INCONSISTENT_GROUP_PROTOCOL"
        # Assignments for strangers are ignored, those for members count.
        sync = coordinator_pb2.SyncGroupRequest(group_id=GROUP, generation=1, member_id=member_id)
        sync.assignments.add(member_id="stranger", assignment=b"x")
        sync.assignments.add(member_id=member_id, assignment=b"mine")
        assert (await stub.SyncGroup(sync, timeout=SECONDS)).assignment == b"mine"

    def assignments() -> int:
        report = verify(cluster.redis_url)
        assert report.clean
        return report.kinds["assignment_committed"]

    # The acknowledged position, up to which the verifier reads, follows the last append within a second.
    await until_equal(assignments, 1, "assignments in the log")
