"""A stranger joins W's group with the longest time-outs and never answers again.

Must hold: members work on with what they have, however long somebody holds up the rebalance.
"""

import asyncio

from abuse.caller import connection, groups_stub, join_among
from abuse.innocent import TOPIC
from abuse.lab import GROUP, Target, begins, stage
from muster_protos.muster.v1 import coordinator_pb2

LONGEST_MS = 1_800_000
HELD_S = 10.0


async def attack(target: Target) -> str:
    begins()
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        request = await join_among(
            stub, GROUP, TOPIC, session_timeout_ms=LONGEST_MS, rebalance_timeout_ms=LONGEST_MS
        )
        request.member_id = (await stub.JoinGroup(request, timeout=20)).member_id
        joined = await stub.JoinGroup(request, timeout=60)
        await asyncio.sleep(HELD_S)
        leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)
        await stub.LeaveGroup(
            coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaving]), timeout=10
        )
    return f"joined generation {joined.generation} and never synced"


if __name__ == "__main__":
    stage(attack, protocol="classic")
