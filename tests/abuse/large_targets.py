"""Members of incremental groups name a topic of thousands of partitions, then another one, without end.

Must hold: each time a target of as many partitions is computed, stored and told, and W does not notice.
"""

import asyncio
import time
import uuid
from collections import Counter
from functools import partial
from typing import Any

from abuse.caller import admitted, connection, groups_stub, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

TOPICS = ("large-a", "large-b")
PARTITIONS = 3_000
GROUPS = 4
FOR_S = 15.0
PAUSE_S = 0.1


async def attack(target: Target) -> str:
    topics: Any
    async with connection(target.owner) as channel, connection(target.servers) as servers:
        topics = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(servers)
        for name in TOPICS:
            topic = discovery_pb2.Topic(name=name, partitions=PARTITIONS)
            request = discovery_pb2.CreateTopicRequest(topic=topic)
            await admitted(partial(topics.CreateTopic, request, timeout=60))
        groups = await target.groups(GROUPS, "large-targets-")
        await asyncio.sleep(2)
        begins()
        ends_s = time.monotonic() + FOR_S
        stub = groups_stub(channel)
        said = Counter[str]()
        await asyncio.gather(*(change(stub, group, ends_s, said) for group in groups))
    if not said["partitions"]:
        raise Broken(f"nothing was assigned: {dict(said)}")
    return str(dict(said))


async def change(stub: Any, group_id: str, ends_s: float, said: Counter[str]) -> None:
    """A member that names one topic after the other, and gives back what it is to give back."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=str(uuid.uuid4()),
        member_seq=1,
        process_id=uuid.uuid4().bytes,
        rebalance_timeout_ms=300_000,
    )
    request.owned.SetInParent()
    number = 0
    while time.monotonic() < ends_s:
        number += 1
        request.topics.names[:] = [TOPICS[number % 2]]
        answer = await stub.ConsumerGroupHeartbeat(request, timeout=60)
        said[name_of(answer.error_code)] += 1
        if not answer.error_code:
            request.member_epoch = answer.member_epoch
        if answer.HasField("assignment"):
            said["partitions"] += sum(len(topic.partitions) for topic in answer.assignment.given)
        await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    stage(attack, coordinator_mb=700)
