"""Strangers come and go in W's incremental group, with high weights and long holds, and alter it.

They subscribe to another topic of a thousand partitions, so W keeps its work: what must hold is that W does
not notice that its group is assigned anew all the time, and that nobody of them makes the group classic.
"""

import asyncio
import time
import uuid
from collections import Counter
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, name_of
from abuse.lab import GROUP, Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, discovery_pb2, discovery_pb2_grpc
from muster_protos.muster.v1.group_conversion_pb2 import GROUP_KIND_CLASSIC, ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

TOPIC = "churned"
PARTITIONS = 1_000
LANES = 20
FOR_S = 15.0
HOLD_MS = 3_600_000


class Stranger:
    """A member that comes, says that it gives nothing back, and goes."""

    def __init__(self, stub: Any, number: int) -> None:
        self._stub = stub
        self._request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=str(uuid.uuid4()),
            member_seq=1,
            process_id=uuid.uuid4().bytes,
            rebalance_timeout_ms=1_800_000,
            weight=1 + number % 100,
            rollout_hold_ms=HOLD_MS if number % 3 == 0 else 0,
        )

    async def join(self) -> str:
        """Joins; gives the name of the error."""
        request = self._request
        request.topics.names.append(TOPIC)
        request.owned.SetInParent()
        answer = await self._stub.ConsumerGroupHeartbeat(request, timeout=30)
        request.member_epoch = max(answer.member_epoch, 1)
        request.ClearField("topics")
        request.ClearField("owned")
        return name_of(answer.error_code)

    async def beat(self) -> str:
        """Says that it works on all that it was given."""
        return name_of((await self._stub.ConsumerGroupHeartbeat(self._request, timeout=30)).error_code)

    async def leave(self) -> str:
        """Leaves for good."""
        self._request.member_epoch = -1
        return await self.beat()


async def attack(target: Target) -> str:
    topics: Any
    async with connection(target.owner) as channel, connection(target.servers) as servers:
        stub, topics = groups_stub(channel), discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(servers)
        topic = discovery_pb2.Topic(name=TOPIC, partitions=PARTITIONS)
        await topics.CreateTopic(discovery_pb2.CreateTopicRequest(topic=topic), timeout=60)
        stays = Stranger(stub, 1)  # it cannot be classic, so the group cannot
        first = await stays.join()
        begins()
        said = Counter[str]({f"join {first}": 1})
        ends_s = time.monotonic() + FOR_S
        await asyncio.gather(
            *(churn(stub, lane, ends_s, said) for lane in range(LANES)),
            alter(stub, ends_s, said),
            convert(stub, ends_s, said),
        )
        await stays.leave()
        await stub.AlterGroupSettings(
            AlterGroupSettingsRequest(
                group_id=GROUP, unset=["hold", "assignor", "assignment_interval_ms", "heartbeat_interval_ms"]
            ),
            timeout=30,
        )
    return f"{dict(said)}"


async def churn(stub: Any, lane: int, ends_s: float, said: Counter[str]) -> None:
    """Joins, beats and leaves, again and again."""
    number = lane
    while time.monotonic() < ends_s:
        stranger = Stranger(stub, number)
        number += LANES
        for what in (stranger.join, stranger.beat, stranger.beat, stranger.leave):
            try:
                said[f"{what.__name__} {await what()}"] += 1
            except grpc.aio.AioRpcError as error:
                said[error.code().name] += 1


async def alter(stub: Any, ends_s: float, said: Counter[str]) -> None:
    """Sets one thing and the other."""
    number = 0
    while time.monotonic() < ends_s:
        number += 1
        wanted = GroupSettings(
            hold=number % 2 == 0,
            assignor=("uniform", "range")[number // 2 % 2],
            assignment_interval_ms=0,
            heartbeat_interval_ms=1_000,
        )
        request = AlterGroupSettingsRequest(group_id=GROUP, set=wanted)
        said[f"alter {name_of((await stub.AlterGroupSettings(request, timeout=30)).error_code)}"] += 1


async def convert(stub: Any, ends_s: float, said: Counter[str]) -> None:
    """Asks that the group becomes classic."""
    refused = common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL
    while time.monotonic() < ends_s:
        request = ConvertGroupRequest(group_id=GROUP, kind=GROUP_KIND_CLASSIC)
        code = (await stub.ConvertGroup(request, timeout=30)).error_code
        if code != refused and code != common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND:
            raise Broken(f"a group with members that cannot be classic: {name_of(code)}")
        said[f"convert {name_of(code)}"] += 1


if __name__ == "__main__":
    stage(attack, protocol="incremental")
