"""Joins that are given up after ten milliseconds, fifty at a time; from a new connection once one is cut off.

Must hold: who gives calls up as fast as it makes them pays for them, and W does not notice.
"""

import asyncio
import time
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, join
from abuse.lab import Target, begins, stage

GROUPS = 20
AT_ONCE = 50
PARKED_S = 0.01
FOR_S = 12.0


async def attack(target: Target) -> str:
    groups = await target.groups(GROUPS, "given-up-")
    begins()
    ends_s = time.monotonic() + FOR_S
    given_up = connections = 0
    while time.monotonic() < ends_s:
        connections += 1
        async with connection(target.owner) as channel:
            stub: Any = groups_stub(channel)
            while time.monotonic() < ends_s:
                calls = [stub.JoinGroup(join(groups[index % GROUPS]), timeout=20) for index in range(AT_ONCE)]
                await asyncio.sleep(PARKED_S)
                given_up += sum(call.cancel() for call in calls)
                ended = await asyncio.gather(*map(code_of, calls))
                if grpc.StatusCode.UNAVAILABLE in ended:
                    break
    return f"{given_up:,} joins were given up on {connections:,} connections"


async def code_of(call: grpc.aio.Call) -> grpc.StatusCode:
    """How a call ended."""
    return await call.code()


if __name__ == "__main__":
    stage(attack)
