"""A look into the nodes of the log, read-only and quick: what stands there at this moment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis.asyncio
from kit.clusters.linked_cluster import LinkedCluster
from muster_core.position import NOWHERE, Position
from muster_core.sharding import shard_of
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Record = records_pb2.Record


class CommitPlace(NamedTuple):
    """A commit of one partition, and where it stands."""

    group_id: str
    topic: str
    partition: int
    value: int
    member_id: str
    shard: int
    epoch: int
    offset: int


class Logs:
    """The logs of all nodes of a cluster."""

    def __init__(self, cluster: LinkedCluster) -> None:
        self._shard_count = cluster.shard_count
        self.majority = len(cluster.nodes) // 2 + 1
        self.nodes: list[Any] = [
            redis.asyncio.Redis.from_url(
                node.url, socket_timeout=0.5, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 1)
            )
            for node in cluster.nodes
        ]

    async def close(self) -> None:
        """Closes the connections."""
        for node in self.nodes:
            await node.aclose()

    def shard(self, group: str) -> int:
        """The shard of a group."""
        return shard_of(group, self._shard_count)

    async def end(self, index: int, shard: int) -> Position:
        """Where a node's copy ends."""
        rows = await self.nodes[index - 1].xrevrange(log_keys(shard, self._shard_count).log, count=1)
        return Position.parse(rows[0][0].decode()) if rows else NOWHERE

    async def promised(self, index: int, shard: int) -> int:
        """The epoch that a node promised."""
        return int(await self.nodes[index - 1].hget(log_keys(shard, self._shard_count).promise, "epoch") or 0)

    async def promises(self, index: int) -> dict[int, int]:
        """The epochs that a node promised, of all shards."""
        return {shard: await self.promised(index, shard) for shard in range(self._shard_count)}

    async def votes(self, index: int) -> bool:
        """Whether a node votes on every shard: it did not restart since it last did."""
        node = self.nodes[index - 1]
        run = (await node.info("server"))["run_id"].encode()
        for shard in range(self._shard_count):
            mark = await node.hget(log_keys(shard, self._shard_count).promise, "run")
            if mark is None or mark.partition(b"/")[0] != run:
                return False
        return True

    async def records(
        self, index: int, shard: int, behind: Position = NOWHERE
    ) -> list[tuple[Position, Record]]:
        """What a node has after a place."""
        key = log_keys(shard, self._shard_count).log
        start = "-" if behind == NOWHERE else f"({behind.stream_id}"
        rows = await self.nodes[index - 1].xrange(key, start, "+")
        return [(Position.parse(place.decode()), Record.FromString(fields[b"r"])) for place, fields in rows]

    async def holders(self, shard: int, behind: Position, kind: str, group: str, generation: int) -> int:
        """How many nodes have a record of that kind of a group's generation after a place."""
        count = 0
        for index in range(1, len(self.nodes) + 1):
            try:
                found = await self.records(index, shard, behind)
            except (redis.RedisError, OSError):
                continue
            count += any(_is(record, kind, group, generation) for _, record in found)
        return count

    async def commits(self, groups: Sequence[str]) -> list[CommitPlace]:
        """Every commit of these groups that is left, by shard, in the order of the log."""
        found: list[CommitPlace] = []
        wanted = set(groups)
        for shard in sorted({self.shard(group) for group in groups}):
            ends = [await self.end(index, shard) for index in range(1, len(self.nodes) + 1)]
            best = max(range(len(ends)), key=ends.__getitem__) + 1
            for place, record in await self.records(best, shard):
                message = record.offset_committed
                if record.WhichOneof("kind") == "offset_committed" and message.group_id in wanted:
                    found += [
                        CommitPlace(
                            message.group_id, row.topic, row.partition, row.offset, message.member_id,
                            shard, place.epoch, place.offset,
                        )
                        for row in message.offsets
                    ]  # fmt: skip
        return found

    async def generations(self, group: str) -> list[int]:
        """Numbers of the generations that were started, in the order of the log."""
        shard = self.shard(group)
        ends = [await self.end(index, shard) for index in range(1, len(self.nodes) + 1)]
        best = max(range(len(ends)), key=ends.__getitem__) + 1
        return [
            record.generation_started.generation
            for _, record in await self.records(best, shard)
            if record.WhichOneof("kind") == "generation_started"
            and record.generation_started.group_id == group
        ]


def _is(record: Record, kind: str, group: str, generation: int) -> bool:
    if record.WhichOneof("kind") != kind:
        return False
    message = getattr(record, kind)
    return bool(message.group_id == group and message.generation == generation)
