"""The log's node is out of memory for some seconds; then it has room again.

Must hold: whoever writes meanwhile is told to try again, but groups can be deleted; nothing that was
acknowledged is gone, and W works on by itself, with the partition that it had.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from abuse.caller import commit, connection, groups_stub, name_of, stored_offset
from abuse.lab import GAP_S, Lab, Target
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2, discovery_pb2_grpc
from redis.asyncio import Redis

FULL_S = 4.0
"""Shorter than a session, so that W keeps its partition (docs/safety.md, "An outage of the log")."""

OUT_OF_MEMORY_S = 15.0
"""Longer than a lease and a session: leases are renewed, so W keeps it all the same."""

BACK_S = 10.0
QUIET_S = 3.0
TRY_AGAIN = {
    common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
    common_pb2.ERROR_CODE_NOT_COORDINATOR,
}
RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", {}, with_worker=True) as lab:
            await judge(lab, out_of_memory(lab), OUT_OF_MEMORY_S, deletes=True)


@asynccontextmanager
async def out_of_memory(lab: Lab) -> AsyncIterator[None]:
    """The node has no memory for anything new meanwhile."""
    assert lab.cluster.nodes is not None
    async with Redis.from_url(lab.cluster.nodes[0].url) as node:
        used = (await node.info("memory"))["used_memory"]
        await node.config_set("maxmemory", int(used * 0.97))
        try:
            yield
        finally:
            await node.config_set("maxmemory", "0")


async def judge(
    lab: Lab, full: AbstractAsyncContextManager[None], full_s: float = FULL_S, *, deletes: bool = False
) -> None:
    """Raises `Broken` unless all is well while the node takes nothing, and after it.

    Args:
        lab: with W.
        full: meanwhile the node takes nothing.
        full_s: for how long.
        deletes: whether groups can be deleted all the same.
    """
    target = await Target.at(lab.cluster.servers)
    group, gone = await target.groups(2, "full")
    if deletes and await stored(target, gone, 1) != 1:
        raise Broken("a commit before it was not stored")
    await asyncio.sleep(QUIET_S)
    began_s = time.monotonic()
    told = await while_full(full, target, group, full_s, gone if deletes else "")
    room_s = time.monotonic()
    try:
        acknowledged = await until(lambda: stored(target, group, 2), "a commit after it", BACK_S)
        await until(lambda: lab.window(room_s, time.monotonic()).commits > 1, "W to go on", BACK_S)
    except AssertionError as error:
        raise Broken(f"there is room again, and nothing is stored: {error}") from error
    await asyncio.sleep(QUIET_S)
    window = lab.window(began_s, time.monotonic())
    report(f"full for {room_s - began_s:.1f} s: {told}; W's longest gap {window.gap_s:.1f} s")
    if window.events:
        raise Broken(f"W was disturbed: {'; '.join(window.events)}")
    if (found := await stored_offset(target.owner, group)) != acknowledged:
        raise Broken(f"{acknowledged} was acknowledged, {found} is stored")
    after = lab.window(time.monotonic() - QUIET_S, time.monotonic())
    if after.gap_s > 2 * GAP_S:
        raise Broken(f"W had a gap of {after.gap_s:.1f} s long after there was room again")
    if ended := lab.cluster.ended():
        raise Broken(f"ended: {', '.join(ended)}")


async def while_full(
    full: AbstractAsyncContextManager[None], target: Target, group: str, full_s: float, gone: str
) -> str:
    """Writes while the node is full, deletes a group if one is named; gives what the calls were answered."""
    if await stored(target, group, 1) != 1:
        raise Broken("a commit before it was not stored")
    async with full:
        ends_s = time.monotonic() + full_s
        code = await answer_to_a_commit(target, group)
        topic = await answer_to_a_topic(target)
        if gone:
            await until(lambda: deleted(target, gone), "a group to be deleted", full_s)
        await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
    return f"a commit was answered {code}, a new topic {topic}"


async def answer_to_a_commit(target: Target, group: str) -> str:
    """What a commit is answered that cannot be stored: to be tried again."""
    async with connection(target.owner) as channel:
        partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=9)]
        try:
            answer = await groups_stub(channel).OffsetCommit(commit(group, partitions), timeout=FULL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRIED:
                raise Broken(f"a commit was answered {error.code().name}: {error.details()}") from error
            return error.code().name
        code = answer.topics[0].partitions[0].error_code
        if code not in TRY_AGAIN:
            raise Broken(f"a commit that cannot be stored was answered {name_of(code)}")
        return name_of(code)


async def answer_to_a_topic(target: Target) -> str:
    """What a new topic is answered that cannot be stored."""
    async with connection(target.servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        request = discovery_pb2.CreateTopicRequest(topic=discovery_pb2.Topic(name="full", partitions=1))
        try:
            answer = await stub.CreateTopic(request, timeout=FULL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRIED:
                raise Broken(f"a topic was answered {error.code().name}: {error.details()}") from error
            return error.code().name
        if not answer.error_code:
            raise Broken("a topic that cannot be stored was acknowledged")
        return name_of(answer.error_code)


async def stored(target: Target, group: str, offset: int) -> int:
    """Commits; gives the offset once it was acknowledged, 0 if it is to be tried again."""
    async with connection(target.owner) as channel:
        partitions = [coordinator_pb2.OffsetCommitRequest.Partition(offset=offset)]
        try:
            answer = await groups_stub(channel).OffsetCommit(commit(group, partitions), timeout=FULL_S)
        except grpc.aio.AioRpcError:
            return 0
        return 0 if answer.topics[0].partitions[0].error_code else offset


async def deleted(target: Target, group: str) -> bool:
    """Deletes a group; gives whether it is gone."""
    async with connection(target.owner) as channel:
        request = coordinator_pb2.DeleteGroupsRequest(group_ids=[group])
        try:
            answer = await groups_stub(channel).DeleteGroups(request, timeout=FULL_S)
        except grpc.aio.AioRpcError:
            return False
        return answer.results[0].error_code in {0, common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND}


if __name__ == "__main__":
    run(main)
