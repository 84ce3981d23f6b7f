"""Which client libraries the members of a process's groups use."""

import asyncio
from collections.abc import Sequence

from muster_core.state.group import Group
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
            versions = _versions_in(group)
            for member_id, version in versions:
                if version not in found:
                    if len(found) >= 10 * CLIENTS_MAX:
                        continue
                    found[version] = peer_pb2.DescribeFaultsResponse.Client(
                        client_version=version, group_id=group.group_id, member_id=member_id
                    )
                found[version].members += 1
            seen += 1 + len(versions)
            if seen >= MEMBERS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
    return sorted(found.values(), key=lambda one: (-one.members, one.client_version))[:CLIENTS_MAX]


def _versions_in(group: Group) -> list[tuple[str, str]]:
    """The members of a group, whatever its kind, each with what it says it uses."""
    versions = [(who, member.terms.client_version) for who, member in group.members.items()]
    if group.incremental is not None:
        versions += [(who, member.told.client_version) for who, member in group.incremental.members.items()]
    return versions
