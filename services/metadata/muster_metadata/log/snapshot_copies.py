"""Finds a log's snapshots on the nodes, reads each from a node that has it right, and copies them."""

from collections.abc import AsyncIterator, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import GENESIS, Position
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.log.damage import report_damage
from muster_metadata.log.verdicts import count_status
from muster_metadata.nodes.entries import NodeEntry, parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import NodeReply, Status

HASHES = "hashes"
"""Field of a snapshot's key with the SHA-256 of each part; the parts' fields are their numbers, from 0."""

_HASH_BYTES = 32
_SCAN_PAGE = 1_000
_SCAN_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot whose marker is in the log, with the part hashes that the marker confirms.

    Attributes:
        shard: the shard.
        upto: last position that it covers.
        hash: chain hash of the entry there, according to the marker.
        part_hashes: SHA-256 of each part.
        nodes: all nodes, in the order in which they are asked for its parts.
    """

    shard: int
    upto: Position
    hash: bytes
    part_hashes: tuple[bytes, ...]
    nodes: tuple[Node, ...]


class SnapshotLost(Exception):
    """No node that answered has a part as it was written.

    Attributes:
        certain: whether all nodes answered; if not, one that is away may have it.
    """

    def __init__(self, upto: Position, what: str, *, certain: bool) -> None:
        super().__init__(f"the snapshot up to {upto.stream_id}: {what}")
        self.certain = certain


class SnapshotCopies:
    """Reads snapshots from the nodes and copies them.

    Each node lists its snapshots and the positions of their markers: that is a hint. A snapshot counts if its
    marker is in the log, and its bytes count if they have the hash that is in the marker.

    Args:
        quorum: the nodes.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    async def newest(
        self, shard: int, last: Position, without: Container[Position], source: Node, *, scan: bool
    ) -> FoundSnapshot | None:
        """Finds the newest snapshot with a marker at or before a position; None: there is none.

        Args:
            shard: the shard.
            last: how far the log is read.
            without: snapshots to leave out, by the last position that they cover.
            source: a node that has the log up to `last`.
            scan: also look for markers in the whole log if the nodes list none.
        """
        hinted, nodes = await self._hinted(shard, source)
        for upto, marker in sorted(hinted.items(), reverse=True):
            if marker <= last and upto not in without:
                found = await self._believed(shard, await self._marker(source, shard, marker), upto, nodes)
                if found is not None:
                    return found
        if scan:
            for snapshot in reversed(await self._markers(source, shard, last)):
                upto = Position.from_proto(snapshot.upto)
                if upto not in without:
                    found = await self._believed(shard, snapshot, upto, nodes)
                    if found is not None:
                        return found
        return None

    async def _hinted(self, shard: int, source: Node) -> tuple[dict[Position, Position], list[Node]]:
        """The snapshots that a majority lists, with their markers, and all nodes, the quickest first.

        A slow node that is not dead would else delay every load. Only the node that the log is read from is
        waited for: its log is trimmed according to the snapshots that it lists.
        """
        majority, own = self._quorum.majority, self._quorum.nodes.index(source)

        def decide(replies: Replies, final: bool) -> bool | None:
            enough = replies[own] is not None and count_status(replies, Status.OK) >= majority
            return enough or final or None

        _, replies = await self._quorum.ask(lambda node: node.snapshots(shard), decide)
        answers = dict(zip(self._quorum.nodes, replies, strict=True))
        hinted: dict[Position, Position] = {}
        for reply in replies:
            if reply is not None:
                hinted |= {upto: marker for upto, marker in _names_in(reply) if marker is not None}

        def comes_later(node: Node) -> bool:
            reply = answers[node]
            return reply is None or reply.status is not Status.OK

        return hinted, sorted(self._quorum.nodes, key=comes_later)

    async def parts(self, found: FoundSnapshot) -> AsyncIterator[bytes]:
        """Yields the parts in order, each from a node that has it right.

        Raises:
            SnapshotLost: no node that answers has one of them.
        """
        nodes = list(found.nodes)
        for number, expected in enumerate(found.part_hashes):
            certain = True
            for node in tuple(nodes):
                reply = await node.snapshot_field(found.shard, found.upto.stream_id, str(number))
                data = reply.values[0] if reply.status is Status.OK else None
                if data is not None and part_hash(data) == expected:
                    yield data
                    break
                certain = certain and reply.status is Status.OK
                if data is not None:
                    problem = f"part {number} of the snapshot up to {found.upto.stream_id} was changed"
                    report_damage(node, found.shard, problem, snapshot=True)
                # It is asked last from now on: a node that lacks one part lacks others.
                nodes.remove(node)
                nodes.append(node)
            else:
                raise SnapshotLost(
                    found.upto, f"no node has part {number} as it was written", certain=certain
                )

    async def copy_missing(self, node: Node, source: Node, shard: int, *, nodes_heard: int = 1) -> bool:
        """Copies the snapshots that count to a node that lacks them; returns whether it has all of them now.

        A snapshot is on a majority, so the source of the log need not have it. A snapshot that no node has
        right does not keep a node from being rebuilt.

        Args:
            node: the node to fill.
            source: a node that has the log.
            shard: the shard.
            nodes_heard: how many other nodes must list their snapshots.
        """
        there = dict(await self._named(node, shard))
        named: dict[Position, Position] = {}
        heard = 0
        for other in self._quorum.nodes:
            if other is not node and (await other.snapshots(shard)).status is Status.OK:
                heard += 1
                named |= {upto: marker for upto, marker in await self._named(other, shard) if marker}
        for upto, marker in named.items():
            if there.get(upto) == marker and await self._is_whole(node, shard, upto):
                continue
            snapshot = await self._marker(source, shard, marker)
            if snapshot is None:
                continue  # its marker is not part of the log
            found = await self._believed(shard, snapshot, upto, self._quorum.nodes)
            if found is None and heard < len(self._quorum.nodes) - 1:
                return False  # a node that does not answer may have it
            if found is not None and not await self._copy(node, found, marker):
                return False
        return heard >= nodes_heard

    async def _is_whole(self, node: Node, shard: int, upto: Position) -> bool:
        """Whether a node has all of a snapshot: the list of the parts' hashes is stored last."""
        reply = await node.snapshot_field(shard, upto.stream_id, HASHES)
        return reply.status is Status.OK and reply.values[0] is not None

    async def _copy(self, node: Node, found: FoundSnapshot, marker: Position) -> bool:
        place = (found.shard, 0, b"", found.upto.stream_id)
        number = 0
        try:
            async for data in self.parts(found):
                reply = await node.keep(*place, str(number), data, marker.stream_id)
                if not reply.done:
                    return False
                number += 1
        except SnapshotLost as lost:
            return lost.certain
        hashes = b"".join(found.part_hashes)
        reply = await node.keep(*place, HASHES, hashes, marker.stream_id)
        return reply.done

    async def _named(self, node: Node, shard: int) -> list[tuple[Position, Position | None]]:
        """The snapshots that a node lists, each with its marker, if known."""
        return _names_in(await node.snapshots(shard))

    async def _believed(
        self, shard: int, snapshot: records_pb2.Snapshot | None, upto: Position, nodes: Sequence[Node]
    ) -> FoundSnapshot | None:
        """The snapshot of a marker, if any node has the hashes of its parts."""
        if snapshot is None or Position.from_proto(snapshot.upto) != upto:
            return None
        for node in nodes:
            reply = await node.snapshot_field(shard, upto.stream_id, HASHES)
            joined = (reply.values[0] if reply.status is Status.OK else None) or b""
            hashes = tuple(joined[i : i + _HASH_BYTES] for i in range(0, len(joined), _HASH_BYTES))
            if len(hashes) == snapshot.parts and digest_of(hashes) == snapshot.digest:
                return FoundSnapshot(shard, upto, snapshot.hash, hashes, tuple(nodes))
        return None

    async def _marker(self, source: Node, shard: int, place: Position) -> records_pb2.Snapshot | None:
        """The marker at a position; None: there is none."""
        reply = await source.page(shard, place.stream_id, place.stream_id, 1)
        found = _markers_in(reply.values[0]) if reply.status is Status.OK else []
        return found[0] if found else None

    async def _markers(self, source: Node, shard: int, last: Position) -> list[records_pb2.Snapshot]:
        """All markers in a log, found by reading it: for nodes that lost their lists."""
        found: list[records_pb2.Snapshot] = []
        first, end = "-", GENESIS
        while end < last:
            reply = await source.entries(shard, first, _SCAN_PAGE, _SCAN_BYTES)
            if reply.status is not Status.OK or not reply.values:
                break
            found += _markers_in(row for row in reply.values if parse_id(row[0]) <= last)
            end = parse_id(reply.values[-1][0])
            first = f"({end.stream_id}"
        return found


def _names_in(reply: NodeReply) -> list[tuple[Position, Position | None]]:
    """The snapshots in a node's list, each with its marker, if known."""
    if reply.status is not Status.OK:
        return []
    row = reply.values[0]
    try:
        return [
            (parse_id(upto), parse_id(marker) if marker else None)
            for upto, marker in zip(row[::2], row[1::2], strict=True)
        ]
    except ValueError:
        return []


def _markers_in(rows: Iterable[Sequence[Any]]) -> list[records_pb2.Snapshot]:
    found = []
    for row in rows:
        try:
            record = records_pb2.Record.FromString(NodeEntry.from_redis(row).record)
        except (DecodeError, IndexError, ValueError):
            continue
        if record.HasField("snapshot"):
            found.append(record.snapshot)
    return found
