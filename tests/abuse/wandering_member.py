"""A member is attached on one stream after the other, of a thousand: each takes it from the one before.

Must hold: one stream alone has the member in the end, and W does not notice.
"""

import asyncio
import time
from contextlib import AsyncExitStack

from abuse.caller import connection, groups_stub, joined
from abuse.lab import Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from muster_protos.muster.v1 import session_pb2

STREAMS = 1_000
PER_CONNECTION = 100
AT_ONCE = 50
FOR_S = 12.0
QUIET_S = 5.0
"""Where nothing was answered for so long, nothing more will be."""


async def attack(target: Target) -> str:
    [group_id] = await target.groups(1, "wandering-")
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(connection(target.owner))
        member_id, generation = await joined(groups_stub(channel), group_id)
        attach = session_pb2.ClientFrame(
            attach=session_pb2.Attach(group_id=group_id, member_id=member_id, generation=generation)
        )
        streams = []
        for number in range(STREAMS):
            if number % PER_CONNECTION == 0:
                channel = await stack.enter_async_context(connection(target.owner))
                await asyncio.sleep(0.1)
            streams.append(await stack.enter_async_context(Session(channel)))
        await asyncio.sleep(2)
        begins()
        ends_s, sent = time.monotonic() + FOR_S, 0
        while time.monotonic() < ends_s:
            for stream in streams[:AT_ONCE]:
                stream.send(attach)
            sent += AT_ONCE
            streams = streams[AT_ONCE:] + streams[:AT_ONCE]
            await asyncio.sleep(0.001)
        answered = await settled(streams, sent)
    attached = sum(place_of(stream) for stream in streams)
    if attached != 1:
        raise Broken(f"{attached} streams have the member")
    return f"{sent:,} frames attached it, {answered:,} of them were answered"


async def settled(streams: list[Session], sent: int) -> int:
    """Waits until all are answered, or nothing more comes; returns how many attaches were answered."""
    answered, before = 0, -1
    while before < answered < sent:
        await asyncio.sleep(QUIET_S)
        answered, before = sum(map(results, streams)), answered
    return answered


def results(stream: Session) -> int:
    """How many attaches were answered on a stream."""
    return sum(push.HasField("attach_result") for push in stream.pushes)


def place_of(stream: Session) -> bool:
    """Whether a stream has the member: it was attached there last, and not taken away since."""
    kinds = [push.WhichOneof("kind") for push in stream.pushes]
    last = [kind for kind in kinds if kind in ("attach_result", "fenced")][-1:]
    return last == ["attach_result"]


if __name__ == "__main__":
    stage(attack)
