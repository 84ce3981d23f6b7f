"""The owner of W's group may take little more memory, and a stranger's commits take all of it.

Must hold: whether that process goes on or ends, nothing that was acknowledged is gone, and W goes on, here or
at the next owner.
"""

import asyncio
import resource
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc
from abuse.caller import commit, connection, groups_stub
from abuse.lab import Lab, Target, find
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2 as pb

MORE_MB = 120
FLOOD_S = 15.0
PARTITIONS = 900
METADATA = "m" * 4_096
BACK_S = 60.0
QUIET_S = 2.0


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", {}, with_worker=True) as lab:
            target = await Target.at(lab.cluster.servers)
            [group] = await target.groups(1, "much")
            await asyncio.sleep(QUIET_S)
            began_s = time.monotonic()
            bound(lab, target.owner)
            acknowledged = await flood(target.owner, group)
            flooded_s = time.monotonic()
            ended = lab.cluster.ended()
            try:
                await until(lambda: lab.window(flooded_s, time.monotonic()).commits > 1, "W to go on", BACK_S)
            except AssertionError:
                raise Broken(f"W is without a commit for {BACK_S:g} s; ended: {ended or 'nobody'}") from None
            window = lab.window(began_s, time.monotonic())
            stored = await number_stored(lab.cluster.servers, group)
            report(
                f"{acknowledged:,} partitions acknowledged, {stored:,} stored; ended: {ended or 'nobody'}; "
                f"W's longest gap {window.gap_s:.1f} s"
            )
            if stored < acknowledged:
                raise Broken(f"{acknowledged:,} partitions were acknowledged, {stored:,} are stored")


def bound(lab: Lab, owner: str) -> None:
    """Lets a coordinator take only some more address space."""
    process = next(one for one in lab.cluster.coordinators if one.address == owner).process
    assert process.pid is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    limit = (int(status.split("VmSize:")[1].split()[0]) << 10) + (MORE_MB << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))


async def flood(owner: str, group: str) -> int:
    """Commits as much as goes; gives how many partitions were acknowledged."""
    acknowledged = 0
    ends_s = time.monotonic() + FLOOD_S
    with suppress(grpc.aio.AioRpcError):
        async with connection(owner) as channel:
            while time.monotonic() < ends_s:
                partitions = [
                    pb.OffsetCommitRequest.Partition(partition=number, offset=1, metadata=METADATA)
                    for number in range(acknowledged, acknowledged + PARTITIONS)
                ]
                answer = await groups_stub(channel).OffsetCommit(commit(group, partitions), timeout=10)
                if answer.topics[0].partitions[0].error_code:
                    break
                acknowledged += PARTITIONS
    return acknowledged


async def number_stored(servers: str, group: str) -> int:
    """How many partitions of the group are stored."""
    number = 0
    request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id=group, limit=PARTITIONS)])
    async with connection(await find(servers, group)) as channel:
        while True:
            answer = (await groups_stub(channel).OffsetFetch(request, timeout=30)).groups[0]
            if answer.error_code:
                raise Broken(f"its offsets cannot be fetched: {answer.error_message}")
            for topic in answer.topics:
                number += len(topic.partitions)
                request.groups[0].after_topic = topic.name
                request.groups[0].after_partition = topic.partitions[-1].partition
            if not answer.more:
                return number


if __name__ == "__main__":
    run(main)
