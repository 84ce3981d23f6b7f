"""One machine loses its power and its node a promise: nothing acknowledged may be lost (LOG-51).

`appendfsync everysec`. Node 3 promised a claim in its last second; the claimant cannot reach node 2, writes
its Claim to node 1 and dies. Node 3 comes back without the promise. The owner goes on, twenty commits are
acknowledged, and somebody else claims the log.
"""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any

from kit.metadata.metadata_instances import Instance, MetadataCluster, Writer, metadata_cluster, records
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2

COMMITS = 20


def unreachable(instance: Instance, index: int) -> None:
    """Nothing that the instance sends to a node comes there any more."""

    def never(*_: Any) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().create_future()

    node = instance.server.metadata.quorum.nodes[index]
    connections: tuple[Any, ...] = (node.steps, node.bulk)
    for connection in connections:
        connection.send = never


async def go_on(cluster: MetadataCluster, writer: Writer) -> None:
    """The owner writes; told that it was fenced, it claims again, as a coordinator does."""
    for number in range(COMMITS):
        record = b"w:%d" % number
        while (result := await writer.append(cluster[0], record)).outcome == metadata_pb2.LOG_OUTCOME_FENCED:
            report(f"the owner is fenced by epoch {result.epoch} and claims again")
            await take(cluster[0], writer)
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            raise Broken(f"the owner was answered {metadata_pb2.LogOutcome.Name(result.outcome)}")


async def take(instance: Instance, writer: Writer) -> None:
    """Claims until it has the log."""

    async def claimed() -> bool:
        writer.nonce = secrets.token_bytes(16)
        result = await writer.claim(instance)
        if result.outcome == metadata_pb2.LOG_OUTCOME_TRUNCATED:
            raise Broken(f"the log was cut: {result.message}")
        return result.outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(claimed, "the log is claimed")


async def main() -> None:
    """The story, and what is left of the acknowledged commits."""
    folder = Path(tempfile.mkdtemp(prefix="muster-power-"))
    async with metadata_cluster(folder, 3, instances=2, shards=1, fsync="everysec") as cluster:
        owner, claimant = Writer(0, "c-1"), Writer(0, "c-2")
        await owner.own(cluster[0])
        await until(lambda: cluster.level(0), "level")
        node = cluster.nodes[2]
        (aof,) = (node.folder / "appendonlydir").glob("*.incr.aof")
        synced = aof.stat().st_size
        unreachable(cluster[1], 1)
        claiming = asyncio.create_task(claimant.claim(cluster[1]))

        async def landed() -> bool:
            async with cluster.client(0) as client:
                return bool(await client.xrange("muster:{0}:log", "2-0", "+"))

        await until(landed, "the Claim is on node 1")
        await node.kill()
        claiming.cancel()
        await cluster[1].stop()
        with aof.open("r+b") as file:
            file.truncate(synced)
        await node.start()
        await go_on(cluster, owner)
        successor = Writer(0, "c-3")
        await take(cluster[0], successor)
        left = records(await cluster[0].read(0, successor))
        lost = [record for record in owner.acknowledged if record not in left]
        report(f"{len(owner.acknowledged)} commits were acknowledged, {len(lost)} of them are lost")
        if lost or len(owner.acknowledged) != COMMITS:
            raise Broken(f"{len(lost)} acknowledged commits are gone")
        await until(lambda: cluster.level(0), "all nodes are level and vote")


if __name__ == "__main__":
    run(main)
