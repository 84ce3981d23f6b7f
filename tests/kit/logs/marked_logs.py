"""Logs with a snapshot: as the log makes it, or changed before it is written; trimmed, or whole."""

from collections.abc import Callable
from typing import Any

import redis
from kit.logs.log_builder import LogBuilder
from kit.logs.log_nodes import store
from muster_core.config import GroupConfig
from muster_core.log.snapshot import Covered, digest_of, part_hash, parts
from muster_core.shard import Shard
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes

Change = Callable[[Shard], None]
Hurt = Callable[[RedisNodes, int, int, LogBuilder], None]
UPTO = 10  # index of the entry that snapshots of the corpus end with
MARKED = -2  # and where the snapshot is the last thing, once its marker is written


def parts_of(built: LogBuilder, change: Change, last: int = UPTO) -> list[bytes]:
    """A snapshot of the log's state at its second claim or another entry, changed before it is written."""
    state = Shard(built.shard, GroupConfig())
    upto = built.entries[last]
    for entry in built.entries[: built.entries.index(upto) + 1]:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    change(state)
    return list(parts(state.groups.values(), Covered(built.shard, upto.position, upto.hash), part_bytes=100))


def as_it_is(_: Shard) -> None:
    """Changes nothing."""


def marked(
    change: Change = as_it_is, last: int = UPTO, groups: int = 1, **values: Any
) -> Callable[[LogBuilder], None]:
    """Writes the marker of a snapshot; `values`: what it says instead of what is right."""

    def make(built: LogBuilder) -> None:
        stored = parts_of(built, change, last)
        upto = built.entries[last]
        marker = records_pb2.Snapshot(
            upto=upto.position.to_proto(),
            hash=upto.hash,
            parts=len(stored),
            digest=digest_of(part_hash(part) for part in stored),
            groups=groups,
        )
        marker.MergeFrom(records_pb2.Snapshot(**values))
        built.add(records_pb2.Record(snapshot=marker))

    return make


def stored(change: Change = as_it_is, last: int = UPTO) -> Hurt:
    """Stores a snapshot on all nodes."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        stored = parts_of(built, change, last)
        fields: dict[str, bytes] = {str(number): part for number, part in enumerate(stored)}
        fields["hashes"] = b"".join(map(part_hash, stored))
        upto = built.entries[last].position.stream_id
        keys = log_keys(shard, shards)
        for node in nodes:
            with redis.Redis(port=node.port) as connection:
                connection.hset(keys.snapshot(upto), mapping=fields)
                connection.hset(keys.snapshots, upto, built.end.stream_id)

    return hurt


def trimmed(begin: int, change: Change = as_it_is, last: int = UPTO) -> Hurt:
    """Stores a snapshot on all nodes, and takes what is before an entry from them."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        stored(change, last)(nodes, shard, shards, built)
        for node in nodes:
            store(node, shard, shards, built.entries[begin:], built.end)

    return hurt
