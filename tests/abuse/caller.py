"""Calls as somebody makes them who does not use the library."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc

GROUPS = "/muster.v1.GroupCoordinatorService/"
HEALTH = "/grpc.health.v1.Health/"

_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]

T = TypeVar("T", bound=Message)
R = TypeVar("R")


def groups_stub(channel: grpc.aio.Channel) -> Any:
    """The calls of the group protocol: coroutines, which the generated types do not know."""
    return coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own, without limits on the caller's side."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        yield channel


async def raw(
    channel: grpc.aio.Channel,
    method: str,
    body: bytes,
    *,
    timeout_s: float = 10.0,
    metadata: Sequence[tuple[str, str]] = (),
) -> tuple[grpc.StatusCode, bytes, str]:
    """Sends bytes to a method; gives the status, the answer's bytes and the message of the status."""
    call: Any = channel.unary_unary(
        method, request_serializer=lambda sent: sent, response_deserializer=lambda received: received
    )
    try:
        return grpc.StatusCode.OK, await call(body, timeout=timeout_s, metadata=list(metadata)), ""
    except grpc.aio.AioRpcError as error:
        return error.code(), b"", error.details() or ""


async def raw_when_admitted(
    channel: grpc.aio.Channel, method: str, body: bytes, *, timeout_s: float = 10.0, patience_s: float = 60.0
) -> tuple[grpc.StatusCode, bytes, str]:
    """As `raw`, again and again until no quota refuses it: what was answered before counts there."""
    ends_s = time.monotonic() + patience_s
    while True:
        status, answer, text = await raw(channel, method, body, timeout_s=timeout_s)
        is_refused = status is grpc.StatusCode.RESOURCE_EXHAUSTED and "MUSTER_QUOTA" in text
        if not is_refused or time.monotonic() > ends_s:
            return status, answer, text
        await asyncio.sleep(0.1)


async def admitted(ask: Callable[[], Awaitable[R]], patience_s: float = 30.0) -> R:
    """Makes a call until no quota refuses it: others on this host may have used up what it has."""
    ends_s = time.monotonic() + patience_s
    while True:
        try:
            return await ask()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > ends_s:
                raise
            await asyncio.sleep(0.1)


async def asked_at_once(
    method: Callable[..., Awaitable[Any]], request: Message, *, at_once: int, for_s: float, patience_s: float
) -> Counter[str]:
    """Makes a call so many times at once, again and again; counts answers by their error or status."""

    async def ask() -> str:
        try:
            return name_of((await method(request, timeout=patience_s)).error_code)
        except grpc.aio.AioRpcError as error:
            return error.code().name

    ends_s = time.monotonic() + for_s
    said: Counter[str] = Counter()
    while time.monotonic() < ends_s:
        said.update(await asyncio.gather(*(ask() for _ in range(at_once))))
    return said


async def keeping(
    stub: Any, group_id: str, topic: str, partitions: int
) -> tuple[coordinator_pb2.SyncGroupRequest, int]:
    """Joins as the only member, twice, and keeps all partitions.

    Returns:
        The call for its assignment, and how many tokens it kept.
    """
    all_of_it = [common_pb2.TopicPartitions(topic=topic, partitions=range(partitions))]
    plan = common_pb2.Assignment(version=1, partitions=all_of_it).SerializeToString()
    kept = common_pb2.Subscription(
        version=1, topics=[topic], keeps_owned=True, owned_partitions=all_of_it
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
    del sync.assignments[:]
    return sync, len(answer.kept_tokens)


def name_of(code: int) -> str:
    """An error code by its name: `UNKNOWN_MEMBER_ID`."""
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")


def join(group_id: str, **fields: object) -> coordinator_pb2.JoinGroupRequest:
    """A JoinGroup that is in order, but for what is given."""
    message = coordinator_pb2.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"x")],
        client_id="attacker",
    )
    return _changed(message, fields)


async def join_among(
    stub: Any, group_id: str, topic: str, **fields: object
) -> coordinator_pb2.JoinGroupRequest:
    """A JoinGroup that a group takes whose members work on a topic: with the protocol that they agreed on."""
    described = await stub.DescribeGroups(
        coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id]), timeout=10
    )
    protocol = described.groups[0].protocol_name or "range"
    topics = common_pb2.Subscription(version=1, topics=[topic], generation=-1).SerializeToString()
    return join(group_id, protocols=[coordinator_pb2.GroupProtocol(name=protocol, metadata=topics)], **fields)


def commit(
    group_id: str,
    partitions: Sequence[coordinator_pb2.OffsetCommitRequest.Partition],
    topic: str = "t",
    **fields: object,
) -> coordinator_pb2.OffsetCommitRequest:
    """A commit from outside, but for what is given."""
    message = coordinator_pb2.OffsetCommitRequest(
        group_id=group_id,
        generation=-1,
        topics=[coordinator_pb2.OffsetCommitRequest.Topic(name=topic, partitions=partitions)],
    )
    return _changed(message, fields)


async def stored_offset(owner: str, group_id: str) -> int:
    """The offset that a coordinator has stored for a group's first partition; -1: none."""
    request = coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)]
    )
    async with connection(owner) as channel:
        answer = await admitted(partial(groups_stub(channel).OffsetFetch, request, timeout=10))
    topics = answer.groups[0].topics
    return int(topics[0].partitions[0].offset) if topics else -1


def _changed(message: T, fields: dict[str, object]) -> T:
    for name in fields:
        message.ClearField(name)
    message.MergeFrom(type(message)(**fields))
    return message


async def joined(stub: Any, group_id: str, **fields: object) -> tuple[str, int]:
    """Joins and syncs as the only member; gives the member id and the generation."""
    answer = await stub.JoinGroup(join(group_id, **fields), timeout=20)
    if answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
        answer = await stub.JoinGroup(join(group_id, member_id=answer.member_id, **fields), timeout=20)
    assert answer.error_code == 0, name_of(answer.error_code)
    assigned = coordinator_pb2.SyncGroupRequest.Assignment(member_id=answer.member_id, assignment=b"a")
    synced = await stub.SyncGroup(
        coordinator_pb2.SyncGroupRequest(
            group_id=group_id,
            generation=answer.generation,
            member_id=answer.member_id,
            assignments=[assigned],
        ),
        timeout=20,
    )
    assert synced.error_code == 0, name_of(synced.error_code)
    return answer.member_id, answer.generation
