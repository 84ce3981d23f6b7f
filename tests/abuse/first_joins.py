"""20,000 first joins, each of a group of its own, and nobody ever comes.

Must hold: what never reached the log leaves nothing there, and in the memory of a coordinator no more groups
of a shard than may gather their first members.
"""

from functools import partial
from typing import Any

import grpc
from abuse.caller import admitted, connection, groups_stub, join
from abuse.lab import Lab, Target, stage
from abuse.session import Session
from kit.programs import Broken
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2
from redis.asyncio import Redis

NUMBER = 20_000
SHARDS = 50
AT_ONCE = 500
MOST_PER_SHARD = 100
PREFIX = "flood-"


async def attack(target: Target) -> str:
    return await flood(target, session_timeout_ms=6_000)


async def flood(target: Target, *, ending: str = "", **fields: object) -> str:
    """Makes the joins.

    Args:
        target: whom to ask.
        ending: of each group's id.
        fields: of each join.
    """
    async with connection(target.owner) as channel, Session(channel) as session:
        for begin in range(0, NUMBER, AT_ONCE):
            joins = (join(f"{PREFIX}{n}{ending}", **fields) for n in range(begin, begin + AT_ONCE))
            session.call("join_group", joins)
            await session.until_answered(begin)
        await session.until_answered(NUMBER)
        return f"{session.asked:,} joins: {dict(session.replies)} {session.ended}"


async def flooded(channel: grpc.aio.Channel) -> int:
    """How many groups of the flood a coordinator has."""
    whole = coordinator_pb2.ListGroupsRequest()
    answer = await admitted(partial(groups_stub(channel).ListGroups, whole, timeout=10))
    return sum(group.group_id.startswith(PREFIX) for group in answer.groups)


async def _gone(channel: grpc.aio.Channel) -> bool:
    return not await flooded(channel)


async def nothing_is_left(lab: Lab) -> None:
    for coordinator in lab.cluster.coordinators:
        async with connection(coordinator.address) as channel:
            at_first = await flooded(channel)
            if at_first > SHARDS * MOST_PER_SHARD:
                raise Broken(f"{at_first} groups were left behind at once")
            await until(partial(_gone, channel), "the groups are gone")
    assert lab.cluster.nodes is not None
    client = Redis.from_url(lab.cluster.nodes[0].url)
    found = 0
    for shard in range(SHARDS):
        entries: Any = await client.xrange(f"muster:{{{shard}}}:log")
        found += sum(PREFIX.encode() in b"".join(fields.values()) for _, fields in entries)
    await client.aclose()
    if found:
        raise Broken(f"{found} records tell of groups that never were")


if __name__ == "__main__":
    stage(
        attack,
        settings={
            "MUSTER_GROUP_RETENTION_CHECK_INTERVAL_MS": "2000",
            "MUSTER_GROUP_MAX_NEW_GROUPS_PER_SHARD": str(MOST_PER_SHARD),
        },
        lifted={"MUSTER_QUOTA_NEW_GROUPS_PER_S": "0"},
        check=nothing_is_left,
    )
