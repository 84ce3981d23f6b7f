"""A stranger deletes W's topic, creates another one of its name, and makes that as large as it may be.

Must hold: who may not change topics changes none.
"""

import asyncio
from typing import Any

from abuse.caller import connection, name_of
from abuse.innocent import TOPIC
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

STANDS_OPEN = "anybody may create, enlarge and delete topics"

PARTITIONS = 1_000
MOST_PARTITIONS = 100_000
AFTER_S = 3.0


async def attack(target: Target) -> str:
    begins()
    async with connection(target.servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        other = discovery_pb2.Topic(name=TOPIC, partitions=PARTITIONS)
        await stub.CreateTopic(
            discovery_pb2.CreateTopicRequest(topic=other), timeout=20
        )  # W's cluster has it already
        answers = [await stub.DeleteTopic(discovery_pb2.DeleteTopicRequest(name=TOPIC), timeout=20)]
        await asyncio.sleep(AFTER_S)
        answers.append(await stub.CreateTopic(discovery_pb2.CreateTopicRequest(topic=other), timeout=20))
        other.partitions = MOST_PARTITIONS
        answers.append(await stub.AlterTopic(discovery_pb2.AlterTopicRequest(topic=other), timeout=20))
    codes = [name_of(answer.error_code) for answer in answers]
    if "NONE" in codes:
        raise Broken(f"a stranger's DeleteTopic, CreateTopic and AlterTopic were answered {codes}")
    return f"DeleteTopic, CreateTopic and AlterTopic were answered {codes}"


if __name__ == "__main__":
    stage(attack)
