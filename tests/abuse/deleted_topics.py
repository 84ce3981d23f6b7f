"""A stranger deletes W's topic, creates another one of its name, and makes that as large as it may be.

He may do what W may: work, and create a topic. Must hold: who may not change topics changes none.
"""

import asyncio
from pathlib import Path
from typing import Any

from abuse.caller import connection, name_of
from abuse.innocent import TOPIC
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

SETTINGS = {"MUSTER_ACCESS_FILE": str(Path(__file__).with_name("workers_rights.toml"))}
PARTITIONS = 1_000
MOST_PARTITIONS = 100_000
AFTER_S = 3.0


async def attack(target: Target) -> str:
    begins()
    other = discovery_pb2.Topic(name=TOPIC, partitions=PARTITIONS)
    larger = discovery_pb2.Topic(name=TOPIC, partitions=MOST_PARTITIONS)
    async with connection(target.servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)

        async def create() -> str:
            return await answer(stub.CreateTopic(discovery_pb2.CreateTopicRequest(topic=other), timeout=20))

        await create()  # W's cluster has it already
        answers = [
            await answer(stub.DeleteTopic(discovery_pb2.DeleteTopicRequest(name=TOPIC), timeout=20)),
            await answer(stub.AlterTopic(discovery_pb2.AlterTopicRequest(topic=larger), timeout=20)),
        ]
        await asyncio.sleep(AFTER_S)
        answers.append(await create())
    said = f"DeleteTopic, AlterTopic and CreateTopic of a stranger were answered {answers}"
    if answers != ["TOPIC_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_ALREADY_EXISTS"]:
        raise Broken(said)
    return said


async def answer(call: Any) -> str:
    return name_of((await call).error_code)


if __name__ == "__main__":
    stage(attack, settings=SETTINGS)
