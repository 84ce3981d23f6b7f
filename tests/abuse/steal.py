"""A stranger attaches somebody's member to a stream of his own and breaks it: two owners must be impossible.

Two idle members share a topic of one partition. The owner's id is no secret (DescribeGroups says it).
Whatever the stranger does, at no time do both list the partition (SES-22).
"""

import asyncio

import muster
from abuse.caller import connection, groups_stub
from abuse.lab import Target, stage
from abuse.session import Session
from kit.programs import Broken
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

_TOPIC = "stolen"
_WATCHED_S = 8.0


async def attack(target: Target) -> str:
    """Takes the owner's member away and breaks the stream, then watches both members for two graces."""
    (group,) = await target.groups(1, "stolen-")
    clusters = [muster.Cluster(target.servers) for _ in range(2)]
    await clusters[0].ensure_topic(_TOPIC, 1)
    members = [
        muster.Member(cluster, group_id=group, topics=_TOPIC, protocol="classic", rebalance_timeout_ms=10_000)
        for cluster in clusters
    ]
    for member in members:
        await member.start()
    await until(lambda: all(m.state is muster.MemberState.STABLE for m in members), "two members")
    await until(lambda: sum(len(m.partitions) for m in members) == 1, "one owner")
    victim = next(member for member in members if member.partitions)
    attach = session_pb2.Attach(group_id=group, member_id=victim.member_id, generation=victim.generation)
    async with connection(target.owner) as channel:
        described = await groups_stub(channel).DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[group])
        )
        assert victim.member_id in {member.member_id for member in described.groups[0].members}
        async with Session(channel) as stranger:
            stranger.send(session_pb2.ClientFrame(attach=attach))
            await until(lambda: bool(stranger.pushes), "an answer to the stranger")
    both_s, step_s, owners = 0.0, 0.01, set()
    for _ in range(int(_WATCHED_S / step_s)):
        await asyncio.sleep(step_s)
        owning = [member.member_id for member in members if member.partitions]
        owners.update(owning)
        both_s += step_s * (len(owning) > 1)
    for member in members:
        await member.close()
    for cluster in clusters:
        await cluster.close()
    if both_s:
        raise Broken(f"both members listed the partition for {both_s:.1f} s")
    return f"never two owners; {len(owners)} ids owned the partition in turn"


if __name__ == "__main__":
    stage(attack)
