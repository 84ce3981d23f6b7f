"""Owners are killed while they take a snapshot, mark it, trim, or load: nothing is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.clusters.server_cluster import find, running
from kit.waiting import until
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.nodes import keys
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc
from muster_server.dev.cluster import DevCluster
from muster_server.verify.stored_logs import StoredLogs
from muster_server.verify.verifier import verify
from redis.asyncio import Redis

pytestmark = pytest.mark.cluster

GROUP = "progress"
PARTITIONS = 80  # of WORDS each: a snapshot has two parts
WITHIN_SECONDS = 60.0
SETTINGS = {"MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100", "MUSTER_SHARD_LOG_RETENTION_MS": "1"}
WORDS = "w" * 4_000


class Writer:
    """Commits to a group from outside, as an operator does, wherever its coordinator is."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._address = ""
        self.offset = 0
        self.acknowledged: dict[int, int] = {}

    async def _call(self, method: str, request: Any) -> Any:
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            try:
                if self._channel is None:
                    self._address = await find(self._servers, GROUP)
                    self._channel = grpc.aio.insecure_channel(self._address)
                    self._stub = coordinator_pb2_grpc.GroupCoordinatorServiceStub(self._channel)
                answer = await getattr(self._stub, method)(request, timeout=5)
                codes = (
                    {one.error_code for topic in answer.topics for one in topic.partitions}
                    if (method == "OffsetCommit")
                    else {group.error_code for group in answer.groups}
                )
                if codes == {common_pb2.ERROR_CODE_NONE}:
                    return answer
                problem = str(codes)
            except grpc.aio.AioRpcError as error:
                problem = f"{error.code().name}: {error.details()}"
            assert time.monotonic() < deadline, problem
            await self.close()
            await asyncio.sleep(0.05)

    async def commit(self) -> None:
        """The next offset of the next partition; repeated until it is acknowledged."""
        self.offset += 1
        partition = self.offset % PARTITIONS
        row = coordinator_pb2.OffsetCommitRequest.Partition(
            partition=partition, offset=self.offset, metadata=WORDS
        )
        topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=[row])
        await self._call(
            "OffsetCommit",
            coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=-1, topics=[topic]),
        )
        self.acknowledged[partition] = self.offset

    async def check(self) -> None:
        """Everything that was acknowledged is there, and nothing else."""
        request = coordinator_pb2.OffsetFetchRequest(
            groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=GROUP)]
        )
        answer = await self._call("OffsetFetch", request)
        (topic,) = answer.groups[0].topics
        found = {row.partition: row.offset for row in topic.partitions}
        assert found == self.acknowledged
        assert all(row.metadata == WORDS for row in topic.partitions)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


class Watch:
    """Looks at one node of the log, as fast as it can."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        assert cluster.nodes is not None
        self._redis: Any = Redis.from_url(cluster.nodes[0].url)
        with StoredLogs(cluster.redis_url) as reader:
            self.shard = shard_of(GROUP, reader.shard_count)
        self._log = f"muster:{{{self.shard}}}:log"

    async def snapshots(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = await self._redis.hgetall(f"muster:{{{self.shard}}}:snapshots")
        return found

    async def half_snapshot(self) -> bool:
        """Whether a snapshot is being stored: its marker is not written yet."""
        return b"" in (await self.snapshots()).values()

    async def last(self) -> records_pb2.Record:
        rows: Any = await self._redis.xrevrange(self._log, count=1)
        return records_pb2.Record.FromString(rows[0][1][b"r"])

    async def marker(self) -> bool:
        """Whether the log ends with a marker."""
        return (await self.last()).HasField("snapshot")

    async def oldest(self) -> Position:
        rows: Any = await self._redis.xrange(self._log, count=1)
        return Position.parse(rows[0][0].decode())

    async def epoch(self) -> int:
        """Epoch of the log's last entry."""
        rows: Any = await self._redis.xrevrange(self._log, count=1)
        return Position.parse(rows[0][0].decode()).epoch

    async def owner(self) -> str:
        """Who has the epoch of the log's last entry, as the table of owners says soon after each claim."""
        epoch = await self.epoch()

        async def claimed() -> OwnerRow | None:
            found: Any = await self._redis.hget(keys.OWNERS, str(self.shard))
            row = None if found is None else OwnerRow.from_json(found)
            return row if row is not None and row.epoch >= epoch else None

        return (await until(claimed, f"the table of owners has epoch {epoch}", WITHIN_SECONDS)).node_id

    async def close(self) -> None:
        await self._redis.aclose()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with running(tmp_path, redis_nodes=3, coordinators=2, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def writer(cluster: DevCluster) -> AsyncIterator[Writer]:
    writer = Writer(cluster.servers)
    yield writer
    await writer.close()


@pytest.fixture
async def watch(cluster: DevCluster, writer: Writer) -> AsyncIterator[Watch]:
    watch = Watch(cluster)
    yield watch
    await watch.close()


async def writing_until(writer: Writer, condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Commits go on until something is seen, which is looked for without a pause."""

    async def write() -> None:
        while True:
            await writer.commit()

    task = asyncio.ensure_future(write())
    deadline = time.monotonic() + WITHIN_SECONDS
    try:
        while not await condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def moment(name: str, watch: Watch) -> Callable[[], Awaitable[bool]]:
    """What is waited for before the owner is killed."""
    if name == "a snapshot is being stored":
        return watch.half_snapshot
    if name == "its marker was written":
        return watch.marker
    before = await watch.oldest()

    async def trimmed() -> bool:
        return await watch.oldest() != before

    return trimmed


@pytest.mark.parametrize(
    "when", ["a snapshot is being stored", "its marker was written", "a node has trimmed its log"]
)
async def test_an_owner_is_killed_when(cluster: DevCluster, writer: Writer, watch: Watch, when: str) -> None:
    for _ in range(2):
        await writer.commit()
        owner = await watch.owner()
        await writing_until(writer, await moment(when, watch), when)
        await cluster.coordinator(owner).kill()
        # The commit that was on its way may have landed: it is repeated, as a client does.
        await writer.commit()
        await settled(writer)
        assert await watch.owner() != owner
        await cluster.coordinator(owner).start()
    await writing_until(writer, lambda: grown(watch), "the log is trimmed on")
    await writer.commit()
    await settled(writer)
    await finished(cluster, watch)


async def grown(watch: Watch) -> bool:
    return (await watch.oldest()).offset > 200


async def settled(writer: Writer) -> None:
    """Every partition says what was acknowledged last: also one whose commit was cut off is written again."""
    for _ in range(PARTITIONS):
        await writer.commit()
    await writer.check()


async def test_owners_are_killed_while_they_load(cluster: DevCluster, writer: Writer, watch: Watch) -> None:
    await settled(writer)
    for _ in range(4):
        owner, epoch = await watch.owner(), await watch.epoch()
        other = next(c.name for c in cluster.coordinators if c.name != owner)
        await cluster.coordinator(owner).kill()
        await until(partial(claimed_after, watch, epoch), "the other one claims", WITHIN_SECONDS)
        await cluster.coordinator(other).kill()  # it claimed, and has hardly begun to read
        await asyncio.gather(cluster.coordinator(owner).start(), cluster.coordinator(other).start())
        await settled(writer)
    await finished(cluster, watch)


async def claimed_after(watch: Watch, epoch: int) -> bool:
    return await watch.epoch() > epoch


async def finished(cluster: DevCluster, watch: Watch) -> None:
    """The log shows no broken promise, and no half snapshot is left for long."""
    report = verify(cluster.redis_url)
    assert report.clean, report.evidence

    async def few() -> bool:
        return len(await watch.snapshots()) <= 3

    await until(few, "half snapshots are gone")
