"""A hundred session streams that ask for 560 MB each and never read.

Must hold: what waits for clients is bounded for the process, those who do not read are cut off, and W does
not notice.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
from abuse.caller import connection
from abuse.lab import Target, begins, stage
from abuse.unread_answers import prepare
from kit.programs import Broken
from muster_protos.muster.v1 import session_pb2

STREAMS = 100
PER_CONNECTION = 10
CALLS = 40
PATIENCE_S = 90.0


async def open_stream(channel: grpc.aio.Channel, group_id: str) -> Any:
    """A stream with its questions asked."""
    opened: Any = channel.stream_stream(
        "/muster.v1.GroupSessionService/Session",
        request_serializer=session_pb2.SessionRequest.SerializeToString,
        response_deserializer=lambda received: received,
    )()
    hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="attacker", beat_interval_ms=60_000))
    await opened.write(session_pb2.SessionRequest(frames=[hello]))
    message = session_pb2.SessionRequest()
    for number in range(1, CALLS + 1):
        call = message.frames.add().call
        call.call_id = number
        call.offset_fetch.groups.add(group_id=group_id)
    await opened.write(message)
    return opened


async def attack(target: Target) -> str:
    group_id = await prepare(target)
    await asyncio.sleep(1)
    begins()
    async with AsyncExitStack() as stack:
        streams = []
        for number in range(STREAMS):
            if number % PER_CONNECTION == 0:
                channel = await stack.enter_async_context(connection(target.owner))
            streams.append(await open_stream(channel, group_id))
        done, open_still = await asyncio.wait(
            [asyncio.create_task(stream.code()) for stream in streams], timeout=PATIENCE_S
        )
        for task in open_still:
            task.cancel()
    if open_still:
        raise Broken(f"{len(open_still)} of {STREAMS} unread streams are open after {PATIENCE_S:g} s")
    codes = sorted({task.result().name for task in done})
    return f"{STREAMS} streams ended: {', '.join(codes)}"


if __name__ == "__main__":
    stage(attack, coordinator_mb=900)
