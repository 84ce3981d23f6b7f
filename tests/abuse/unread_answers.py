"""Thirty fetches of 14 MB each whose answers nobody reads.

Must hold: what is unread is bounded, who does not read loses the connection, and W does not notice.
"""

import asyncio
import time

from abuse.caller import GROUPS, commit, connection, groups_stub
from abuse.http2 import Connection
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

CALLS = 30
PARTITIONS = 450
COMMITS = 8
PATIENCE_S = 60.0


async def prepare(target: Target, prefix: str = "unread") -> str:
    """A group whose offsets are 14 MB."""
    [group_id] = await target.groups(1, prefix)
    async with connection(target.owner) as channel:
        for part in range(COMMITS):
            partitions = [
                coordinator_pb2.OffsetCommitRequest.Partition(
                    partition=part * PARTITIONS + number, offset=1, metadata="m" * 4_000
                )
                for number in range(PARTITIONS)
            ]
            await groups_stub(channel).OffsetCommit(commit(group_id, partitions), timeout=30)
    return group_id


async def attack(target: Target) -> str:
    group_id = await prepare(target)
    await asyncio.sleep(1)
    begins()
    request = coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)]
    )
    callers = [Connection(target.owner, window=0) for _ in range(CALLS)]
    for caller in callers:
        caller.open(GROUPS + "OffsetFetch", request.SerializeToString())
    began_s = time.monotonic()
    # A refusal is read; an answer is not, and costs the connection.
    while time.monotonic() - began_s < PATIENCE_S:
        for caller in callers:
            caller.poll()
        if all(caller.dead or caller.frames.get(1, 0) for caller in callers):
            break
        await asyncio.sleep(0.1)
    dead = sum(caller.dead for caller in callers)
    for caller in callers:
        caller.close()
    if not dead:
        raise Broken(f"nobody who did not read was cut off within {PATIENCE_S:g} s")
    return f"{CALLS} fetches: {dead} connections cut off, the other calls refused"


if __name__ == "__main__":
    stage(attack, settings={"MUSTER_SERVER_READ_TIMEOUT_MS": "5000"}, coordinator_mb=700)
