"""Somebody who read a member's id commits, beats, attaches and leaves in its name, without its secret.

Must hold: nobody speaks for a member but the process that joined as it.
"""

import asyncio

from abuse.caller import commit, connection, groups_stub, join, name_of
from abuse.innocent import TOPIC
from abuse.lab import GROUP, Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

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
        who = {"group_id": GROUP, "member_id": victim, "generation": group.generation}
        beat = await stub.Heartbeat(coordinator_pb2.HeartbeatRequest(**who), timeout=10)
        synced = await stub.SyncGroup(coordinator_pb2.SyncGroupRequest(**who), timeout=10)
        joined = await stub.JoinGroup(join(GROUP, member_id=victim), timeout=10)
        async with Session(channel) as stranger:
            attach = session_pb2.Attach(**who, member_secret=bytes(16))
            stranger.send(session_pb2.ClientFrame(attach=attach))
            await until(lambda: bool(stranger.pushes), "an answer to the stranger")
            attached = stranger.pushes[0].attach_result
        for what, answer in (("beat", beat), ("sync", synced), ("join", joined), ("attach", attached)):
            if not answer.error_code:
                raise Broken(f"a stranger's {what} in the name of a member was answered as the member's own")
    await asyncio.sleep(3)
    return f"the commit was answered {name_of(code)}, the leave {name_of(left.members[0].error_code)}"


if __name__ == "__main__":
    stage(attack, protocol="classic")
