"""Metadata instances over real nodes, and a writer that uses them as a coordinator does."""

import asyncio
import functools
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
from kit.leases import lease_ms
from kit.waiting import until
from muster_core.features import FEATURE_NAMES
from muster_core.position import Position
from muster_metadata.nodes.entries import LogEnd, NodeEntry
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.settings import load
from muster_server.dev.ports import free_ports
from muster_server.dev.redis_nodes import RedisNodes
from redis.asyncio import Redis

CONTAINER_IMAGE = "redis:8-trixie"
PATIENCE_S = 60.0
_DOCKER_SOCKET = "unix:///var/run/docker.sock"

WATCH = metadata_pb2.WatchRequest(
    watcher=metadata_pb2.Server(role="discovery", name="test", features=FEATURE_NAMES)
)
"""Of a watcher of this version."""


class LogNodes(Protocol):
    """Servers of one log."""

    @property
    def url(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class ContainerNode:
    """Real Redis in a container."""

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer

        self.port = free_ports(1)[0]
        self._container = (
            DockerContainer(CONTAINER_IMAGE)
            .with_bind_ports(6379, self.port)
            .with_command(
                "redis-server --appendonly yes --appendfsync always --save '' --maxmemory-policy noeviction"
            )
        )
        self._started = False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def start(self) -> None:
        if self._started:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._started = True
        await until(lambda: answers(self.url), "Redis in its container answers")

    async def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    async def stop(self) -> None:
        self._container.stop()


class ContainerNodes:
    """Several containers."""

    def __init__(self, count: int) -> None:
        self._nodes = [ContainerNode() for _ in range(count)]

    @property
    def url(self) -> str:
        return "redis://" + ",".join(node.url.removeprefix("redis://") for node in self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: int) -> ContainerNode:
        return self._nodes[index]

    async def start(self) -> None:
        for node in self._nodes:
            await node.start()

    async def stop(self) -> None:
        for node in self._nodes:
            await node.stop()


@functools.cache
def docker_problem() -> str:
    """Why containers cannot be used, with what to do; empty: they can."""
    host = os.environ.get("DOCKER_HOST", "the local socket")
    nobody = f"needs a Docker engine and none answers at {host}: start one, or set DOCKER_HOST"
    if _is_refused(os.environ.get("DOCKER_HOST", _DOCKER_SOCKET)):
        return nobody
    try:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.docker_client import DockerClient

        engine = DockerClient().client
        engine.ping()
    except Exception:
        return nobody
    images = (
        [CONTAINER_IMAGE]
        if testcontainers_config.ryuk_disabled
        else [CONTAINER_IMAGE, testcontainers_config.ryuk_image]
    )
    for image in images:
        try:
            _have(engine, image)
        except Exception:
            return f"needs the image {image}, which the Docker engine at {host} neither has nor can pull"
    return ""


def _is_refused(address: str) -> bool:
    """Whether nobody listens on a local socket. Docker's client would leave one open, which fails a test."""
    if not address.startswith("unix://"):
        return False
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(address.removeprefix("unix://")) != 0


def _have(engine: Any, image: str) -> None:
    try:
        engine.images.get(image)
    except Exception:
        engine.images.pull(image)


async def answers(url: str) -> bool:
    client: Redis = Redis.from_url(url)
    try:
        return bool(await client.ping())
    except Exception:
        return False
    finally:
        await client.aclose()


class Instance:
    """One metadata server with a channel to it."""

    def __init__(self, server: MetadataServer) -> None:
        self.server = server
        self.address = ""
        self.channel: grpc.aio.Channel
        self.stub: Any
        self.stopped = False

    async def start(self) -> "Instance":
        self.address = f"127.0.0.1:{await self.server.start()}"
        async with asyncio.timeout(PATIENCE_S):
            await self.server.metadata.ready.wait()
        self.channel = grpc.aio.insecure_channel(
            self.address, options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        self.stub = metadata_pb2_grpc.MetadataServiceStub(self.channel)
        return self

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.channel.close()
            await self.server.stop(0)

    async def step(self, shard: int, **step: Any) -> metadata_pb2.LogResult:
        """One step on a stream of its own."""
        call = self.stub.Log()
        await call.write(
            metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=7, shard=shard, **step)])
        )
        response = await call.read()
        await call.done_writing()
        assert len(response.results) == 1
        assert response.results[0].call_id == 7
        result: metadata_pb2.LogResult = response.results[0]
        return result

    async def read(self, shard: int, writer: "Writer | None" = None, first: int = 0) -> list[NodeEntry]:
        """A whole log: as its claimant, or up to the acknowledged position; tried again while nodes lag."""
        request = metadata_pb2.ReadLogRequest(shard=shard)
        if writer is not None:
            request.epoch, request.claim_nonce = writer.epoch, writer.nonce
        async with asyncio.timeout(PATIENCE_S):
            while True:
                entries = []
                async for message in self.stub.ReadLog(request):
                    if message.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN:
                        break
                    assert message.outcome == metadata_pb2.LOG_OUTCOME_OK, message
                    entries += [
                        NodeEntry(Position.from_proto(entry.position), entry.record, entry.nonce, entry.hash)
                        for entry in message.entries
                    ]
                else:
                    return [entry for entry in entries if entry.position.offset >= first]
                await asyncio.sleep(0.05)

    async def describe(self, shard: int) -> list[metadata_pb2.DescribeLogResponse.Replica]:
        response = await self.stub.DescribeLog(metadata_pb2.DescribeLogRequest(shards=[shard]))
        return list(response.replicas)


class Writer:
    """Owns a shard and writes, through any instance."""

    def __init__(self, shard: int, name: str = "c-1") -> None:
        self.shard, self.name, self.session = shard, name, f"session-of-{name}"
        self.nonce = secrets.token_bytes(16)
        self.epoch = 0
        self.end = LogEnd(Position(0, 0), b"")
        self.acknowledged: list[bytes] = []

    def claim_step(self, above_epoch: int = 0) -> metadata_pb2.ClaimStep:
        return metadata_pb2.ClaimStep(
            node_id=self.name, session=self.session, nonce=self.nonce, above_epoch=above_epoch, version="test"
        )

    async def claim(self, instance: Instance, above_epoch: int = 0) -> metadata_pb2.LogResult:
        result = await instance.step(self.shard, claim=self.claim_step(above_epoch))
        if result.outcome == metadata_pb2.LOG_OUTCOME_OK:
            self.epoch, self.end = result.epoch, LogEnd.from_proto(result.end)
        return result

    async def own(self, instance: Instance, above_epoch: int = 0) -> None:
        """Claims, again while the outcome is unknown: the shard is this writer's afterwards."""
        async with asyncio.timeout(PATIENCE_S):
            while (result := await self.claim(instance, above_epoch)).outcome != metadata_pb2.LOG_OUTCOME_OK:
                assert result.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN, result
                await asyncio.sleep(0.02)

    def batch(self, *records: bytes) -> metadata_pb2.AppendStep:
        return metadata_pb2.AppendStep(
            epoch=self.epoch,
            claim_nonce=self.nonce,
            end=self.end.to_proto(),
            records=[
                metadata_pb2.NewRecord(record=record, nonce=secrets.token_bytes(16)) for record in records
            ],
        )

    async def send(self, instance: Instance, batch: metadata_pb2.AppendStep) -> metadata_pb2.LogResult:
        result = await instance.step(self.shard, append=batch)
        if result.outcome == metadata_pb2.LOG_OUTCOME_OK:
            self.end = LogEnd.from_proto(result.end)
            self.acknowledged += [new.record for new in batch.records]
        return result

    async def append(self, instance: Instance, *records: bytes) -> metadata_pb2.LogResult:
        """Appends and repeats unchanged while the outcome is unknown."""
        batch = self.batch(*records)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                result = await self.send(instance, batch)
                if result.outcome != metadata_pb2.LOG_OUTCOME_UNKNOWN:
                    return result
                await asyncio.sleep(0.02)

    async def check(self, instance: Instance) -> metadata_pb2.LogResult:
        return await instance.step(
            self.shard, check=metadata_pb2.CheckStep(epoch=self.epoch, claim_nonce=self.nonce)
        )


class MetadataCluster:
    """Nodes and instances."""

    def __init__(self, nodes: LogNodes, settings: dict[str, Any]) -> None:
        self.nodes = nodes
        self.instances: list[Instance] = []
        self._settings = settings

    def __getitem__(self, index: int) -> Instance:
        return self.instances[index]

    async def add_instance(self) -> Instance:
        settings = load(MetadataSettings, redis_url=self.nodes.url, listen="127.0.0.1:0", **self._settings)
        instance = await Instance(MetadataServer(settings)).start()
        self.instances.append(instance)
        return instance

    @asynccontextmanager
    async def client(self, index: int) -> AsyncIterator["Redis"]:
        """A plain client of one node."""
        client: Redis = Redis.from_url(self.nodes[index].url)
        try:
            yield client
        finally:
            await client.aclose()

    async def ends(self, shard: int) -> list[tuple[int, bytes]]:
        """Number of entries and hash of the last one, on each node."""
        found = []
        for index in range(len(self.nodes)):
            async with self.client(index) as client:
                name = "catalog" if shard == self[0].server.metadata.shard_count else shard
                entries: Any = await client.xrange(f"muster:{{{name}}}:log")
                found.append((len(entries), entries[-1][1][b"h"] if entries else b""))
        return found

    async def level(self, shard: int) -> bool:
        """Whether all nodes have the same log and promise."""
        replicas = await self[0].describe(shard)
        return (
            all(replica.outcome == metadata_pb2.LOG_OUTCOME_OK for replica in replicas)
            and len({(replica.end.epoch, replica.end.offset) for replica in replicas}) == 1
            and len({replica.promised_epoch for replica in replicas}) == 1
            and len(set(await self.ends(shard))) == 1
        )

    async def stop(self) -> None:
        for instance in self.instances:
            await instance.stop()


FAST: dict[str, Any] = {
    "poll_ms": 50,
    "step_timeout_ms": 2_000,
    "claim_timeout_ms": 8_000,
    "change_timeout_ms": 20_000,
    "rebuild_delay_ms": 4_000,
}
"""Quick where nothing is away; a node that a busy machine keeps waiting is not."""
BRIEF_LEASE_MS = 1_000


def fast() -> dict[str, Any]:
    """Settings of an instance that is quick, with the lease that the test has; a renewal may take as long."""
    lease = lease_ms(BRIEF_LEASE_MS)
    return FAST | {"lease_ms": lease, "renew_timeout_ms": min(lease // 5, 2_000)}


@asynccontextmanager
async def metadata_cluster(
    folder: Path,
    node_count: int = 3,
    instances: int = 1,
    shards: int = 4,
    nodes: LogNodes | None = None,
    features: Iterable[str] = FEATURE_NAMES,
    fsync: str = "always",
    **settings: Any,
) -> AsyncIterator[MetadataCluster]:
    """An initialised cluster with some instances, stopped at the end.

    With `fsync` "everysec" nodes that restart may have forgotten something, and count for that.
    """
    running = RedisNodes(folder, node_count, fsync) if nodes is None else nodes
    await running.start()
    cluster = MetadataCluster(running, fast() | settings)
    try:
        await initialise(running.url, shards, features=features)
        for _ in range(instances):
            await cluster.add_instance()
        yield cluster
    finally:
        await cluster.stop()
        for index in range(len(running)):
            node = running[index]
            if isinstance(running, RedisNodes) and node.process.running:
                node.resume()
        await running.stop()


def records(entries: Sequence[NodeEntry]) -> list[bytes]:
    """The bytes of what writers appended: everything but Genesis and Claims."""
    return [entry.record for entry in entries if entry.record.startswith(b"w:")]
