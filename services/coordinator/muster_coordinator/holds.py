"""Which incremental groups hold moves back, for who looks whether somebody forgot that."""

import asyncio
from collections.abc import Sequence

from muster_core.state.group import Group
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2

from muster_coordinator.shard.owned_shard import OwnedShard

HOLDS_MAX = 100

GROUPS_AT_ONCE = 2_000
"""Groups that are looked at before other work of the loop gets its turn."""

Hold = peer_pb2.DescribeFaultsResponse.Hold


async def holds_of(shards: Sequence[OwnedShard]) -> list[Hold]:
    """Groups whose moves are held back: by a setting first, then the oldest."""
    found: list[Hold] = []
    seen = 0
    for shard in shards:
        for group in () if shard.core is None else tuple(shard.core.groups.values()):
            if (hold := _hold_of(group)) is not None:
                found.append(hold)
            seen += 1
            if seen >= GROUPS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
    return sorted(found, key=lambda hold: (hold.began_ms, hold.group_id))[:HOLDS_MAX]


def _hold_of(group: Group) -> Hold | None:
    incremental = group.incremental
    if incremental is None or not incremental.members:
        return None
    hold = incremental.hold
    if not group.settings.hold and (hold is None or not hold.is_on):
        return None
    members = incremental.members.values()
    found = Hold(
        group_id=group.group_id,
        members=len(members),
        idle=sum(not member.held and not member.target for member in members),
    )
    if hold is not None and hold.is_on and not group.settings.hold:
        found.member_id = hold.member_id
        found.began_ms, found.until_ms = hold.began_ms, hold.until_ms
    return found
