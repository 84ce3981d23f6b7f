"""Coordinators on the real metadata service and a log of three embedded servers."""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from coordinator.coordinator_cluster import BRIEF_LEASE_MS, Coordinators
from kit.leases import lease_ms
from kit.metadata.metadata_instances import metadata_cluster
from muster_core.features import FEATURE_NAMES
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes
from redis.asyncio import Redis

SHARDS = 8


@asynccontextmanager
async def on_one_node(shards: int) -> AsyncIterator[Coordinators]:
    """Coordinators on a log of one server, in a folder that goes with them."""
    with tempfile.TemporaryDirectory(prefix="muster-coordinators-") as folder:
        async with metadata_cluster(Path(folder), 1, shards=shards) as metadata:
            coordinators = Coordinators([metadata[0].address])
            try:
                yield coordinators
            finally:
                await coordinators.stop()


class RealCluster(Coordinators):
    """Coordinators, and by default two instances of metadata and three servers.

    One of each does, at a third of the cost, where a test is about neither.
    """

    def __init__(
        self,
        folder: Path,
        features: Iterable[str] = FEATURE_NAMES,
        *,
        nodes: int = 3,
        instances: int = 2,
    ) -> None:
        super().__init__([])
        self.features = features
        self.lease_ms = lease_ms(BRIEF_LEASE_MS)
        self.nodes = RedisNodes(folder, nodes)
        self.instances = instances
        self.servers: list[MetadataServer] = []
        self._channel: grpc.aio.Channel
        self.stub: Any

    async def start(self) -> None:
        await self.nodes.start()
        await initialise(self.nodes.url, SHARDS, features=self.features)
        for _ in range(self.instances):
            server = MetadataServer(
                MetadataSettings.model_validate(
                    {"redis_url": self.nodes.url, "listen": "127.0.0.1:0", "lease_ms": self.lease_ms}
                )
            )
            await server.start()
            async with asyncio.timeout(60):
                await server.metadata.ready.wait()
            self.servers.append(server)
            self.metadata.append(server.address)
        self._channel = grpc.aio.insecure_channel(self.metadata[0])
        self.stub = metadata_pb2_grpc.MetadataServiceStub(self._channel)

    async def stop(self) -> None:
        await super().stop()
        await self._channel.close()
        for server in self.servers:
            await server.stop(0)
        await self.nodes.stop()

    async def log(self, shard: int) -> list[records_pb2.Record]:
        """The records of a shard, from the node that has most of them."""
        longest: list[Any] = []
        for node in self.nodes:
            client: Redis = Redis.from_url(node.url)
            entries: Any = await client.xrange(f"muster:{{{shard}}}:log")
            await client.aclose()
            longest = max(longest, entries, key=len)
        return [records_pb2.Record.FromString(fields[b"r"]) for _, fields in longest]

    async def records(self, shard: int, kind: str) -> list[Any]:
        """The records of a kind in a shard's log."""
        return [getattr(r, kind) for r in await self.log(shard) if r.WhichOneof("kind") == kind]

    async def claim(self, shard: int, *then: records_pb2.Record) -> int:
        """Claims a shard for somebody who is no coordinator, and writes; returns the epoch."""
        nonce, call = secrets.token_bytes(16), self.stub.Log()
        step = metadata_pb2.ClaimStep(node_id="another", session="s", nonce=nonce)
        await call.write(
            metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=1, shard=shard, claim=step)])
        )
        result: metadata_pb2.LogResult = (await call.read()).results[0]
        assert result.outcome == metadata_pb2.LOG_OUTCOME_OK
        epoch: int = result.epoch
        if then:
            records = [
                metadata_pb2.NewRecord(record=r.SerializeToString(), nonce=secrets.token_bytes(16))
                for r in then
            ]
            batch = metadata_pb2.AppendStep(epoch=epoch, claim_nonce=nonce, end=result.end, records=records)
            await call.write(
                metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=2, shard=shard, append=batch)])
            )
            result = (await call.read()).results[0]
            assert result.outcome == metadata_pb2.LOG_OUTCOME_OK
        call.cancel()
        return epoch

    async def change_topic(self, **change: Any) -> None:
        """Changes the catalog."""
        answer = await self.stub.ChangeTopic(metadata_pb2.ChangeTopicRequest(**change))
        assert not answer.error_code, answer
