"""Logs of random lives of a core: members come and go, topics are deleted, owners change."""

from kit.lives.shard_fuzz import life
from kit.logs.log_builder import LogBuilder
from kit.logs.log_nodes import empty
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2

_STRETCH = 20_000
"""Lives last for seconds; so much slower they last for days."""


def lived(seed: int, shard: int = 0, shard_count: int = 1, length: int = 200) -> LogBuilder:
    """The log of a shard's life, stretched over days; its groups are named as the life names them."""
    built = empty(shard, shard_count)
    built.genesis()
    began_ms = built.now_ms
    first_ms = 0
    for position, record in life(seed, length).cluster.log:
        stored = records_pb2.Record()
        stored.CopyFrom(record)
        if record.HasField("claim"):
            stored.claim.node_id, stored.claim.session = f"coordinator-{position.epoch}", "session"
            stored.claim.previous.CopyFrom(built.end.to_proto())
        first_ms = first_ms or record.written_at_ms
        passed_ms = max(record.written_at_ms - first_ms, 0) * _STRETCH
        built.now_ms = max(built.now_ms, began_ms + passed_ms)
        built.add(stored, epoch=position.epoch)
        assert built.end == Position(position.epoch, position.offset)
    return built
