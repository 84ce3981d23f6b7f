"""Entries of a log as the nodes store them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.log.replay import Entry
from muster_core.position import GENESIS, Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2


class LogEnd(NamedTuple):
    """Where a log ends: the position and the chain hash of its last entry."""

    position: Position
    hash: bytes

    def to_proto(self) -> metadata_pb2.LogEnd:
        """The message of the same content."""
        return metadata_pb2.LogEnd(position=self.position.to_proto(), hash=self.hash)

    @classmethod
    def from_proto(cls, message: metadata_pb2.LogEnd) -> "LogEnd":
        """The end that a message names."""
        return cls(Position.from_proto(message.position), message.hash)


class NodeEntry(Entry):
    """One entry: its position, bytes, nonce and chain hash."""

    __slots__ = ()

    @property
    def end(self) -> LogEnd:
        """The end of a log whose last entry this is."""
        return LogEnd(self.position, self.hash)

    @classmethod
    def from_redis(cls, raw: Sequence[Any]) -> "NodeEntry":
        """Reads an element of the answer to XRANGE."""
        fields = raw[1]
        return cls(parse_id(raw[0]), fields[1], fields[3], fields[5])


def parse_id(raw: bytes) -> Position:
    """Reads a stream id."""
    epoch, _, offset = raw.partition(b"-")
    return Position(int(epoch), int(offset))


def chain(end: LogEnd, epoch: int, records: Iterable[tuple[bytes, bytes]]) -> list[NodeEntry]:
    """The entries of a batch after an end; the same input always gives the same entries.

    Args:
        end: where the log ends.
        epoch: epoch of the writer.
        records: bytes and nonce of each record.
    """
    entries = []
    offset, previous = end.position.offset, end.hash
    for record, nonce in records:
        offset += 1
        position = Position(epoch, offset)
        previous = chain_hash(previous, position, nonce, record)
        entries.append(NodeEntry(position, record, nonce, previous))
    return entries


def continues(end: LogEnd, entries: Iterable[NodeEntry]) -> bool:
    """Whether entries follow an end without a gap, each hash chained to the one before."""
    for entry in entries:
        if entry.position.offset != end.position.offset + 1 or entry.position < end.position:
            return False
        if entry.hash != chain_hash(end.hash, entry.position, entry.nonce, entry.record):
            return False
        end = entry.end
    return True


def arguments(entries: Iterable[NodeEntry]) -> list[bytes]:
    """Entries as arguments of the scripts: id, record, nonce and hash of each."""
    flat: list[bytes] = []
    for entry in entries:
        position = entry.position
        flat += (b"%d-%d" % position, entry.record, entry.nonce, entry.hash)
    return flat


def genesis(cluster_id: str, shard_count: int, shard: int, created_at_ms: int) -> NodeEntry:
    """The first entry of a log, computed from the cluster's identity and so equal on all nodes."""
    record = records_pb2.Record(
        written_at_ms=created_at_ms,
        critical=True,
        genesis=records_pb2.Genesis(cluster_id=cluster_id, shard_count=shard_count, shard=shard),
    ).SerializeToString(deterministic=True)
    nonce = chain_hash(BEFORE_GENESIS, GENESIS, bytes(16), record)[:16]
    return NodeEntry(GENESIS, record, nonce, chain_hash(BEFORE_GENESIS, GENESIS, nonce, record))
