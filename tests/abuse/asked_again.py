"""A member that keeps 20,000 partitions asks for its assignment again and again, fifty times at once.

Must hold: small calls that have large answers take turns, and W does not notice.
"""

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, join, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

TOPIC = "t" * 249
PARTITIONS = 20_000
AT_ONCE = 50
ASKED_S = 10.0
PATIENCE_S = 0.5


async def attack(target: Target) -> str:
    (group_id,) = await target.groups(1, "again")
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        sync = await keeping(stub, group_id)
        begins()
        ends_s = time.monotonic() + ASKED_S
        said: Counter[str] = Counter()
        while time.monotonic() < ends_s:
            said.update(await asyncio.gather(*(ask(stub, sync) for _ in range(AT_ONCE))))
    return f"a member of {PARTITIONS:,} kept partitions asked again: {dict(said)}"


async def keeping(stub: Any, group_id: str, partitions: int = PARTITIONS) -> coordinator_pb2.SyncGroupRequest:
    """Joins as the only member, twice, and keeps all partitions; returns the call for its assignment."""
    all_of_it = [common_pb2.TopicPartitions(topic=TOPIC, partitions=range(partitions))]
    plan = common_pb2.Assignment(version=1, partitions=all_of_it).SerializeToString()
    kept = common_pb2.Subscription(
        version=1, topics=[TOPIC], keeps_owned=True, owned_partitions=all_of_it
    ).SerializeToString()
    request = join(group_id, session_timeout_ms=1_800_000)
    request.member_id = (await stub.JoinGroup(request, timeout=30)).member_id
    for metadata in (b"", kept):
        request.protocols[0].metadata = metadata
        joined = await stub.JoinGroup(request, timeout=60)
        sync = coordinator_pb2.SyncGroupRequest(
            group_id=group_id, generation=joined.generation, member_id=request.member_id
        )
        sync.assignments.add(member_id=request.member_id, assignment=plan)
        answer = await stub.SyncGroup(sync, timeout=60)
    if answer.error_code or len(answer.kept_tokens) != partitions:
        raise Broken(f"{name_of(answer.error_code)}, {len(answer.kept_tokens)} tokens kept")
    del sync.assignments[:]
    return sync


async def ask(stub: Any, sync: coordinator_pb2.SyncGroupRequest) -> str:
    try:
        return name_of((await stub.SyncGroup(sync, timeout=PATIENCE_S)).error_code)
    except grpc.aio.AioRpcError as error:
        return error.code().name


if __name__ == "__main__":
    stage(attack)
