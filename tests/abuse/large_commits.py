"""Somebody commits ten thousand partitions with each call as fast as quotas let it, of one topic and of many.

Must hold: each is stored whole or refused with a time to try again, and others commit as before.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import cycle

import grpc
from abuse.caller import GROUPS, commit, connection, raw
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

AT_ONCE = 10_000
ATTACK_S = 15.0
AGAIN_S = 0.05


def requests(groups: Sequence[str]) -> list[bytes]:
    """A commit of one topic, and one of as many topics as partitions."""
    partition = coordinator_pb2.OffsetCommitRequest.Partition
    one = commit(groups[0], [partition(partition=n, offset=1) for n in range(AT_ONCE)])
    many = coordinator_pb2.OffsetCommitRequest(group_id=groups[1], generation=-1)
    for number in range(AT_ONCE // 3):
        many.topics.add(name=f"t{number}").partitions.add(partition=0, offset=1)
    return [one.SerializeToString(), many.SerializeToString()]


async def attack(target: Target) -> str:
    datas = cycle(requests(await target.groups(2, "commits")))
    stored = refused = 0
    async with connection(target.owner) as channel:
        begins()
        ends_s = time.monotonic() + ATTACK_S
        while time.monotonic() < ends_s:
            status, body, text = await raw(channel, GROUPS + "OffsetCommit", next(datas), timeout_s=60)
            if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
                refused += 1
                await asyncio.sleep(AGAIN_S)
            elif status is not grpc.StatusCode.OK:
                raise Broken(f"a large commit was answered {status.name} {text!r}")
            else:
                answer = coordinator_pb2.OffsetCommitResponse.FromString(body)
                codes = {one.error_code for topic in answer.topics for one in topic.partitions}
                if codes != {0}:
                    raise Broken(f"a large commit was answered {codes}: {answer.error_message!r}")
                stored += 1
    if not stored:
        raise Broken("no large commit was stored")
    return f"{stored} large commits stored, {refused} refused"


if __name__ == "__main__":
    stage(attack, in_memory=True)
