"""A metadata instance that pushes chosen views and fails on command, over real gRPC.

The real one needs a log and finds out by itself who lives; these tests are about what its clients do with
what it says, and with its silence.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import common_pb2, discovery_pb2

LIVE = discovery_pb2.COORDINATOR_STATE_LIVE
DRAINING = discovery_pb2.COORDINATOR_STATE_DRAINING
DEAD = discovery_pb2.COORDINATOR_STATE_DEAD

Owner = tuple[int, str]
"""Epoch and node of a shard's owner."""


def cluster(
    owners: dict[int, Owner],
    nodes: dict[str, "discovery_pb2.CoordinatorState.ValueType"] | None = None,
    *,
    shard_count: int = 4,
    cluster_id: str = "c1",
) -> discovery_pb2.Cluster:
    """A picture of the cluster: who owns which shard, and who lives (all owners, if `nodes` is absent)."""
    states = {name: LIVE for _, name in owners.values() if name} if nodes is None else nodes
    return discovery_pb2.Cluster(
        cluster_id=cluster_id,
        shard_count=shard_count,
        coordinators=[
            discovery_pb2.CoordinatorNode(node_id=name, host=f"{name}.test", port=7410, state=state)
            for name, state in sorted(states.items())
        ],
        shards=[
            discovery_pb2.ShardOwner(shard=shard, shard_epoch=epoch, node_id=name, serving=True)
            for shard, (epoch, name) in sorted(owners.items())
        ],
    )


def catalog(topics: dict[str, int], offset: int) -> metadata_pb2.TopicCatalog:
    """A catalog at a place of its log, in epoch 1."""
    return metadata_pb2.TopicCatalog(
        topics=[discovery_pb2.Topic(name=n, partitions=p) for n, p in sorted(topics.items())],
        version=common_pb2.Position(epoch=1, offset=offset),
    )


class MetadataStandIn(metadata_pb2_grpc.MetadataServiceServicer):
    """Pushes what `push` is given to every watcher.

    Attributes:
        answers: changes of topics wait until it is set.
    """

    def __init__(self) -> None:
        self.port = 0
        self.watchers = 0
        self.watches = 0
        self.silent = False
        self.refuses = False
        self.changes: list[metadata_pb2.ChangeTopicRequest] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.on_change: (
            Callable[[metadata_pb2.ChangeTopicRequest], metadata_pb2.ChangeTopicResponse] | None
        ) = None
        self._message: metadata_pb2.WatchResponse | None = None
        self._number = 0
        self._generation = 0
        self._news = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> "MetadataStandIn":
        # A server that minds its clients' pings would end a stream on which nothing else is sent.
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        metadata_pb2_grpc.add_MetadataServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def push(
        self, new_cluster: discovery_pb2.Cluster, new_catalog: metadata_pb2.TopicCatalog | None = None
    ) -> None:
        message = metadata_pb2.WatchResponse(cluster=new_cluster, catalog=new_catalog, lease_ms=2_000)
        self.send(message)

    def send(self, message: metadata_pb2.WatchResponse) -> None:
        """The next message of every watcher."""
        self._message = message
        self._number += 1
        self._news.set()
        self._news = asyncio.Event()

    def end_watches(self) -> None:
        """Ends every watch that stands."""
        self._generation += 1
        self._news.set()
        self._news = asyncio.Event()

    async def Watch(
        self, request: metadata_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[metadata_pb2.WatchResponse]:
        self.watches += 1
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no majority stands behind it")
        self.watchers += 1
        try:
            sent, generation = 0, self._generation
            while generation == self._generation:
                if self._message is not None and self._number > sent and not self.silent:
                    sent = self._number
                    yield self._message
                else:
                    await self._news.wait()
        finally:
            self.watchers -= 1

    async def ChangeTopic(
        self, request: metadata_pb2.ChangeTopicRequest, context: Any
    ) -> metadata_pb2.ChangeTopicResponse:
        self.changes.append(request)
        await self.answers.wait()
        if self.on_change is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "told to fail")
            raise AssertionError
        return self.on_change(request)
