"""Coordinators with half a gigabyte each, started again when they end, and commits with 4 KiB of metadata.

Must hold: groups come to their bounds before the memory does, so no process ends; then the owner of all that
is killed, and what it held is loaded by processes with no more memory, of which none ends either. W goes on;
it waits where the one node of the log does not answer in time, which is told: no lease is renewed then.
Linux.
"""

import asyncio
import os
import resource
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import grpc
from abuse.caller import commit, connection, groups_stub, name_of
from abuse.lab import Lab, Target, settled
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_server.dev.role_process import RoleProcess

MEMORY_MB = 512
GROUPS = 12
PARTITIONS = 500
METADATA = "m" * 4_096
LIMIT = "have their limit of"
"""What a refusal says for a bound of a shard or a process."""
FLOOD_S = 90.0
AFTER_S = 20.0
AGAIN_S = 1.0
LOOK_S = 0.05
BACK_S = 60.0
GAP_S = 12.0
"""Where the owner was killed: the end of its lease, and what a busy machine takes for fifty loads."""
FLOODED_GAP_S = 20.0
"""During the flood: a lease that lapsed while the node was slow, and a session stream that begins anew."""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", {}, with_worker=True) as lab:
            supervisor = Supervisor(lab.cluster.coordinators)
            for process in lab.cluster.coordinators:
                await process.terminate()
                await supervisor.start(process)
            await settled(lab.cluster.servers)  # else the flood finds another owner
            target = await Target.at(lab.cluster.servers)
            groups = await target.groups(GROUPS, "much")
            watching = asyncio.create_task(supervisor.watch())
            began_s = time.monotonic()
            answers = Counter[str]()
            stored = await asyncio.gather(*(flood(target.owner, group, answers) for group in groups))
            flooded = lab.window(began_s, time.monotonic())
            largest_mb = supervisor.largest_mb
            lost = len(lab.log_lines("log_node_lost"))
            if supervisor.ended:
                raise Broken(f"coordinators ended at {largest_mb} MB: {supervisor.ended}")
            if not answers[LIMIT]:
                raise RuntimeError(f"no bound was reached within {FLOOD_S:g} s: {dict(answers)}")
            owner = next(one for one in lab.cluster.coordinators if one.address == target.owner)
            supervisor.killed = owner.name
            killed_s = time.monotonic()
            await owner.kill()
            try:
                await until(
                    lambda: lab.window(time.monotonic() - 1, time.monotonic()).commits > 1,
                    "W to go on",
                    BACK_S,
                )
            except AssertionError:
                raise Broken(f"W is without a commit for {BACK_S:g} s; {supervisor.ended}") from None
            await asyncio.sleep(AFTER_S)
            after = lab.window(killed_s, time.monotonic())
            watching.cancel()
            refused = len(lab.log_lines("MUSTER_COORDINATOR_MAX_LOAD_BYTES"))
            report(
                f"{sum(stored) * PARTITIONS * len(METADATA) >> 20:,} MB stored: {dict(answers)}; "
                f"coordinators at most {largest_mb} MB, and {supervisor.largest_mb} MB after a kill; "
                f"{refused} loads refused; the node was lost {lost} times during the flood; "
                f"W's longest gap {flooded.gap_s:.1f} s, {after.gap_s:.1f} s"
            )
            if supervisor.ended:
                raise Broken(f"coordinators ended: {supervisor.ended}")
            if flooded.gap_s > FLOODED_GAP_S:
                raise Broken(f"W was without a commit for {flooded.gap_s:.1f} s during the flood")
            if after.gap_s > GAP_S:
                raise Broken(f"W was without a commit for {after.gap_s:.1f} s")
            if supervisor.largest_mb > MEMORY_MB:
                raise Broken("a coordinator came to more than it may have")


class Supervisor:
    """Bounds the memory of processes, and starts what ended again, as an orchestrator does.

    Attributes:
        killed: name of the process that this program has killed.
        ended: what ended by itself.
        largest_mb: the most memory that one had.
    """

    def __init__(self, processes: list[RoleProcess]) -> None:
        self.killed = ""
        self.ended: list[str] = []
        self.largest_mb = 0
        self._processes = processes

    async def watch(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for process in self._processes:
                if not process.process.ending():
                    self._look(process)
                    continue
                if self.killed != process.name:
                    words = process.process.log.read_text(errors="replace").splitlines()[-3:]
                    self.ended.append(f"{process.process.ending()}: {' '.join(words)[-900:]}")
                self.killed = ""
                await asyncio.sleep(AGAIN_S)
                await self.start(process)

    async def start(self, process: RoleProcess) -> None:
        """Starts it with so much data that it may have, by which it sets its own bounds.

        From then on it is killed for what it has in memory, as in a container. Its data may be half as much
        more: the system counts there what nobody has touched, such as stacks.
        """
        process.spawn()
        _limit_data(process, MEMORY_MB << 20)
        await process.ready()
        _limit_data(process, MEMORY_MB * 3 << 19)

    def _look(self, process: RoleProcess) -> None:
        resident_mb = _resident_mb(process)
        self.largest_mb = max(self.largest_mb, resident_mb)
        if resident_mb > MEMORY_MB and process.process.pid is not None:
            os.kill(process.process.pid, signal.SIGKILL)


def _limit_data(process: RoleProcess, limit_bytes: int) -> None:
    assert process.process.pid is not None
    resource.prlimit(process.process.pid, resource.RLIMIT_DATA, (limit_bytes, MEMORY_MB * 3 << 19))


def _resident_mb(process: RoleProcess) -> int:
    with suppress(OSError, IndexError):
        lines = Path(f"/proc/{process.process.pid}/status").read_text()
        return int(lines.split("VmRSS:")[1].split()[0]) >> 10
    return 0


async def flood(owner: str, group: str, answers: Counter[str]) -> int:
    """Commits new partitions until the group gets no more, or the time is over; how many were stored."""
    ends_s = time.monotonic() + FLOOD_S
    stored = refused = 0
    async with connection(owner) as channel:
        while time.monotonic() < ends_s and refused < 3:
            partitions = [
                pb.OffsetCommitRequest.Partition(
                    partition=stored * PARTITIONS + number, offset=1, metadata=METADATA
                )
                for number in range(PARTITIONS)
            ]
            try:
                answer = await groups_stub(channel).OffsetCommit(commit(group, partitions), timeout=10)
            except grpc.aio.AioRpcError as error:
                answers[error.code().name] += 1
                await asyncio.sleep(0.5)
                continue
            code = answer.topics[0].partitions[0].error_code
            stored += not code
            limited = LIMIT in answer.error_message
            refused += limited
            answers[LIMIT if limited else name_of(code)] += 1
            if code:
                await asyncio.sleep(0.2)
    return stored


if __name__ == "__main__":
    run(main)
