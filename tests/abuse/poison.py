"""Four calls (id, join, leave, static join without protocols) make a join phase that cannot end.

The last join must be refused, an honest member must get into the group soon after it, however long the
sessions are that were asked for, and the other groups of the shard must not notice.
"""

import asyncio
import time
from typing import Any

from abuse.caller import connection, groups_stub, join, joined, name_of
from abuse.lab import Lab, Target, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

GROUPS = 30
LONG_S = 15.0
REBALANCE_MS = 500
SESSIONS_MS = (6_000, 1_800_000)
SOON_S = 20.0


async def attack(target: Target) -> str:
    groups = await target.groups(GROUPS, "poison")
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        until_s = time.monotonic() + LONG_S
        times = sum(
            await asyncio.gather(
                *(again_and_again(stub, group, SESSIONS_MS[n % 2], until_s) for n, group in enumerate(groups))
            )
        )
        began_s = time.monotonic()
        await asyncio.gather(*(honest(stub, group) for group in groups))
    return f"{GROUPS} groups, {times} times, {time.monotonic() - began_s:.1f} s for {GROUPS} honest members"


async def honest(stub: Any, group: str) -> None:
    """Raises `Broken` unless somebody else gets into the group soon."""
    try:
        await asyncio.wait_for(joined(stub, group, rebalance_timeout_ms=REBALANCE_MS), SOON_S)
    except TimeoutError as error:
        raise Broken(f"{group} lets nobody in for {SOON_S:g} s") from error


async def again_and_again(stub: Any, group: str, session_ms: int, until_s: float) -> int:
    times = 0
    while time.monotonic() < until_s:
        await poison(stub, group, session_ms)
        times += 1
    return times


async def poison(stub: Any, group: str, session_ms: int) -> None:
    times = {"session_timeout_ms": session_ms, "rebalance_timeout_ms": REBALANCE_MS}
    member_id = (await stub.JoinGroup(join(group, **times), timeout=20)).member_id
    parked = asyncio.ensure_future(stub.JoinGroup(join(group, member_id=member_id, **times), timeout=20))
    await asyncio.sleep(0.1)
    leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member_id)
    await stub.LeaveGroup(coordinator_pb2.LeaveGroupRequest(group_id=group, members=[leaver]))
    static = join(group, group_instance_id="i", **times)
    static.ClearField("protocols")
    answer = await stub.JoinGroup(static, timeout=20)
    await parked
    if answer.error_code != common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL:
        raise Broken(f"a join without protocols was answered {name_of(answer.error_code)}")


async def nothing_failed(lab: Lab) -> None:
    if lines := lab.log_lines("Traceback"):
        raise Broken(f"the servers' logs have {len(lines)} tracebacks, the first: {lines[0][:300]}")


if __name__ == "__main__":
    stage(attack, check=nothing_failed)
