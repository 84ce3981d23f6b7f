"""Coordinators in this process, on metadata in memory or any other, and plain calls to them."""

import asyncio
from itertools import count, islice
from typing import Any

from kit.callers_by_header import named_channel
from kit.leases import lease_ms
from kit.metadata.metadata_in_memory import MemoryMetadata, MemoryStore
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import CoordinatorSettings, GroupSettings, SessionSettings, ShardLogSettings
from muster_core.sharding import shard_of
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc
from muster_runtime.addresses import Address, parse_addresses
from muster_runtime.rpc.quotas import QuotaSettings
from muster_runtime.rpc.trust.trust import Trust

SHARDS = 4


BRIEF_LEASE_MS = 2_000
"""The default of the product."""


def group_of(shard: int, number: int = 0, shards: int = SHARDS) -> str:
    """The name of a group of a shard."""
    names = (name for name in map("g{}".format, count()) if shard_of(name, shards) == shard)
    return next(islice(names, number, None))  # no more than are asked for: the loop stands still meanwhile


class Caller:
    """Plain calls to one coordinator, in the name of somebody where its servers go by `NamedCallers`."""

    def __init__(self, coordinator: Coordinator, who: str = "") -> None:
        self.address = str(coordinator.address)
        self.channel: Any = named_channel(self.address, who)
        self.stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(self.channel)

    async def join(
        self, group_id: str, member_id: str = "", **fields: Any
    ) -> coordinator_pb2.JoinGroupResponse:
        usual: dict[str, Any] = {
            "protocols": [coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
        }
        request = coordinator_pb2.JoinGroupRequest(
            group_id=group_id, member_id=member_id, protocol_type="consumer", **usual | fields
        )
        answer: coordinator_pb2.JoinGroupResponse = await self.stub.JoinGroup(request, timeout=60)
        if answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
            return await self.join(group_id, answer.member_id, **fields)
        return answer

    async def sync(
        self, group_id: str, joined: coordinator_pb2.JoinGroupResponse
    ) -> coordinator_pb2.SyncGroupResponse:
        answer: coordinator_pb2.SyncGroupResponse = await self.stub.SyncGroup(
            coordinator_pb2.SyncGroupRequest(
                group_id=group_id,
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=[
                    coordinator_pb2.SyncGroupRequest.Assignment(member_id=member.member_id, assignment=b"a")
                    for member in joined.members
                ],
            ),
            timeout=60,
        )
        return answer

    async def heartbeat(
        self, group_id: str, joined: coordinator_pb2.JoinGroupResponse
    ) -> coordinator_pb2.HeartbeatResponse:
        answer: coordinator_pb2.HeartbeatResponse = await self.stub.Heartbeat(
            coordinator_pb2.HeartbeatRequest(
                group_id=group_id, member_id=joined.member_id, generation=joined.generation
            ),
            timeout=60,
        )
        return answer

    async def commit(
        self,
        group_id: str,
        offset: int,
        joined: coordinator_pb2.JoinGroupResponse | None = None,
        topic: str = "t",
    ) -> "common_pb2.ErrorCode.ValueType":
        committed = coordinator_pb2.OffsetCommitRequest.Topic(
            name=topic, partitions=[coordinator_pb2.OffsetCommitRequest.Partition(partition=0, offset=offset)]
        )
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=group_id,
            member_id=joined.member_id if joined else "",
            generation=joined.generation if joined else -1,
            topics=[committed],
        )
        answer: coordinator_pb2.OffsetCommitResponse = await self.stub.OffsetCommit(request, timeout=60)
        return answer.topics[0].partitions[0].error_code

    async def fetch(self, *group_ids: str, topic: str = "t") -> list[tuple[int, int]]:
        """Error and offset of partition 0 of each group; -2: no partition in the answer."""
        request = coordinator_pb2.OffsetFetchRequest(
            groups=[
                coordinator_pb2.OffsetFetchRequest.Group(
                    group_id=group_id, topics=[common_pb2.TopicPartitions(topic=topic, partitions=[0])]
                )
                for group_id in group_ids
            ]
        )
        answer: coordinator_pb2.OffsetFetchResponse = await self.stub.OffsetFetch(request, timeout=60)
        return [
            (group.error_code, group.topics[0].partitions[0].offset if group.topics else -2)
            for group in answer.groups
        ]

    async def close(self) -> None:
        await self.channel.close()


class Coordinators:
    """Some coordinators on given metadata addresses."""

    def __init__(self, metadata: list[str]) -> None:
        self.metadata = metadata
        self.running: list[Coordinator] = []
        self.callers: list[Caller] = []

    async def add(
        self,
        node_id: str,
        *,
        group: GroupSettings | None = None,
        session: SessionSettings | None = None,
        shard_log: ShardLogSettings | None = None,
        trust: Trust | None = None,
        quotas: QuotaSettings | None = None,
        **settings: Any,
    ) -> Coordinator:
        """Starts a coordinator; returns when its lease is held."""
        addresses = parse_addresses(",".join(self.metadata))
        settings.setdefault("settle_ms", 200)
        coordinator = Coordinator(
            CoordinatorSettings(
                listen=Address("127.0.0.1", 0), node_id=node_id, metadata=addresses, **settings
            ),
            group=group or GroupSettings(initial_rebalance_delay_ms=0),
            session=session,
            shard_log=shard_log,
            trust=trust,
            quotas=quotas,
        )
        await coordinator.start()
        self.running.append(coordinator)
        await asyncio.wait_for(coordinator.ready(), 60)
        return coordinator

    def caller(self, coordinator: Coordinator, who: str = "") -> Caller:
        caller = Caller(coordinator, who)
        self.callers.append(caller)
        return caller

    async def stop(self) -> None:
        for caller in self.callers:
            await caller.close()
        for coordinator in self.running:
            await coordinator.abort()


class MemoryCluster(Coordinators):
    """Coordinators on one or more instances of metadata in memory."""

    def __init__(self) -> None:
        super().__init__([])
        self.lease_ms = lease_ms(BRIEF_LEASE_MS)
        self.store = MemoryStore(SHARDS)
        self.instances: list[MemoryMetadata] = []

    async def start(self, instances: int = 1) -> None:
        for _ in range(instances):
            instance = await MemoryMetadata(self.store, self.lease_ms).start()
            self.instances.append(instance)
            self.metadata.append(instance.target)

    async def stop(self) -> None:
        await super().stop()
        for instance in self.instances:
            await instance.stop()


async def kill(coordinator: Coordinator) -> None:
    """Ends a coordinator as a kill does: its lease's stream breaks, and metadata knows at once.

    `abort` says goodbye there, so that its successor waits for the end of the lease.
    """
    assert coordinator._parts is not None
    lease: Any = coordinator._parts.lease

    def broken_off() -> None:
        stream, lease._stream = lease._stream, None
        if stream is not None:
            stream._channel.close()

    lease._drop_stream = broken_off  # whichever stream it has by then: a late answer brings another one
    await coordinator.abort()


async def owns(coordinator: Coordinator, count: int) -> None:
    """Waits until a coordinator serves so many shards."""
    await until(lambda: len(coordinator.serving) == count)
