"""The join phases of a dozen groups, each as large as it may be, of absent static members, end together.

Must hold: each ends, with all of them in the next generation, and W does not notice.
"""

import asyncio
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, join, name_of
from abuse.lab import Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

GROUPS = 12
MEMBERS = 135
METADATA_BYTES = 15_000
"""With them a group takes nearly the 2 MiB that it may."""
ROUNDS = 3
LONG_MS = 1_800_000
GATHERS_MS = 15_000
"""Also how long a member may take to sync: a busy machine needs seconds for the members of a group."""


async def attack(target: Target) -> str:
    groups = await target.groups(GROUPS, "absent")
    async with connection(target.owner) as channel:
        for group in groups:
            await fill(channel, group)
        begins()
        members = [0]
        for _ in range(ROUNDS):
            members = await asyncio.gather(*(come_and_go(groups_stub(channel), group) for group in groups))
    if members != [MEMBERS + 1] * GROUPS:
        raise Broken(f"the generations have {members} members, of {MEMBERS} and one that came")
    return f"{ROUNDS} generations of {GROUPS} groups with {MEMBERS} absent members"


async def fill(channel: grpc.aio.Channel, group: str) -> None:
    """Static members come to a generation, and their connection breaks."""
    times = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": GATHERS_MS}
    protocols = [coordinator_pb2.GroupProtocol(name="range", metadata=bytes(METADATA_BYTES))]
    async with Session(channel, keep=True) as session:
        for number in range(MEMBERS):
            session.call(
                "join_group", [join(group, group_instance_id=f"i{number}", protocols=protocols, **times)]
            )
        await session.until_answered(MEMBERS, 60)
        if session.replies != {"join_group NONE": MEMBERS}:
            raise Broken(f"static members joined: {dict(session.replies)} {session.ended}")
        joined = [reply.join_group for reply in session.answers.values()]
        for answer in sorted(joined, key=lambda one: one.member_id != one.leader):
            sync = coordinator_pb2.SyncGroupRequest(
                group_id=group, generation=answer.generation, member_id=answer.member_id
            )
            session.call("sync_group", [sync])
        await session.until_answered(2 * MEMBERS, 60)
        if session.replies["sync_group NONE"] != MEMBERS:
            raise Broken(f"static members synced: {dict(session.replies)} {session.ended}")


async def come_and_go(stub: Any, group: str) -> int:
    """Somebody joins, waits until the time is up, and leaves; the members of the generation."""
    request = join(group, session_timeout_ms=LONG_MS, rebalance_timeout_ms=GATHERS_MS)
    request.member_id = (await stub.JoinGroup(request, timeout=60)).member_id
    answer = await stub.JoinGroup(request, timeout=60)
    while answer.error_code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
        await asyncio.sleep(0.5)  # as every client: the log may be slow on a busy machine
        answer = await stub.JoinGroup(request, timeout=60)
    if answer.error_code:
        raise Broken(f"JoinGroup was answered {name_of(answer.error_code)} {answer.error_message}")
    described = await stub.DescribeGroups(
        coordinator_pb2.DescribeGroupsRequest(group_ids=[group]), timeout=60
    )
    leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=request.member_id)
    await stub.LeaveGroup(coordinator_pb2.LeaveGroupRequest(group_id=group, members=[leaving]), timeout=60)
    return len(described.groups[0].members)


if __name__ == "__main__":
    stage(attack)
