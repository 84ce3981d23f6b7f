"""Calls that name a thousand groups each, none of which their caller may see, fifty at a time.

Must hold: to refuse them for each group keeps nobody else waiting.
"""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

CONNECTIONS = 4
AT_ONCE = 50
GROUPS = 1_000
FOR_S = 15.0
RULES = Path(__file__).with_name("hidden_groups.toml")


async def attack(target: Target) -> str:
    names = [f"hidden-{number}" for number in range(GROUPS)]
    fetch = coordinator_pb2.OffsetFetchRequest()
    for name in names:
        fetch.groups.add(group_id=name)
    describe = coordinator_pb2.DescribeGroupsRequest(group_ids=names)
    said: Counter[str] = Counter()
    begins()
    ends_s = time.monotonic() + FOR_S

    async def ask(stub: Any) -> None:
        while time.monotonic() < ends_s:
            for method, request in ((stub.OffsetFetch, fetch), (stub.DescribeGroups, describe)):
                try:
                    answer = await method(request, timeout=30)
                except grpc.aio.AioRpcError as error:
                    said[error.code().name] += 1
                    await asyncio.sleep(0.1)
                else:
                    said.update({name_of(group.error_code) for group in answer.groups})

    async with AsyncExitStack() as stack:
        stubs = [
            groups_stub(await stack.enter_async_context(connection(target.owner))) for _ in range(CONNECTIONS)
        ]
        await asyncio.gather(*(ask(stub) for stub in stubs for _ in range(AT_ONCE)))
    if "NONE" in said:
        raise Broken("groups that the caller must not see were shown")
    return ", ".join(f"{name} {number:,}" for name, number in said.most_common())


if __name__ == "__main__":
    stage(attack, settings={"MUSTER_ACCESS_FILE": str(RULES)})
