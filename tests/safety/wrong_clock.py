"""A coordinator with a wall clock that is a week off takes a shard over: no offset is deleted.

`TIM-03` to `TIM-05`. A group without members commits an offset; offsets live for a week. Then, with a clock
that is more than a week *ahead*, a coordinator takes the shard over and looks for expired offsets; with one
that is as much *behind* it stamps a commit, which a coordinator with a right clock then finds.

What must hold: both offsets are still there after several looks.
"""

import asyncio
import tempfile
from pathlib import Path

import muster
from kit.clusters.linked_cluster import LinkedCluster, inside
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.role_process import RoleProcess
from muster_server.roles import COORDINATOR

WEEK_MS = 7 * 86_400_000 + 3_600_000
LOOK_MS = 200
LOOKS_S = 3.0
FAST = {"MUSTER_GROUP_RETENTION_CHECK_INTERVAL_MS": str(LOOK_MS)}
GROUP, PLACE = "g", muster.TopicPartition("t", 0)


async def main() -> None:
    for text, ahead_ms in (("ahead", WEEK_MS), ("behind", -WEEK_MS)):
        folder = Path(tempfile.mkdtemp(prefix="muster-wrong-clock-"))
        async with LinkedCluster(folder, coordinators=1, shard_count=1, settings=FAST) as cluster:
            await attack(cluster, text, ahead_ms)


async def attack(cluster: LinkedCluster, text: str, ahead_ms: int) -> None:
    right, wrong = cluster.coordinators[0], skewed(cluster, ahead_ms)
    first, second = (right, wrong) if ahead_ms > 0 else (wrong, right)
    try:
        if first is wrong:
            await wrong.start()
            await right.kill()
        async with muster.Cluster(cluster.servers) as client:
            await client.ensure_topic("t", 1)
            await commit(client, 42)
            print(f"{first.name} stored the commit; {second.name} takes over", flush=True)
            await second.start()
            await first.kill()
            before = await client.committed(GROUP)
            await asyncio.sleep(LOOKS_S)
            after = await client.committed(GROUP)
        if PLACE not in after:
            raise Broken(f"the clock is {text}: the offset is gone ({before} before, {after} after)")
        report(f"{text}: the offset is there after {LOOKS_S * 1000 / LOOK_MS:.0f} looks")
    finally:
        await wrong.kill()


def skewed(cluster: LinkedCluster, ahead_ms: int) -> RoleProcess:
    """A further coordinator, on a machine whose clock is wrong."""
    port = free_ports(1)[0]
    settings = {
        **FAST,
        "MUSTER_COORDINATOR_LISTEN": f"{LOOPBACK}:{port}",
        "MUSTER_COORDINATOR_NODE_ID": "skewed",
        "MUSTER_COORDINATOR_METADATA": ",".join(process.address for process in cluster.metadata),
        **inside(SKEWED_CLOCK_MS=str(ahead_ms)),
    }
    return RoleProcess("skewed", COORDINATOR, port, cluster.folder / "logs", settings)


async def commit(client: muster.Cluster, offset: int) -> None:
    """Commits as a client without a membership does."""
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=-1)
    request.topics.add(name=PLACE.topic).partitions.add(
        partition=PLACE.number, offset=offset, leader_epoch=-1
    )
    link = client.link(GROUP)

    async def stored() -> bool:
        outcome = await link.call(request, coordinator_pb2.OffsetCommitResponse, timeout_ms=5_000)
        return outcome.code == common_pb2.ERROR_CODE_NONE

    await until(stored, "the commit is stored")


if __name__ == "__main__":
    run(main)
