"""Offsets in 200,000 topics; then a topic that nobody uses is created and deleted, again and again.

Must hold: nobody looks through these offsets for it, and W does not notice.
"""

import time
from collections import Counter
from functools import partial
from typing import Any

from abuse.caller import admitted, connection, groups_stub, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2, discovery_pb2_grpc

GROUPS = 20
TOPICS = 10_000
AT_ONCE = 2_500
FOR_S = 15.0


async def attack(target: Target) -> str:
    said = Counter[str]()
    async with connection(target.owner) as channel, connection(target.servers) as servers:
        await fill(groups_stub(channel), await target.groups(GROUPS, "changed-topics-"), said)
        begins()
        topics: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(servers)
        ends_s = time.monotonic() + FOR_S
        while time.monotonic() < ends_s:
            topic = discovery_pb2.Topic(name="comes-and-goes", partitions=1)
            create = discovery_pb2.CreateTopicRequest(topic=topic)
            delete = discovery_pb2.DeleteTopicRequest(name=topic.name)
            for change in (partial(topics.CreateTopic, create), partial(topics.DeleteTopic, delete)):
                said[name_of((await admitted(partial(change, timeout=60))).error_code)] += 1
    if said["NONE"] < 2 or said["offset NONE"] < GROUPS * TOPICS:
        raise Broken(f"what was to be tried was not: {dict(said)}")
    return str(dict(said))


async def fill(stub: Any, groups: list[str], said: Counter[str]) -> None:
    """Commits in each group, in topics of its own."""
    for group_id in groups:
        for begin in range(0, TOPICS, AT_ONCE):
            request = coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1)
            for number in range(begin, begin + AT_ONCE):
                entry = request.topics.add(name=f"{group_id}-{number}")
                entry.partitions.add(partition=0, offset=1)
            answer = await admitted(partial(stub.OffsetCommit, request, timeout=60))
            for topic in answer.topics:
                said.update(f"offset {name_of(one.error_code)}" for one in topic.partitions)


if __name__ == "__main__":
    stage(attack, coordinator_mb=400)
