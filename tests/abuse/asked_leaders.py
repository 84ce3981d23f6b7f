"""A leader repeats its JoinGroup, 200 times at once: each answer has the metadata of all members, 2 MB.

Must hold: such answers take turns and are bounded in memory, and W does not notice.
"""

import asyncio
from typing import Any

from abuse.caller import asked_at_once, connection, groups_stub, join, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

MEMBERS = 4
METADATA = b"m" * ((1 << 19) - 1_024)
AT_ONCE = 200
ASKED_S = 10.0
PATIENCE_S = 2.0


async def attack(target: Target) -> str:
    (group_id,) = await target.groups(1, "leaders")
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        again = await leading(stub, group_id)
        begins()
        said = await asked_at_once(
            stub.JoinGroup, again, at_once=AT_ONCE, for_s=ASKED_S, patience_s=PATIENCE_S
        )
    return f"the leader of {MEMBERS} members asked again: {dict(said)}"


async def leading(stub: Any, group_id: str) -> coordinator_pb2.JoinGroupRequest:
    """Forms a group whose leader does not sync; returns its join, to be repeated without the metadata."""
    requests = [
        join(group_id, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000) for _ in range(MEMBERS)
    ]
    for request in requests:
        request.member_seq = 1
        request.member_id = (await stub.JoinGroup(request, timeout=30)).member_id
        request.protocols[0].metadata = METADATA
    joined = await asyncio.gather(*(stub.JoinGroup(request, timeout=60) for request in requests))
    if any(answer.error_code for answer in joined):
        raise Broken(f"joins: {[(name_of(a.error_code), a.error_message) for a in joined][:3]}")
    (leader,) = (r for r, answer in zip(requests, joined, strict=True) if answer.leader == answer.member_id)
    leader.protocols[0].metadata = b""
    answer = await stub.JoinGroup(leader, timeout=60)
    if answer.error_code or answer.ByteSize() < MEMBERS * len(METADATA):
        raise Broken(f"{name_of(answer.error_code)}, {answer.ByteSize():,} bytes")
    return leader


if __name__ == "__main__":
    stage(attack)
