"""A cluster whose answers a test chooses: real sockets, generated servicers, no group logic of its own.

By default it plays a coordinator with one member that leads itself and owns what it assigns to itself. A test
puts answers into `script[method]`; each is used once, before the default: a response, or a function of the
request (possibly async) that gives one, or raises `Break` to end the call with a gRPC status.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from muster_protos.limits import TOPIC_NAMES_MAX, is_name
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    discovery_pb2,
    discovery_pb2_grpc,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)

NONE = common_pb2.ERROR_CODE_NONE
TOKEN = "0000000001-0000000000000007"


class Break(Exception):
    def __init__(
        self, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, retry_after_ms: int | None = None
    ) -> None:
        self.status = status
        self.trailers = () if retry_after_ms is None else (("grpc-retry-pushback-ms", str(retry_after_ms)),)


Step = Any | Callable[[Any], Any]


@dataclass
class Coordinator(coordinator_pb2_grpc.GroupCoordinatorServiceServicer):
    """One coordinator process."""

    name: str
    shard_epoch: int = 1
    script: dict[str, deque[Step]] = field(default_factory=lambda: defaultdict(deque))
    seen: list[tuple[str, Any]] = field(default_factory=list)
    generation: int = 0
    members: int = 0
    assignments: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    metadata: dict[tuple[str, int], str] = field(default_factory=dict)
    alive: Callable[[Any], Any] | None = None
    port: int = 0
    server: grpc.aio.Server | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.server = grpc.aio.server()
        self.serve(self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    def serve(self, server: grpc.aio.Server) -> None:
        coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server(self, server)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def where(self) -> common_pb2.Coordinator:
        return common_pb2.Coordinator(
            node_id=self.name, host="127.0.0.1", port=self.port, shard=0, shard_epoch=self.shard_epoch
        )

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.seen if name == method]

    async def until(self, method: str, count: int = 1) -> Any:
        """Waits for the count-th call of a method and gives its request."""
        async with asyncio.timeout(60):
            while len(self.requests(method)) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.requests(method)[count - 1]

    async def answer(self, method: str, request: Any, context: Any, default: Callable[[Any], Any]) -> Any:
        self.seen.append((method, request))
        self.changed.set()
        step: Step = self.script[method].popleft() if self.script[method] else default
        try:
            result = step(request) if callable(step) else step
            if isinstance(result, Awaitable):
                result = await result
        except Break as broken:
            await context.abort(broken.status, "as the test wants it", broken.trailers)
        return result

    async def JoinGroup(self, request: Any, context: Any) -> Any:
        return await self.answer("JoinGroup", request, context, self.join)

    async def SyncGroup(self, request: Any, context: Any) -> Any:
        return await self.answer("SyncGroup", request, context, self.sync)

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        return await self.answer("Heartbeat", request, context, self.alive or self.heartbeat)

    async def LeaveGroup(self, request: Any, context: Any) -> Any:
        return await self.answer("LeaveGroup", request, context, self.leave)

    async def OffsetCommit(self, request: Any, context: Any) -> Any:
        return await self.answer("OffsetCommit", request, context, self.commit)

    async def OffsetFetch(self, request: Any, context: Any) -> Any:
        return await self.answer("OffsetFetch", request, context, self.fetch)

    async def OffsetDelete(self, request: Any, context: Any) -> Any:
        return await self.answer("OffsetDelete", request, context, self.forget)

    async def DescribeGroups(self, request: Any, context: Any) -> Any:
        return await self.answer("DescribeGroups", request, context, self.describe)

    async def ListGroups(self, request: Any, context: Any) -> Any:
        return await self.answer(
            "ListGroups", request, context, lambda _: coordinator_pb2.ListGroupsResponse()
        )

    async def DeleteGroups(self, request: Any, context: Any) -> Any:
        return await self.answer("DeleteGroups", request, context, self.delete)

    async def GroupHistory(self, request: Any, context: Any) -> Any:
        missing = coordinator_pb2.GroupHistoryResponse(error_code=common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND)
        return await self.answer("GroupHistory", request, context, lambda _: missing)

    async def ReleaseGroup(self, request: Any, context: Any) -> Any:
        missing = coordinator_pb2.ReleaseGroupResponse(error_code=common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND)
        return await self.answer("ReleaseGroup", request, context, lambda _: missing)

    async def AlterGroupSettings(self, request: Any, context: Any) -> Any:
        done = group_settings_pb2.AlterGroupSettingsResponse(settings=request.set)
        return await self.answer("AlterGroupSettings", request, context, lambda _: done)

    async def ConvertGroup(self, request: Any, context: Any) -> Any:
        done = group_conversion_pb2.ConvertGroupResponse(
            was=group_conversion_pb2.GROUP_KIND_INCREMENTAL, generation=7
        )
        return await self.answer("ConvertGroup", request, context, lambda _: done)

    async def ConsumerGroupHeartbeat(self, request: Any, context: Any) -> Any:
        old = common_pb2.ERROR_CODE_UNSUPPORTED_VERSION
        refused = incremental_pb2.ConsumerGroupHeartbeatResponse(error_code=old)
        return await self.answer("ConsumerGroupHeartbeat", request, context, lambda _: refused)

    async def ConsumerGroupDescribe(self, request: Any, context: Any) -> Any:
        nothing = incremental_pb2.ConsumerGroupDescribeResponse()
        return await self.answer("ConsumerGroupDescribe", request, context, lambda _: nothing)

    def describe(self, request: Any) -> Any:
        dead = coordinator_pb2.GROUP_STATE_DEAD
        groups = [
            coordinator_pb2.DescribeGroupsResponse.Group(group_id=g, state=dead) for g in request.group_ids
        ]
        return coordinator_pb2.DescribeGroupsResponse(groups=groups)

    def delete(self, request: Any) -> Any:
        results = [coordinator_pb2.DeleteGroupsResponse.Result(group_id=g) for g in request.group_ids]
        return coordinator_pb2.DeleteGroupsResponse(results=results)

    def join(self, request: Any) -> Any:
        if not request.member_id and not request.group_instance_id:
            self.members += 1
            return coordinator_pb2.JoinGroupResponse(
                error_code=common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED,
                member_id=f"m-{self.members}",
                generation=-1,
                shard_epoch=self.shard_epoch,
            )
        self.generation += 1
        member_id = request.member_id or f"{request.group_instance_id}-1"
        return coordinator_pb2.JoinGroupResponse(
            generation=self.generation,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader=member_id,
            member_id=member_id,
            members=[
                coordinator_pb2.JoinGroupResponse.Member(
                    member_id=member_id,
                    group_instance_id=request.group_instance_id,
                    metadata=request.protocols[0].metadata,
                )
            ],
            shard_epoch=self.shard_epoch,
        )

    def sync(self, request: Any) -> Any:
        for entry in request.assignments:
            self.assignments[entry.member_id] = entry.assignment
        return coordinator_pb2.SyncGroupResponse(
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=self.assignments.get(request.member_id, b""),
            token=TOKEN,
            shard_epoch=self.shard_epoch,
        )

    def heartbeat(self, request: Any) -> Any:
        return coordinator_pb2.HeartbeatResponse(shard_epoch=self.shard_epoch)

    def leave(self, request: Any) -> Any:
        return coordinator_pb2.LeaveGroupResponse(shard_epoch=self.shard_epoch)

    def commit(self, request: Any) -> Any:
        for topic in request.topics:
            for partition in topic.partitions:
                self.offsets[topic.name, partition.partition] = partition.offset
                self.metadata[topic.name, partition.partition] = partition.metadata
        return commit_answer(request, NONE, self.shard_epoch)

    def forget(self, request: Any) -> Any:
        for topic in request.topics:
            for number in topic.partitions:
                self.offsets.pop((topic.topic, number), None)
        return coordinator_pb2.OffsetDeleteResponse(shard_epoch=self.shard_epoch)

    def fetch(self, request: Any) -> Any:
        group = request.groups[0]
        return coordinator_pb2.OffsetFetchResponse(
            groups=[
                coordinator_pb2.OffsetFetchResponse.Group(
                    group_id=group.group_id,
                    shard_epoch=self.shard_epoch,
                    topics=[
                        coordinator_pb2.OffsetFetchResponse.Topic(
                            name=topic.topic,
                            partitions=[
                                coordinator_pb2.OffsetFetchResponse.Partition(
                                    partition=number,
                                    offset=self.offsets.get((topic.topic, number), -1),
                                    metadata=self.metadata.get((topic.topic, number), ""),
                                )
                                for number in topic.partitions
                            ],
                        )
                        for topic in group.topics
                    ],
                )
            ]
        )


def commit_answer(
    request: Any, code: common_pb2.ErrorCode.ValueType, shard_epoch: int = 1
) -> coordinator_pb2.OffsetCommitResponse:
    return coordinator_pb2.OffsetCommitResponse(
        shard_epoch=shard_epoch,
        topics=[
            coordinator_pb2.OffsetCommitResponse.Topic(
                name=topic.name,
                partitions=[
                    coordinator_pb2.OffsetCommitResponse.Partition(partition=p.partition, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@dataclass
class ScriptedCluster(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    """Discovery in front of some coordinators, one of which owns every group."""

    coordinators: list[Coordinator]
    owner: int = 0
    topics: dict[str, int] = field(default_factory=lambda: {"t": 3})
    zones: dict[str, common_pb2.TopicZones] = field(default_factory=dict)
    names: dict[str, common_pb2.PartitionNames] = field(default_factory=dict)
    knows_no_zones: bool = False
    asked: list[discovery_pb2.FindCoordinatorRequest] = field(default_factory=list)
    script: dict[str, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    address: str = ""
    server: grpc.aio.Server | None = None

    async def start(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.start()
        self.server = grpc.aio.server()
        discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port(self.address or '127.0.0.1:0')}"
        await self.server.start()

    async def stop(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.stop()
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.script["FindCoordinator"]:
            return self.script["FindCoordinator"].popleft()
        owner = self.coordinators[self.owner].where()
        return discovery_pb2.FindCoordinatorResponse(
            results=[
                discovery_pb2.FindCoordinatorResponse.Result(group_id=group_id, coordinator=owner)
                for group_id in request.group_ids
            ]
        )

    async def DescribeCluster(self, request: Any, context: Any) -> Any:
        return discovery_pb2.DescribeClusterResponse(
            cluster=discovery_pb2.Cluster(
                cluster_id="00000000-0000-4000-8000-000000000000",
                shard_count=1,
                coordinators=[
                    discovery_pb2.CoordinatorNode(
                        node_id=c.name,
                        host="127.0.0.1",
                        port=c.port,
                        state=discovery_pb2.COORDINATOR_STATE_LIVE,
                    )
                    for c in self.coordinators
                ],
            )
        )

    async def ListTopics(self, request: Any, context: Any) -> Any:
        if len(request.names) > TOPIC_NAMES_MAX or not all(map(is_name, request.names)):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "names")
        wanted = request.names or sorted(self.topics)
        return discovery_pb2.ListTopicsResponse(topics=[self._topic(n) for n in wanted if n in self.topics])

    async def CreateTopic(self, request: Any, context: Any) -> Any:
        if self.script["CreateTopic"]:
            return self.script["CreateTopic"].popleft()
        name = request.topic.name
        code = common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS if name in self.topics else NONE
        self.topics.setdefault(name, request.topic.partitions)
        if code == NONE and request.topic.HasField("names"):
            self.names[name] = request.topic.names
        if code == NONE and not self.knows_no_zones:
            self.zones[name] = request.topic.zones
        return discovery_pb2.CreateTopicResponse(error_code=code, topic=self._topic(name))

    async def DeleteTopic(self, request: Any, context: Any) -> Any:
        code = NONE if self.topics.pop(request.name, 0) else common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
        return discovery_pb2.DeleteTopicResponse(error_code=code)

    async def AlterTopic(self, request: Any, context: Any) -> Any:
        name = request.topic.name
        if name not in self.topics:
            return discovery_pb2.AlterTopicResponse(
                error_code=common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            )
        if request.topic.partitions < self.topics[name]:
            return discovery_pb2.AlterTopicResponse(error_code=common_pb2.ERROR_CODE_INVALID_PARTITIONS)
        self.topics[name] = request.topic.partitions
        if request.topic.HasField("zones") and not self.knows_no_zones:
            self.zones[name] = request.topic.zones
        return discovery_pb2.AlterTopicResponse(topic=self._topic(name))

    async def AlterPartitions(self, request: Any, context: Any) -> Any:
        entries = self.names[request.topic].partitions
        numbers = {entry.name: number for number, entry in enumerate(entries) if entry.name}
        for put in request.put:
            if put.name not in numbers:
                entries.add(name=put.name, weight=put.weight)
            elif put.weight:
                entries[numbers[put.name]].weight = put.weight
        for name in request.remove:
            if name not in numbers:
                return discovery_pb2.AlterPartitionsResponse(
                    error_code=common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=f"topic {request.topic!r} has no partition {name!r}",
                    topic=self._topic(request.topic),
                )
            entries[numbers[name]].Clear()
        self.topics[request.topic] = len(entries)
        return discovery_pb2.AlterPartitionsResponse(topic=self._topic(request.topic))

    def _topic(self, name: str) -> discovery_pb2.Topic:
        zones = self.zones.get(name)
        return discovery_pb2.Topic(
            name=name,
            partitions=self.topics[name],
            zones=zones if zones and zones.zones else None,
            names=self.names.get(name),
        )

    async def WatchCluster(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the client does not watch")
        yield
