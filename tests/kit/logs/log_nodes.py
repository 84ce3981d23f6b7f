"""Built logs on real nodes."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from kit.logs.log_builder import LogBuilder, healthy
from muster_core.log.replay import Entry
from muster_core.position import Position
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNode, RedisNodes
from muster_server.initialise import initialise_log

CLUSTER = "cluster-of-the-tests"


def empty(shard: int, shard_count: int) -> LogBuilder:
    """A log of the cluster of these tests."""
    return LogBuilder(shard=shard, shard_count=shard_count, cluster_id=CLUSTER)


def store(
    node: RedisNode, shard: int, shard_count: int, entries: Iterable[Entry], acknowledged: Position
) -> None:
    """Writes a log and its promise as a node holds them, in the place of what was there."""
    keys, entries = log_keys(shard, shard_count), list(entries)
    epoch = max(entry.position.epoch for entry in entries)
    nonce = next(entry.nonce for entry in entries if entry.position.epoch == epoch) if epoch else b""
    with redis.Redis(port=node.port) as connection, connection.pipeline(transaction=False) as pipeline:
        pipeline.delete(keys.log)
        for entry in entries:
            fields = {"r": entry.record, "n": entry.nonce, "h": entry.hash}
            pipeline.xadd(keys.log, fields, id=entry.position.stream_id)
        pipeline.set(keys.acknowledged, acknowledged.stream_id)
        pipeline.hset(keys.promise, mapping={"epoch": epoch, "nonce": nonce})
        pipeline.execute()


def set_back(nodes: RedisNodes, *restores: str) -> None:
    """Puts all nodes, with one shard, back to an earlier time; the catalog tells of these restores."""
    built, catalog = healthy(empty(0, 1)), empty(1, 1)
    catalog.genesis()
    for number, reason in enumerate(restores, 1):
        catalog.claim("operator", epoch=1_000_000 * number)
        record = records_pb2.Record(critical=True, restored=records_pb2.Restored(reason=reason))
        catalog.add(record)
    for node in nodes:
        store(node, 0, 1, built.entries[:15], built.entries[14].position)
        if restores:
            store(node, 1, 1, catalog.entries, catalog.end)


def trimmed_after_reading(monkeypatch: pytest.MonkeyPatch, reader: Any) -> list[int]:
    """Has a class that reads logs find no entry of a log any more once it was read; gives the logs read."""
    pages, entry_at, trimmed = reader.pages, reader.entry_at, list[int]()

    def read(self: Any, shard: int, *arguments: Any, **named: Any) -> Iterator[Any]:
        yield from pages(self, shard, *arguments, **named)
        trimmed.append(shard)

    def found(self: Any, shard: int, position: Position) -> Any:
        return None if shard in trimmed else entry_at(self, shard, position)

    monkeypatch.setattr(reader, "pages", read)
    monkeypatch.setattr(reader, "entry_at", found)
    return trimmed


@asynccontextmanager
async def nodes_with(
    folder: Path, logs: Mapping[int, LogBuilder], count: int = 1
) -> AsyncIterator[RedisNodes]:
    """Nodes that hold these logs, by shard, all acknowledged to their ends; the shards are as many."""
    nodes = RedisNodes(folder, count, fsync="no")
    await nodes.start()
    try:
        await initialise_log(nodes.url, len(logs), CLUSTER, features=())
        for shard, built in logs.items():
            for node in nodes:
                store(node, shard, len(logs), built.entries, built.entries[-1].position)
        yield nodes
    finally:
        await nodes.stop()
