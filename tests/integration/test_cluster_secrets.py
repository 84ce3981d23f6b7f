"""Secrets of members on real processes: through a fail-over, and on streams that are opened again."""

from pathlib import Path

import muster
import pytest
from abuse.caller import commit, connection, groups_stub
from kit.clusters.server_cluster import all_served, find, running
from kit.waiting import until
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2

pytestmark = pytest.mark.cluster

GROUP, TOPIC = "g", "t"
FORGED = 10**15


async def forged(address: str) -> list[int]:
    """What a stranger is answered who says what DescribeGroups says: a heartbeat, a commit, a leave."""
    async with connection(address) as channel:
        stub = groups_stub(channel)
        described = await stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]))
        (group,) = described.groups
        victim, generation = group.members[0].member_id, group.generation
        beat = coordinator_pb2.HeartbeatRequest(group_id=GROUP, member_id=victim, generation=generation)
        partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=FORGED)]
        committed = await stub.OffsetCommit(
            commit(GROUP, partitions, TOPIC, generation=generation, member_id=victim)
        )
        leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=victim)
        left = await stub.LeaveGroup(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]))
        return [
            (await stub.Heartbeat(beat)).error_code,
            committed.topics[0].partitions[0].error_code,
            left.members[0].error_code,
        ]


async def test_a_member_is_known_by_its_secret_after_its_coordinator_was_killed(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1) as servers,
        muster.Cluster(servers.servers) as cluster,
    ):
        await all_served(servers.servers)
        await cluster.ensure_topic(TOPIC, 1)
        lost: list[object] = []
        async with muster.Member(
            cluster,
            group_id=GROUP,
            topics=TOPIC,
            on_partitions_lost=lost.append,
            disconnect_grace_ms=20_000,  # longer than a fail-over takes on a busy machine
        ) as member:
            await until(lambda: bool(member.partitions), "the member owns the partition")
            (partition,) = member.partitions
            identity = member.member_id, member.generation
            owner = await find(servers.servers, GROUP)
            assert await forged(owner) == [error_code.UNKNOWN_MEMBER_ID] * 3

            await next(one for one in servers.coordinators if one.address == owner).kill()

            async def moved() -> str:
                address = await find(servers.servers, GROUP)
                return address if address != owner else ""

            successor = await until(moved, "another coordinator has the group")
            await member.commit({partition: muster.Committed(7)})
            assert (member.member_id, member.generation) == identity, "it is attached again as who it was"
            assert await forged(successor) == [error_code.UNKNOWN_MEMBER_ID] * 3
            await member.commit({partition: muster.Committed(8)})
            assert (member.member_id, member.generation) == identity
            assert not lost
            found = await cluster.committed(GROUP, [partition])
            assert found[partition].offset == 8
