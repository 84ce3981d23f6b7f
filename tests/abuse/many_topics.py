"""Topics with the longest names and the most partitions are created, eight at a time; ten clients list them.

Must hold: each change is answered, an honest one among them too, and W does not notice.
"""

import asyncio
import itertools
import time
from collections import Counter
from functools import partial
from typing import Any

import grpc
from abuse.caller import admitted, connection, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

CREATED_S = 12.0
LISTED_S = 6.0
AT_ONCE = 8
LISTERS = 10
PARTITIONS = 100_000
CHANGE_S = 30.0


async def attack(target: Target) -> str:
    begins()
    async with connection(target.servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        codes = await create(stub)
        listed = (await stub.ListTopics(discovery_pb2.ListTopicsRequest(), timeout=CHANGE_S)).topics
        if sum(topic.name.startswith("0") for topic in listed) != codes["NONE"]:
            raise Broken(f"{codes['NONE']} topics were created, {len(listed)} are listed")
        lists, deleted = await list_and_delete(stub, codes["NONE"])
        honest = discovery_pb2.CreateTopicRequest(topic=discovery_pb2.Topic(name="honest", partitions=1))
        code = (await admitted(partial(stub.CreateTopic, honest, timeout=CHANGE_S))).error_code
    if code:
        raise Broken(f"an honest CreateTopic was answered {name_of(code)}")
    return f"{dict(codes)} created in {CREATED_S:g} s, listed {lists} times while {deleted} were deleted"


def name(number: int) -> str:
    return f"{number:06d}".ljust(249, "t")


def refused(error: grpc.aio.AioRpcError) -> str:
    """What a quota says."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise error
    return error.code().name


async def create(stub: Any) -> Counter[str]:
    """Creates topics for some seconds; gives how often each answer came."""
    codes: Counter[str] = Counter()
    numbers = itertools.count()
    ends_s = time.monotonic() + CREATED_S

    async def client() -> None:
        while time.monotonic() < ends_s:
            topic = discovery_pb2.Topic(name=name(next(numbers)), partitions=PARTITIONS)
            request = discovery_pb2.CreateTopicRequest(topic=topic)
            try:
                codes[name_of((await stub.CreateTopic(request, timeout=CHANGE_S)).error_code)] += 1
            except grpc.aio.AioRpcError as error:
                codes[refused(error)] += 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return codes


async def list_and_delete(stub: Any, created: int) -> tuple[int, int]:
    """Lists and deletes beside each other; gives how often."""
    ends_s = time.monotonic() + LISTED_S
    lists = deleted = 0

    async def lister() -> None:
        nonlocal lists
        while time.monotonic() < ends_s:
            await stub.ListTopics(discovery_pb2.ListTopicsRequest(), timeout=CHANGE_S)
            lists += 1

    async def deleter() -> None:
        nonlocal deleted
        while time.monotonic() < ends_s and deleted < created:
            request = discovery_pb2.DeleteTopicRequest(name=name(deleted))
            try:
                await stub.DeleteTopic(request, timeout=CHANGE_S)
                deleted += 1
            except grpc.aio.AioRpcError as error:
                refused(error)

    await asyncio.gather(deleter(), *(lister() for _ in range(LISTERS)))
    return lists, deleted


if __name__ == "__main__":
    stage(attack, lifted={"MUSTER_QUOTA_TOPIC_CHANGES_PER_S": "0"}, coordinator_mb=250)
