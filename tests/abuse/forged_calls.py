"""Somebody who read a member's id commits and leaves in its name.

Must hold: nobody speaks for a member but the process that joined as it.
"""

import asyncio

from abuse.caller import commit, connection, groups_stub, name_of
from abuse.innocent import TOPIC
from abuse.lab import GROUP, Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

STANDS_OPEN = "callers have no identity: who knows the id of a member may speak for it"

FORGED = 10**15


async def attack(target: Target) -> str:
    begins()
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        described = await stub.DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]), timeout=10
        )
        group = described.groups[0]
        if not group.members:
            return "nobody is there to be spoken for"
        victim = group.members[0].member_id
        partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=FORGED, metadata="forged")]
        request = commit(GROUP, partitions, TOPIC, generation=group.generation, member_id=victim)
        committed = await stub.OffsetCommit(request, timeout=10)
        code = committed.topics[0].partitions[0].error_code
        if not code:
            raise Broken("a stranger's commit in the name of a member was stored")
        leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=victim, reason="says a stranger")
        left = await stub.LeaveGroup(
            coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaving]), timeout=10
        )
        if not left.members[0].error_code:
            raise Broken("a stranger put a member out in its own name")
    await asyncio.sleep(3)
    return f"the commit was answered {name_of(code)}, the leave {name_of(left.members[0].error_code)}"


if __name__ == "__main__":
    stage(attack)
