"""Forty streams attach a member and take it off again, fifty times in each message, while groups are deleted.

Must hold: none of them is broken by that, no stream has a member whose group is gone, and W does not notice.
"""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

from abuse.caller import connection, groups_stub, joined, name_of
from abuse.lab import Lab, Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

STREAMS = 40
DELETED = 20
CONNECTIONS = 8
TIMES = 50
PAUSE_S = 0.02
FOR_S = 12.0
SETTLE_S = 2.0


async def attack(target: Target) -> str:
    groups = await target.groups(STREAMS, "attached-")
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connection(target.owner)) for _ in range(CONNECTIONS)]
        stubs = [groups_stub(channels[number % CONNECTIONS]) for number in range(STREAMS)]
        members = await asyncio.gather(*map(joined, stubs, groups))
        streams = [
            await stack.enter_async_context(Session(channels[number % CONNECTIONS]))
            for number in range(STREAMS)
        ]
        begins()
        ends_s = time.monotonic() + FOR_S

        async def attach(place: int) -> None:
            while time.monotonic() < ends_s:
                group_id, (member_id, generation) = groups[place], members[place]
                on, off = session_pb2.ClientFrame(), session_pb2.ClientFrame()
                on.attach.group_id = off.detach.group_id = group_id
                on.attach.member_id = off.detach.member_id = member_id
                on.attach.generation = generation
                streams[place].send(*[on, off] * TIMES)
                await asyncio.sleep(PAUSE_S)

        async def delete(place: int) -> int:
            deleted = 0
            while time.monotonic() < ends_s:
                leave = coordinator_pb2.LeaveGroupRequest(group_id=groups[place])
                leave.members.add(member_id=members[place][0])
                await stubs[place].LeaveGroup(leave, timeout=30)
                gone = coordinator_pb2.DeleteGroupsRequest(group_ids=[groups[place]])
                (result,) = (await stubs[place].DeleteGroups(gone, timeout=30)).results
                deleted += not result.error_code
                members[place] = await joined(stubs[place], groups[place])
            return deleted

        deleting = [asyncio.create_task(delete(place)) for place in range(DELETED)]
        await asyncio.gather(*map(attach, range(STREAMS)))
        deleted = sum(await asyncio.gather(*deleting))
        await asyncio.sleep(SETTLE_S)
        said = Counter(
            name_of(push.attach_result.error_code)
            for stream in streams
            for push in stream.pushes
            if push.HasField("attach_result")
        )
        if ended := [stream.ended for stream in streams if stream.ended]:
            raise Broken(f"{len(ended)} streams ended: {ended[0]}")
    told = ", ".join(f"{name} {number:,}" for name, number in said.most_common())
    return f"{deleted} groups deleted; attaches: {told}"


async def nothing_failed(lab: Lab) -> None:
    if failed := lab.log_lines("Traceback", "session_failed", "shard_failed"):
        raise Broken(f"a coordinator failed: {failed[0][:300]}")


if __name__ == "__main__":
    stage(attack, check=nothing_failed)
