"""46,000 groups of commits from outside, and twenty clients that list them without a pause.

Must hold: whoever lists waits for others who do; W does not.
"""

import asyncio
import time

from abuse.caller import GROUPS, commit, connection, raw
from abuse.lab import Target, begins, stage
from abuse.session import Session
from muster_protos.muster.v1 import coordinator_pb2

NUMBER = 46_000
AT_ONCE = 100
CLIENTS = 20
LISTING_S = 12.0


async def flood(target: Target) -> str:
    """Makes the groups."""
    one = [coordinator_pb2.OffsetCommitRequest.Partition(offset=1)]
    async with connection(target.owner) as channel, Session(channel) as session:
        for begin in range(0, NUMBER, AT_ONCE):
            session.call("offset_commit", (commit(f"flood-{n}", one) for n in range(begin, begin + AT_ONCE)))
            await session.until_answered(begin)
        await session.until_answered(NUMBER)
        return f"{session.asked:,} commits: {dict(session.replies)} {session.ended}"


async def attack(target: Target) -> str:
    made = await flood(target)
    await asyncio.sleep(5)
    begins()
    statuses: dict[str, int] = {}
    ends_s = time.monotonic() + LISTING_S

    async def client() -> None:
        async with connection(target.owner) as channel:
            while time.monotonic() < ends_s:
                status, _, _ = await raw(channel, GROUPS + "ListGroups", b"", timeout_s=60)
                statuses[status.name] = statuses.get(status.name, 0) + 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return f"{made}; lists: {statuses}"


if __name__ == "__main__":
    stage(attack, lifted={"MUSTER_QUOTA_NEW_GROUPS_PER_S": "0"})
