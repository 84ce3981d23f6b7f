"""Small requests that name one large group a thousand times, and many large groups at once.

Must hold: what is named twice is refused, what would be too large is refused with field and limit, and
neither costs the coordinator its memory or W its turn.
"""

import asyncio
from typing import Any

import grpc
from abuse.caller import GROUPS, commit, connection, groups_stub, join, raw_when_admitted
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

PARTITIONS = 9_000
AT_ONCE = 3_000
REPEATED = 1_000
LARGE_GROUPS = 12
MEMBERS = 4
ASSIGNMENT = bytes(900_000)


async def commit_much(stub: Any, group_id: str) -> None:
    """One group with offsets of some 4 MB."""
    for first in range(0, PARTITIONS, AT_ONCE):
        partitions = [
            coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=1, metadata="m" * 400)
            for number in range(first, first + AT_ONCE)
        ]
        await stub.OffsetCommit(commit(group_id, partitions), timeout=30)


async def assign_much(address: str, group_id: str) -> None:
    """One group with assignments of some 4 MB."""

    async def member(number: int) -> None:
        async with connection(address) as channel:
            stub = groups_stub(channel)
            request = join(group_id, request_id=f"r{number}", session_timeout_ms=1_800_000)
            request.member_id = (await stub.JoinGroup(request, timeout=30)).member_id
            joined = await stub.JoinGroup(request, timeout=60)
            synced = coordinator_pb2.SyncGroupRequest(
                group_id=group_id, generation=joined.generation, member_id=joined.member_id
            )
            if joined.leader == joined.member_id:
                for other in joined.members:
                    synced.assignments.add(member_id=other.member_id, assignment=ASSIGNMENT)
            await stub.SyncGroup(synced, timeout=60)

    await asyncio.gather(*(member(number) for number in range(MEMBERS)))


async def attack(target: Target) -> str:
    groups = await target.groups(2 * LARGE_GROUPS, "large")
    offsets, assigned = groups[:LARGE_GROUPS], groups[LARGE_GROUPS:]
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        for group_id in offsets:
            await commit_much(stub, group_id)
        await asyncio.gather(*(assign_much(target.owner, group_id) for group_id in assigned[:3]))
        for group_id in assigned[3:]:
            await assign_much(target.owner, group_id)
        fetch, group = coordinator_pb2.OffsetFetchRequest, coordinator_pb2.OffsetFetchRequest.Group
        requests: dict[str, tuple[str, Any]] = {
            "OffsetFetch, one group 1,000 times": (
                "OffsetFetch",
                fetch(groups=[group(group_id=offsets[0])] * REPEATED),
            ),
            "DescribeGroups, one group 1,000 times": (
                "DescribeGroups",
                coordinator_pb2.DescribeGroupsRequest(group_ids=[assigned[0]] * REPEATED),
            ),
            "OffsetFetch, many large groups": (
                "OffsetFetch",
                fetch(groups=[group(group_id=group_id) for group_id in offsets]),
            ),
            "DescribeGroups, many large groups": (
                "DescribeGroups",
                coordinator_pb2.DescribeGroupsRequest(group_ids=assigned),
            ),
        }
        begins()
        said = []
        for what, (method, request) in requests.items():
            answers = await asyncio.gather(
                *(
                    raw_when_admitted(channel, GROUPS + method, request.SerializeToString(), timeout_s=60)
                    for _ in range(10)
                )
            )
            for status, body, text in answers:
                if status is not grpc.StatusCode.INVALID_ARGUMENT or "group" not in text:
                    raise Broken(f"{what}: answered {status.name} {text!r}, {len(body):,} bytes")
            said.append(f"{what}: {request.ByteSize():,} bytes, {answers[0][2]!r}")
    return "\n  ".join(said)


if __name__ == "__main__":
    stage(attack, coordinator_mb=600)
