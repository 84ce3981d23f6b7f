"""Five thousand members of an incremental group on one stream, who all change what they subscribe to at once.

Each change asks for a new target, and heartbeats wait for it. Must hold: W does not notice.
"""

import asyncio
import time
import uuid
from collections import Counter
from typing import Any

from abuse.caller import connection, name_of
from abuse.lab import Target, begins, stage
from abuse.session import Session
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

TOPICS = ("polled", "polled-too")
PARTITIONS = 1_000
MEMBERS = 5_000
AT_A_TIME = 500
FOR_S = 15.0
PATIENCE_S = 60.0


async def attack(target: Target) -> str:
    topics: Any
    (group,) = await target.groups(1, "polled")
    async with connection(target.servers) as servers:
        topics = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(servers)
        for name in TOPICS:
            topic = discovery_pb2.Topic(name=name, partitions=PARTITIONS)
            await topics.CreateTopic(discovery_pb2.CreateTopicRequest(topic=topic), timeout=60)
    members = [
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=str(uuid.uuid4()),
            member_seq=1,
            process_id=uuid.uuid4().bytes,
            rebalance_timeout_ms=1_800_000,
        )
        for _ in range(MEMBERS)
    ]
    said, rounds, most = Counter[str](), 0, 0
    async with connection(target.owner) as channel, Session(channel, keep=True) as session:
        await everybody(session, members, said, TOPICS[:1], owned=True)
        joined = dict(said)
        begins()
        ends_s = time.monotonic() + FOR_S
        while time.monotonic() < ends_s and not session.ended:
            rounds += 1
            most = max(most, await everybody(session, members, said, TOPICS[: 1 + rounds % 2]))
    return f"joined {joined}; {rounds} rounds, at most {most:,} at a time: {dict(said)}; {session.ended}"


async def everybody(
    session: Session,
    members: list[ConsumerGroupHeartbeatRequest],
    said: Counter[str],
    topics: tuple[str, ...],
    *,
    owned: bool = False,
) -> int:
    """Has all members say what they subscribe to; how many of them waited for an answer at a time."""
    most = 0
    for first in range(0, len(members), AT_A_TIME):
        some = members[first : first + AT_A_TIME]
        for member in some:
            member.topics.names[:] = topics
            if owned:
                member.owned.SetInParent()
        session.call("consumer_group_heartbeat", some, connection=1)
        await asyncio.sleep(0.1)
        most = max(most, session.asked - session.answered)
    await session.until_answered(session.asked, PATIENCE_S)
    numbers = range(session.asked - len(members) + 1, session.asked + 1)
    for number, member in zip(numbers, members, strict=True):
        reply = session.answers.pop(number, None)
        if reply is None:
            said["no answer"] += 1
            continue
        answer = reply.consumer_group_heartbeat
        said[name_of(answer.error_code)] += 1
        if not answer.error_code and answer.member_epoch > 0:
            member.member_epoch = answer.member_epoch
            member.version.CopyFrom(answer.version)
        member.ClearField("owned")
    return most


if __name__ == "__main__":
    stage(attack, protocol="incremental")
