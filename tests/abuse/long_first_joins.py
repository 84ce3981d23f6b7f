"""20,000 first joins with the longest ids and sessions of half an hour, each of a group of its own.

Must hold: no session, however long, makes a coordinator keep more groups of a shard than may gather their
first members, and the next honest group finds its place.
"""

from functools import partial

from abuse.caller import admitted, connection, groups_stub, joined
from abuse.first_joins import MOST_PER_SHARD, SHARDS, flood, flooded
from abuse.lab import Lab, Target, stage
from kit.programs import Broken

LONGEST_MS = 1_800_000
ID_BYTES = 255


async def attack(target: Target) -> str:
    told = await flood(target, ending="g" * 240, client_id="c" * ID_BYTES, session_timeout_ms=LONGEST_MS)
    [honest] = await target.groups(1, "honest")
    async with connection(target.owner) as channel:
        await admitted(partial(joined, groups_stub(channel), honest))
    return told


async def few_are_kept(lab: Lab) -> None:
    for coordinator in lab.cluster.coordinators:
        async with connection(coordinator.address) as channel:
            kept = await flooded(channel)
            if kept > SHARDS * MOST_PER_SHARD:
                raise Broken(f"{kept} groups were kept for half an hour")


if __name__ == "__main__":
    stage(
        attack,
        settings={
            "MUSTER_GROUP_MAX_NEW_GROUPS_PER_SHARD": str(MOST_PER_SHARD),
        },
        lifted={"MUSTER_QUOTA_NEW_GROUPS_PER_S": "0"},
        coordinator_mb=400,
        check=few_are_kept,
    )
