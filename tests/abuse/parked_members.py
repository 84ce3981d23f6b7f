"""Four groups of 2,500 members each, all parked in their first JoinGroup for as long as the server lets them.

Must hold: what parked calls cost is bounded, the groups can be described while they gather, and W goes on.
"""

import asyncio

import grpc
from abuse.caller import GROUPS, connection, join, raw
from abuse.lab import Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

NUMBER = 4
MEMBERS = 2_500
AT_A_TIME = 500
LONG_MS = 1_800_000


async def attack(target: Target) -> str:
    groups = await target.groups(NUMBER, "park")
    begins()
    async with connection(target.owner) as channel:
        sessions = [Session(channel, keep=True) for _ in groups]
        try:
            for session, group in zip(sessions, groups, strict=True):
                await session.__aenter__()
                await park(session, group)
            await asyncio.sleep(1)
            parked = sum(session.asked - session.answered for session in sessions)
            request = coordinator_pb2.DescribeGroupsRequest(group_ids=groups)
            status, body, text = await raw(
                channel, GROUPS + "DescribeGroups", request.SerializeToString(), timeout_s=60
            )
            if status is not grpc.StatusCode.OK:
                raise Broken(f"DescribeGroups of {NUMBER} groups: {status.name} {text!r}")
        finally:
            for session in sessions:
                await session.close()
    return f"{parked:,} members parked; they were described in {len(body):,} bytes"


async def park(session: Session, group: str) -> None:
    """Lets members of one group wait in their first JoinGroup."""
    times = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS}
    answered = 0
    for first in range(0, MEMBERS, AT_A_TIME):
        numbers = range(first, first + AT_A_TIME)
        session.call("join_group", [join(group, request_id=str(number), **times) for number in numbers])
        answered += AT_A_TIME
        await session.until_answered(answered)
        told = [reply.join_group for reply in session.answers.values()]
        wanted = common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED
        ids = [answer.member_id for answer in told if answer.error_code == wanted]
        session.answers.clear()
        session.call("join_group", [join(group, member_id=member_id, **times) for member_id in ids])


if __name__ == "__main__":
    stage(attack, coordinator_mb=250)
