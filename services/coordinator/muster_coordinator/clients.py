"""Which client libraries the members of a process's groups use."""

import asyncio
from collections.abc import Sequence

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2

from muster_coordinator.shard.owned_shard import OwnedShard

CLIENTS_MAX = 100
"""So many versions are described; members can say anything."""

MEMBERS_AT_ONCE = 2_000
"""Members that are looked at before other work of the loop gets its turn."""


async def clients_of(shards: Sequence[OwnedShard]) -> list[peer_pb2.DescribeFaultsResponse.Client]:
    """The versions that members say they use, most members first, each with one that does."""
    found: dict[str, peer_pb2.DescribeFaultsResponse.Client] = {}
    seen = 0
    for shard in shards:
        for group in () if shard.core is None else tuple(shard.core.groups.values()):
            for member in group.members.values():
                version = member.terms.client_version
                if version not in found:
                    if len(found) >= 10 * CLIENTS_MAX:
                        continue
                    found[version] = peer_pb2.DescribeFaultsResponse.Client(
                        client_version=version, group_id=group.group_id, member_id=member.member_id
                    )
                found[version].members += 1
            seen += 1 + len(group.members)
            if seen >= MEMBERS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
    return sorted(found.values(), key=lambda one: (-one.members, one.client_version))[:CLIENTS_MAX]
