"""A stranger asks each owner for every shard, again and again, in the other coordinator's name.

Internal calls are answered where clients connect, as they are for coordinators of the version before.

Must hold: in a steady cluster nobody gives a shard away, and W does not notice.
"""

import asyncio
from collections import Counter
from typing import Any

from abuse.caller import connection
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.v1 import common_pb2, discovery_pb2, discovery_pb2_grpc

OLD_PLACE = {"MUSTER_COORDINATOR_INTERNAL_ON_PUBLIC": "true"}
"""Coordinators answer internal calls where clients connect, too."""
ROUNDS = 8
PAUSE_S = 0.5


async def attack(target: Target) -> str:
    cluster = await described(target.servers)
    begins()
    outcomes: Counter[str] = Counter()
    for owner in cluster.coordinators:
        others = [one for one in cluster.coordinators if one.node_id != owner.node_id]
        async with connection(f"{owner.host}:{owner.port}") as channel:
            for _ in range(ROUNDS):
                outcomes += await ask_for_all(channel, others, "192.0.2.1", 9, cluster.shard_count)
                await asyncio.sleep(PAUSE_S)
    if given := outcomes[peer_pb2.HandoffOutcome.Name(peer_pb2.HANDOFF_OUTCOME_HANDED_OVER)]:
        raise Broken(f"{given} shards were handed over to a stranger")
    return f"asked {outcomes.total()} times: {dict(outcomes)}"


async def described(servers: str) -> discovery_pb2.Cluster:
    """What discovery tells everybody of the cluster."""
    async with connection(servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        answer = await stub.DescribeCluster(discovery_pb2.DescribeClusterRequest(), timeout=10)
    cluster: discovery_pb2.Cluster = answer.cluster
    return cluster


async def ask_for_all(channel: Any, names: Any, host: str, port: int, shard_count: int) -> Counter[str]:
    """Asks for every shard in the name of other coordinators, to be sent the callers at an address."""
    stub: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(channel)
    requests = [
        peer_pb2.RequestHandoffRequest(
            shard=shard, successor=common_pb2.Coordinator(node_id=other.node_id, host=host, port=port)
        )
        for shard in range(shard_count)
        for other in names
    ]
    answers = await asyncio.gather(
        *(stub.RequestHandoff(request, timeout=5) for request in requests), return_exceptions=True
    )
    return Counter(
        type(answer).__name__
        if isinstance(answer, BaseException)
        else peer_pb2.HandoffOutcome.Name(answer.outcome)
        for answer in answers
    )


if __name__ == "__main__":
    stage(attack, settings=OLD_PLACE)
