"""A client breaks promises about commits by the order of its calls; `muster verify` finds the log in order.

A commit that was overtaken on its way must not be stored after the newer one, and a member that is parked in
its first JoinGroup must commit nothing.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from abuse.caller import commit, connection, groups_stub, join, joined, name_of
from abuse.lab import Lab, Target, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

TRIES = 60


async def attack(target: Target) -> str:
    overtaken, parked = await target.groups(2, "order")
    async with connection(target.owner) as one, connection(target.owner) as other:
        refused = await newer_and_older_at_once(groups_stub(one), groups_stub(other), overtaken)
        await commit_while_parked(groups_stub(one), parked)
    return f"of {TRIES} older commits sent together with newer ones, {refused} were refused"


async def newer_and_older_at_once(one: Any, other: Any, group: str) -> int:
    member_id, generation = await joined(one, group)

    def numbered(seq: int) -> coordinator_pb2.OffsetCommitRequest:
        partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=seq)]
        return commit(group, partitions, generation=generation, member_id=member_id, member_seq=seq)

    refused = 0
    for seq in range(2, 2 * TRIES + 2, 2):
        newer, older = await asyncio.gather(
            one.OffsetCommit(numbered(seq)), other.OffsetCommit(numbered(seq - 1))
        )
        if (code := outcome(newer)) != common_pb2.ERROR_CODE_NONE:
            raise Broken(f"the newer commit was answered {name_of(code)}")
        refused += outcome(older) != common_pb2.ERROR_CODE_NONE
        asked = coordinator_pb2.OffsetFetchRequest.Group(group_id=group)
        answer = await one.OffsetFetch(coordinator_pb2.OffsetFetchRequest(groups=[asked]))
        stored = answer.groups[0].topics[0].partitions[0].offset
        if stored != seq:
            raise Broken(f"progress went back from {seq} to {stored}")
    return refused


async def commit_while_parked(stub: Any, group: str) -> None:
    _, generation = await joined(stub, group)
    member_id = (await stub.JoinGroup(join(group))).member_id
    call = stub.JoinGroup(join(group, member_id=member_id), timeout=30)
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(0.5)
    partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=999)]
    code = outcome(
        await stub.OffsetCommit(commit(group, partitions, generation=generation, member_id=member_id))
    )
    call.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    if code != common_pb2.ERROR_CODE_ILLEGAL_GENERATION:
        raise Broken(f"a commit of a member parked in its first JoinGroup was answered {name_of(code)}")


def outcome(answer: coordinator_pb2.OffsetCommitResponse) -> int:
    return answer.topics[0].partitions[0].error_code


async def log_is_in_order(lab: Lab) -> None:
    command = Path(sys.executable).with_name("muster")
    process = await asyncio.create_subprocess_exec(
        command, "verify", lab.cluster.redis_url, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise Broken(f"muster verify: {told.decode()[-2_000:]}")


if __name__ == "__main__":
    stage(attack, check=log_is_in_order)
