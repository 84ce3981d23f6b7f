"""The owner of W's group may take little more memory, and a stranger's commits take all of it.

Must hold: that process ends, rather than hold shards that it cannot serve; W goes on at the next owner after
the lease time and a take-over, and nothing that was acknowledged is gone. Linux.

Who meets the limit first is chance. Python raises `MemoryError`, and the process says `memory_exhausted` and
ends with 1. gRPC's core throws `std::bad_alloc`, which nobody catches: SIGABRT. protobuf's encoder, which
`ByteSize` calls too, goes on without the memory that it did not get: SIGSEGV. All three end the process at
once, and its log says which.
"""

import asyncio
import resource
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import grpc
from abuse.caller import admitted, commit, connection, groups_stub
from abuse.lab import Lab, Target, find
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_server.child_process import ChildProcess

MORE_MB = 120
GROUPS = 4
PARTITIONS = 500
METADATA = "m" * 4_096
FLOOD_S = 60.0
GAP_S = 12.0
"""The lease time of 2 s, and what a busy machine takes for fifty claims and for W to find the next owner."""
BACK_S = 60.0
QUIET_S = 2.0
SIGNS = ("memory_exhausted", "std::bad_alloc", "Fatal Python error: Segmentation fault")
"""What the log says of a process that got no memory."""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", {}, with_worker=True) as lab:
            target = await Target.at(lab.cluster.servers)
            groups = await target.groups(GROUPS, "much")
            await asyncio.sleep(QUIET_S)
            process = next(one for one in lab.cluster.coordinators if one.address == target.owner).process
            bound(process)
            began_s = time.monotonic()
            acknowledged = Counter[str]()
            floods = [flood(target.owner, group, acknowledged, process) for group in groups]
            await asyncio.gather(*floods)
            ended_s = time.monotonic()
            try:
                await until(lambda: lab.window(ended_s, time.monotonic()).commits > 1, "W to go on", BACK_S)
            except AssertionError:
                raise Broken(f"W is without a commit for {BACK_S:g} s; {ending(process)}") from None
            window = lab.window(began_s, time.monotonic())
            stored = {group: await number_stored(lab.cluster.servers, group) for group in groups}
            report(
                f"{acknowledged.total():,} partitions acknowledged, {sum(stored.values()):,} stored; "
                f"{ending(process)}; W's longest gap {window.gap_s:.1f} s"
            )
            for group in groups:
                if stored[group] < acknowledged[group]:
                    raise Broken(f"{group}: {acknowledged[group]:,} acknowledged, {stored[group]:,} stored")
            if window.gap_s > GAP_S:
                raise Broken(f"W was without a commit for {window.gap_s:.1f} s")
            if not process.ending():
                raise RuntimeError("the memory was not used up, so nothing was shown")
            if not any(sign in process.log.read_text(errors="replace") for sign in SIGNS):
                raise Broken(f"its log does not say that it was for memory: {ending(process)}")


def ending(process: ChildProcess) -> str:
    """What became of the owner."""
    return f"its owner {process.ending() or 'did not end'}"


def bound(process: ChildProcess) -> None:
    """Lets a process take only some more address space."""
    assert process.pid is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    limit = (int(status.split("VmSize:")[1].split()[0]) << 10) + (MORE_MB << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))


async def flood(owner: str, group: str, acknowledged: Counter[str], process: ChildProcess) -> None:
    """Commits new partitions until the owner has ended, or the time has."""
    ends_s = time.monotonic() + FLOOD_S
    number = 0
    async with connection(owner) as channel:
        while not process.ending() and time.monotonic() < ends_s:
            partitions = [
                pb.OffsetCommitRequest.Partition(partition=partition, offset=1, metadata=METADATA)
                for partition in range(number, number + PARTITIONS)
            ]
            number += PARTITIONS
            try:
                answer = await groups_stub(channel).OffsetCommit(commit(group, partitions), timeout=5)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
                continue
            acknowledged[group] += sum(not row.error_code for row in answer.topics[0].partitions)


async def number_stored(servers: str, group: str) -> int:
    """How many partitions of the group are stored."""
    number = 0
    request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id=group, limit=PARTITIONS)])

    async def page() -> pb.OffsetFetchResponse.Group | None:
        async with connection(await find(servers, group)) as channel:
            fetched = await admitted(partial(groups_stub(channel).OffsetFetch, request, timeout=30))
            answer = fetched.groups[0]
        return None if answer.error_code else answer

    while True:
        answer = await until(page, f"offsets of {group}", BACK_S)
        for topic in answer.topics:
            number += len(topic.partitions)
            request.groups[0].after_topic = topic.name
            request.groups[0].after_partition = topic.partitions[-1].partition
        if not answer.more:
            return number


if __name__ == "__main__":
    run(main)
