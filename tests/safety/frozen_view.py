"""One metadata instance is cut off from the log and a coordinator is killed: nobody stays with its last view.

`OWN-25`, `OWN-27`. Everybody watches metadata-1 when it is cut off from the nodes of the log; metadata-2 is
well. Argument `discovery`: only discovery-1 watches it, the others know better all the time.

What must hold: another coordinator takes the shards over, both discovery instances name it, and a client with
both addresses gets its answer. A view that stays as it was never names it.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc.aio
import muster
from kit.clusters.linked_cluster import LinkedCluster, link_name
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_core.sharding import shard_of
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

SHARDS = 8
WITHIN_S = 20.0
ONLY_DISCOVERY = "discovery" in sys.argv[1:]


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-frozen-view-"))
    async with LinkedCluster(folder, coordinators=2, shard_count=SHARDS) as cluster:
        await attack(cluster)


async def attack(cluster: LinkedCluster) -> None:
    watchers = ["discovery-1"] if ONLY_DISCOVERY else [p.name for p in cluster.roles[2:]]
    others = [p.name for p in cluster.roles[2:] if p.name not in watchers]
    await cluster.watch("metadata-1", watchers)
    await cluster.watch("metadata-2", others)
    stubs = [
        discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(grpc.aio.insecure_channel(process.address))
        for process in cluster.discovery
    ]

    async def shards_of_the_first() -> list[int]:
        view = (await stubs[1].DescribeCluster(discovery_pb2.DescribeClusterRequest())).cluster
        return [row.shard for row in view.shards if row.node_id == "coordinator-1" and row.serving]

    dead = await until(shards_of_the_first, "coordinator-1 serves shards")
    group = next(f"g{i}" for i in range(1_000) if shard_of(f"g{i}", SHARDS) == dead[0])
    for node in (1, 2, 3):
        await cluster.links.hold(link_name("metadata-1", f"redis-{node}"))
    await cluster.coordinators[0].kill()
    began = time.monotonic()
    print(f"metadata-1 is cut off from the log, coordinator-1 with the shards {dead} is killed", flush=True)
    for number, stub in enumerate(stubs, 1):
        named = await until_named(stub, group, began)
        print(f"discovery-{number} names {named} after {time.monotonic() - began:.1f} s", flush=True)
    async with muster.Cluster([process.address for process in cluster.discovery]) as client:
        try:
            async with asyncio.timeout(WITHIN_S):
                await client.committed(group)
        except TimeoutError as error:
            raise Broken("a client with both discovery addresses finds no coordinator") from error
    report(f"the group was found again {time.monotonic() - began:.1f} s after the kill")


async def until_named(stub: Any, group: str, began: float) -> str:
    """The living coordinator that a discovery instance names for a group.

    Raises:
        Broken: it names none in time.
    """
    request = discovery_pb2.FindCoordinatorRequest(group_ids=[group])
    while True:
        answer = await stub.FindCoordinator(request)
        result = answer.results[0]
        if not result.error_code and result.coordinator.node_id != "coordinator-1":
            return str(result.coordinator.node_id)
        if time.monotonic() - began > WITHIN_S:
            told = result.error_message or f"it names {result.coordinator.node_id}"
            raise Broken(f"{WITHIN_S:g} s after the kill a discovery instance still has an old view: {told}")
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    run(main)
