"""Streams that ask a thousand times in one message for a thousand partitions each.

Must hold: such answers are built one after the other, with the loop left to others between them, and W does
not notice.
"""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from abuse.caller import commit, connection, groups_stub
from abuse.lab import Target, begins, stage
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

STREAMS = 4
CALLS = 1_000
PARTITIONS = 1_000
PATIENCE_S = 20.0


def questions(group_id: str) -> session_pb2.SessionRequest:
    """One message with all of them."""
    message = session_pb2.SessionRequest()
    for number in range(1, CALLS + 1):
        call = message.frames.add().call
        call.call_id = number
        call.offset_fetch.groups.add(group_id=group_id).topics.add(topic="t", partitions=range(PARTITIONS))
    return message


async def ask(target: Target, group_id: str) -> int:
    """Asks on a connection of its own and reads what comes; gives how many answers came."""
    answers = 0
    async with connection(target.owner) as channel:
        stream: Any = channel.stream_stream(
            "/muster.v1.GroupSessionService/Session",
            request_serializer=session_pb2.SessionRequest.SerializeToString,
            response_deserializer=session_pb2.SessionResponse.FromString,
        )()
        hello = session_pb2.ClientFrame(
            hello=session_pb2.Hello(client_id="attacker", beat_interval_ms=60_000)
        )
        await stream.write(session_pb2.SessionRequest(frames=[hello]))
        await stream.write(questions(group_id))
        with suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(PATIENCE_S):
                while answers < CALLS and (message := await stream.read()) is not grpc.aio.EOF:
                    answers += sum(frame.HasField("reply") for frame in message.frames)
        stream.cancel()
    return answers


async def attack(target: Target) -> str:
    (group_id,) = await target.groups(1, "bulk")
    async with connection(target.owner) as channel:
        partitions = [
            coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=1)
            for number in range(PARTITIONS)
        ]
        await groups_stub(channel).OffsetCommit(commit(group_id, partitions), timeout=30)
    begins()
    answers = await asyncio.gather(*(ask(target, group_id) for _ in range(STREAMS)))
    return f"{STREAMS} streams asked {CALLS:,} times each; answered {answers}"


if __name__ == "__main__":
    stage(attack, coordinator_mb=900)
