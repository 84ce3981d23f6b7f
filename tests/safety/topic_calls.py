"""Raw calls about topics, and commits into them from outside of a group."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import grpc.aio
from kit.clusters.linked_cluster import LinkedCluster
from kit.waiting import until
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    discovery_pb2,
    discovery_pb2_grpc,
)

NONE = common_pb2.ERROR_CODE_NONE
NO_OFFSET = -1
_CHANGE_S = 12.0
_CALL_S = 5.0
_PATIENCE_S = 40.0
_Answer = TypeVar("_Answer", discovery_pb2.CreateTopicResponse, discovery_pb2.DeleteTopicResponse)


class TopicCalls:
    """Calls to each discovery instance and coordinator of a cluster; an async context manager."""

    def __init__(self, cluster: LinkedCluster) -> None:
        self._channels: list[grpc.aio.Channel] = []
        self.discovery: list[Any] = [
            discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(self._open(process.address))
            for process in cluster.discovery
        ]
        self._coordinators: dict[str, Any] = {
            process.name: coordinator_pb2_grpc.GroupCoordinatorServiceStub(self._open(process.address))
            for process in cluster.coordinators
        }

    def _open(self, address: str) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 300)]
        self._channels.append(grpc.aio.insecure_channel(address, options=options))
        return self._channels[-1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def create(
        self, name: str, partitions: int, instance: int = 0
    ) -> discovery_pb2.CreateTopicResponse:
        """Creates a topic; one change, repeated at that instance until it is stored."""
        request = discovery_pb2.CreateTopicRequest(
            topic=discovery_pb2.Topic(name=name, partitions=partitions), request_id=secrets.token_hex(8)
        )
        stub = self.discovery[instance]
        return await _repeated(lambda: stub.CreateTopic(request, timeout=_CHANGE_S), f"{name} is created")

    async def delete(
        self, name: str, instance: int = 0, request_id: str = ""
    ) -> discovery_pb2.DeleteTopicResponse:
        """Deletes a topic; one change, repeated at that instance until it is stored."""
        request = discovery_pb2.DeleteTopicRequest(name=name, request_id=request_id or secrets.token_hex(8))
        stub = self.discovery[instance]
        return await _repeated(lambda: stub.DeleteTopic(request, timeout=_CHANGE_S), f"{name} is deleted")

    async def partitions(self, name: str, instance: int) -> int:
        """How many partitions a topic has, as an instance answers; 0: there is no such topic."""
        request = discovery_pb2.ListTopicsRequest(names=[name])

        async def listed() -> discovery_pb2.ListTopicsResponse | None:
            try:
                found: discovery_pb2.ListTopicsResponse = await self.discovery[instance].ListTopics(
                    request, timeout=_CALL_S
                )
            except grpc.aio.AioRpcError:
                return None
            return found

        answer = await until(listed, "topics are listed", _PATIENCE_S)
        return answer.topics[0].partitions if answer.topics else 0

    async def owner(self, group: str) -> str:
        """The coordinator of a group, as a discovery instance names it, once one does."""
        request = discovery_pb2.FindCoordinatorRequest(group_ids=[group])

        async def named() -> str:
            try:
                answer = await self.discovery[0].FindCoordinator(request, timeout=_CALL_S)
            except grpc.aio.AioRpcError:
                return ""
            result = answer.results[0]
            return "" if result.error_code else str(result.coordinator.node_id)

        return await until(named, f"{group} has a coordinator", _PATIENCE_S)

    async def commit_at(self, node: str, group: str, topic: str, offset: int) -> int:
        """One try of a commit to partition 0 at one coordinator; gives the error code, or -1: no answer."""
        request = coordinator_pb2.OffsetCommitRequest(group_id=group, generation=-1)
        request.topics.add(name=topic).partitions.add(partition=0, offset=offset, leader_epoch=-1)
        try:
            answer = await self._coordinators[node].OffsetCommit(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            return -1
        return int(answer.topics[0].partitions[0].error_code)

    async def commit(self, group: str, topic: str, offset: int) -> None:
        """Commits at whoever is the coordinator, until it is acknowledged."""

        async def stored() -> bool:
            return await self.commit_at(await self.owner(group), group, topic, offset) == NONE

        await until(stored, f"{offset} is committed", _PATIENCE_S)

    async def committed(self, group: str, topic: str) -> int:
        """The offset of partition 0 as the group's coordinator answers; `NO_OFFSET`: none."""
        request = coordinator_pb2.OffsetFetchRequest()
        request.groups.add(group_id=group).topics.add(topic=topic, partitions=[0])

        async def read() -> coordinator_pb2.OffsetFetchResponse.Group | None:
            stub = self._coordinators[await self.owner(group)]
            try:
                answer = await stub.OffsetFetch(request, timeout=_CALL_S)
            except grpc.aio.AioRpcError:
                return None
            return None if answer.groups[0].error_code else answer.groups[0]

        return (await until(read, "the offset is read", _PATIENCE_S)).topics[0].partitions[0].offset


async def _repeated(call: Callable[[], Awaitable[_Answer]], what: str) -> _Answer:
    async def settled() -> _Answer | None:
        try:
            answer = await call()
        except grpc.aio.AioRpcError:
            return None
        unavailable = answer.error_code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        return None if unavailable else answer

    return await until(settled, what, _PATIENCE_S)
