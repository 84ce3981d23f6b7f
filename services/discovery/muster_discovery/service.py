"""The RPCs of discovery."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from muster_core.sharding import shard_of
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import host_in_peer
from muster_runtime.cluster.view import ClusterView
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.carried import to_its_end
from muster_runtime.rpc.quotas import Quota, current_connection
from muster_runtime.rpc.refusals import ResourceExhausted, Unavailable
from muster_runtime.rpc.unread import TimedWrites

from muster_discovery._checks import check_find, check_names, check_request_id, check_topic, check_topic_name
from muster_discovery._forward import Forwarder, change_id
from muster_discovery._rights import NO_RIGHT, Rights, why_not
from muster_discovery._topics import TopicReads

RETRY_AFTER_MS = 200
"""When a caller should ask again while there is no view."""

_FEW_GROUPS = 10
"""To find no more takes about as long as to find one."""

_GROUPS_AT_ONCE = 200
"""Of long names so many take milliseconds; then others have their turn."""

_NAMES_OF_A_CHANGE = 1_000
"""A change with so many names of partitions takes as long as one more change."""

_TURN_S = 0.002
"""So long watchers are told of a change at a stretch."""

T = TypeVar("T")

_SERVES = frozenset({discovery_pb2.COORDINATOR_STATE_LIVE, discovery_pb2.COORDINATOR_STATE_DRAINING})
_NO_VIEW = "this discovery instance has no view from metadata yet; try again"


class DiscoveryService(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    """Serves `CoordinatorDiscoveryService` from the pushed view of the cluster.

    Args:
        view: the cluster and the catalog; it never goes back to a lower epoch, so neither do the answers.
        forwarder: carries changes of topics to metadata.
        writes: tell those who watch the cluster.
        max_watchers: open WatchCluster calls.
        access: what callers may do; everything if absent.
    """

    def __init__(
        self,
        view: ClusterView,
        forwarder: Forwarder,
        writes: TimedWrites,
        *,
        max_watchers: int,
        access: Access | None = None,
    ) -> None:
        self._rights = Rights(Access() if access is None else access)
        self._view = view
        self._forwarder = forwarder
        self._topics = TopicReads(view)
        self._writes = writes
        self._max_watchers = max_watchers
        self._watchers: set[asyncio.Event] = set()
        self._stopping = False
        self._told: discovery_pb2.Cluster | None = None
        self._told_bytes = b""
        self._changes = 0
        self._telling: asyncio.Task[None] | None = None
        self._unsubscribe = view.subscribe(self._changed)

    @property
    def watchers(self) -> int:
        """Number of open WatchCluster calls."""
        return len(self._watchers)

    def stop(self) -> None:
        """Ends the open WatchCluster calls with UNAVAILABLE."""
        self._stopping = True
        self._unsubscribe()
        if self._telling is not None:
            self._telling.cancel()
        for changed in self._watchers:
            changed.set()

    async def FindCoordinator(
        self, request: discovery_pb2.FindCoordinatorRequest, context: Any
    ) -> discovery_pb2.FindCoordinatorResponse:
        """Names the coordinator of each group (KIP-699)."""
        check_find(request)
        connection = current_connection()
        if connection is not None and len(request.group_ids) > _FEW_GROUPS:
            connection.take_partitions(len(request.group_ids))
        response = discovery_pb2.FindCoordinatorResponse(view_age_ms=self._view.age_ms() or 0)
        seen = request.seen_epochs
        for index, group_id in enumerate(request.group_ids):
            if index % _GROUPS_AT_ONCE == _GROUPS_AT_ONCE - 1:
                await asyncio.sleep(0)
            result = response.results.add()
            if self._rights.refuses_group(group_id, context):
                result.group_id = group_id
                result.error_code = common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED
                result.error_message = why_not("FindCoordinator")
            else:
                self._find(result, group_id, seen[index] if index < len(seen) else 0)
        return response

    async def DescribeCluster(
        self, request: discovery_pb2.DescribeClusterRequest, context: Any
    ) -> discovery_pb2.DescribeClusterResponse:
        """The cluster as this instance sees it now."""
        self._rights.check_cluster("DescribeCluster", context)
        if self._view.cluster is None:
            raise Unavailable(_NO_VIEW, RETRY_AFTER_MS)
        return discovery_pb2.DescribeClusterResponse(
            cluster=self._view.cluster, view_age_ms=self._view.age_ms() or 0
        )

    async def WatchCluster(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request: discovery_pb2.WatchClusterRequest, context: Any
    ) -> None:
        """Tells of the cluster now and after every change, until the client or this instance ends it."""
        self._rights.check_cluster("WatchCluster", context)
        if len(self._watchers) >= self._max_watchers:
            raise ResourceExhausted(
                f"this discovery instance has its limit of {self._max_watchers} watchers; try another one",
                1_000,
            )
        changed = asyncio.Event()
        self._watchers.add(changed)
        sent = 0
        try:
            while not self._stopping:
                cluster = self._view.cluster
                if cluster is not None and cluster.version > sent:
                    sent = cluster.version
                    self._rights.check_cluster("WatchCluster", context)  # the right may be gone (ACC-04)
                    await self._writes.write(self._encoded(cluster), context)
                else:
                    changed.clear()
                    await changed.wait()
            raise Unavailable("this discovery instance is stopping; go on with another one", 0)
        finally:
            self._watchers.discard(changed)

    async def ListTopics(
        self, request: discovery_pb2.ListTopicsRequest, context: Any
    ) -> discovery_pb2.ListTopicsResponse:
        """Topics of the catalog, with every change that this instance acknowledged."""
        check_names(request.names)
        topics = await self._topics.list(request.names)
        return await self._rights.seen(topics, is_whole=not request.names)

    async def CreateTopic(
        self, request: discovery_pb2.CreateTopicRequest, context: Any
    ) -> discovery_pb2.CreateTopicResponse:
        """Adds a topic."""
        check_topic(request.topic)
        if self._rights.refuses_topic("CreateTopic", request.topic.name, context):
            return discovery_pb2.CreateTopicResponse(
                error_code=NO_RIGHT, error_message=why_not("CreateTopic")
            )
        self._topics.check_zones(request.topic)
        self._topics.check_names(request.topic)
        change = metadata_pb2.ChangeTopicRequest(create=request.topic)
        answer = await self._change("CreateTopic", request.topic.name, change, request.request_id, context)
        return _answered(discovery_pb2.CreateTopicResponse, answer)

    async def AlterTopic(
        self, request: discovery_pb2.AlterTopicRequest, context: Any
    ) -> discovery_pb2.AlterTopicResponse:
        """Raises the number of partitions of a topic, or sets their zones."""
        check_topic(request.topic)
        if self._rights.refuses_topic("AlterTopic", request.topic.name, context):
            return discovery_pb2.AlterTopicResponse(error_code=NO_RIGHT, error_message=why_not("AlterTopic"))
        self._topics.check_zones(request.topic)
        change = metadata_pb2.ChangeTopicRequest(alter=request.topic)
        answer = await self._change("AlterTopic", request.topic.name, change, request.request_id, context)
        return _answered(discovery_pb2.AlterTopicResponse, answer)

    async def AlterPartitions(
        self, request: discovery_pb2.AlterPartitionsRequest, context: Any
    ) -> discovery_pb2.AlterPartitionsResponse:
        """Adds, weighs and removes partitions of a topic with names."""
        check_topic_name(request.topic, "topic")
        if self._rights.refuses_topic("AlterPartitions", request.topic, context):
            return discovery_pb2.AlterPartitionsResponse(
                error_code=NO_RIGHT, error_message=why_not("AlterPartitions")
            )
        self._topics.check_alteration()
        change = metadata_pb2.ChangeTopicRequest(alter_partitions=request)
        answer = await self._change("AlterPartitions", request.topic, change, request.request_id, context)
        return _answered(discovery_pb2.AlterPartitionsResponse, answer)

    async def DeleteTopic(
        self, request: discovery_pb2.DeleteTopicRequest, context: Any
    ) -> discovery_pb2.DeleteTopicResponse:
        """Removes a topic."""
        check_topic_name(request.name)
        if self._rights.refuses_topic("DeleteTopic", request.name, context):
            return discovery_pb2.DeleteTopicResponse(
                error_code=NO_RIGHT, error_message=why_not("DeleteTopic")
            )
        change = metadata_pb2.ChangeTopicRequest(delete=request.name)
        answer = await self._change("DeleteTopic", request.name, change, request.request_id, context)
        return discovery_pb2.DeleteTopicResponse(
            error_code=answer.error_code,
            error_message=answer.error_message,
            catalog_version=answer.version.offset,
        )

    async def _change(
        self, method: str, name: str, change: metadata_pb2.ChangeTopicRequest, request_id: str, context: Any
    ) -> metadata_pb2.ChangeTopicResponse:
        # What gRPC knows of the call is asked now: it must not be asked when the caller has left.
        where, remaining_s = host_in_peer(context.peer()), context.time_remaining()

        async def changed() -> metadata_pb2.ChangeTopicResponse:
            answer = await self._carried_out(change, request_id, remaining_s)
            self._rights.changed(method, name, where, answer.error_code)
            return answer

        return await to_its_end(changed())

    async def _carried_out(
        self, change: metadata_pb2.ChangeTopicRequest, request_id: str, remaining_s: float | None
    ) -> metadata_pb2.ChangeTopicResponse:
        check_request_id(request_id)
        connection = current_connection()
        # A fleet may create the topic that all of its workers share: those that come late change nothing.
        if connection is not None and not (
            change.HasField("create") and self._topics.knows(change.create.name)
        ):
            connection.take(Quota.TOPIC_CHANGES, _cost(change))
        change.change_id = change_id(request_id)
        before = self._topics.version
        answer = await self._forwarder.change(change, remaining_s)
        if answer.error_code == common_pb2.ERROR_CODE_NONE:
            await self._topics.changed(answer, before)
        return answer

    def _find(
        self, result: discovery_pb2.FindCoordinatorResponse.Result, group_id: str, seen_epoch: int
    ) -> None:
        result.group_id = group_id
        if not group_id:
            result.error_code = common_pb2.ERROR_CODE_INVALID_GROUP_ID
            result.error_message = "a group id must not be empty"
            return
        cluster = self._view.cluster
        if cluster is None:
            result.error_code = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
            result.error_message = _NO_VIEW
            return
        shard = shard_of(group_id, cluster.shard_count)
        result.coordinator.shard = shard
        owner = self._view.owner(shard)
        node = None if owner is None else self._view.node(owner.node_id)
        problem = _problem(shard, owner, node, seen_epoch)
        if problem or owner is None or node is None:
            result.error_code = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
            result.error_message = problem
            return
        result.coordinator.node_id = node.node_id
        result.coordinator.host = node.host
        result.coordinator.port = node.port
        result.coordinator.shard_epoch = owner.shard_epoch

    def _encoded(self, cluster: discovery_pb2.Cluster) -> bytes:
        """What watchers are told of the newest cluster: the same bytes, for whoever watches (LIM-65)."""
        if self._told is not cluster:
            self._told = cluster
            self._told_bytes = discovery_pb2.WatchClusterResponse(cluster=cluster).SerializeToString()
        return self._told_bytes

    def _changed(self) -> None:
        self._changes += 1
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Wakes the watchers in turns: a thousand hold all others for a tenth of a second."""
        try:
            told = 0
            while told < self._changes:
                told = self._changes
                share = LoopShare()
                for changed in tuple(self._watchers):
                    changed.set()
                    await asyncio.sleep(0)  # the watcher has its turn
                    if share.taken_s > _TURN_S:
                        await share.rest()
        finally:
            self._telling = None


def _cost(change: metadata_pb2.ChangeTopicRequest) -> int:
    """How many changes a change counts as: its names are looked at one by one where the log is written."""
    altered = change.alter_partitions
    named = len(altered.put) + len(altered.remove) + len(change.create.names.partitions)
    return 1 + named // _NAMES_OF_A_CHANGE


def _answered(kind: Callable[..., T], answer: metadata_pb2.ChangeTopicResponse) -> T:
    """What metadata answered to a change of a topic, as callers get it."""
    return kind(
        error_code=answer.error_code,
        topic=answer.topic,
        error_message=answer.error_message,
        catalog_version=answer.version.offset,
    )


def _problem(
    shard: int,
    owner: discovery_pb2.ShardOwner | None,
    node: discovery_pb2.CoordinatorNode | None,
    seen_epoch: int,
) -> str:
    """Why no coordinator can be named for a shard; empty if one can."""
    if owner is not None and owner.shard_epoch < seen_epoch:
        return (
            f"this discovery instance knows epoch {owner.shard_epoch} of shard {shard}, "
            f"older than epoch {seen_epoch} that was seen before; try again"
        )
    if owner is None or not owner.node_id:
        return f"shard {shard} has no owner now; try again"
    if node is None or node.state not in _SERVES:
        return f"the owner of shard {shard} is not alive and no other has taken over yet; try again"
    return ""
