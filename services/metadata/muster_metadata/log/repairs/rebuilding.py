"""Copies a whole log to a node, under another key, and puts the copy in the place of the log."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log.repairs.sources import Sources
from muster_metadata.log.snapshot_copies import SnapshotCopies
from muster_metadata.log.states import Held, Inspected, Repaired
from muster_metadata.log.verdicts import checked
from muster_metadata.nodes.entries import LogEnd, NodeEntry
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status

_ABANDONED_MS = 5_000
"""A copy of a log that has not grown for this long has been abandoned."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a log that another instance may be making on a node."""

    end: bytes
    since_ms: int


class Rebuilder:
    """Gives a node a whole log: one that lost its data, or whose log ends before the others' oldest entry.

    Args:
        quorum: all nodes.
        sources: where the log is read.
        snapshots: copies what belongs to it.
        now_ms: boot clock.
        refill_tables: copies what a node that lost its data needs besides its logs before it counts again,
            and returns whether all of it is there; absent: it needs nothing.

    Attributes:
        created_at_ms: when the cluster was made, for the identity of a node that lost its data.
        addresses: of the nodes in the log's configuration, also for that.
    """

    def __init__(
        self,
        quorum: Quorum,
        sources: Sources,
        snapshots: SnapshotCopies,
        now_ms: Callable[[], int],
        refill_tables: Callable[[Node], Awaitable[bool]] | None,
    ) -> None:
        self._quorum = quorum
        self._sources = sources
        self._snapshots = snapshots
        self._now_ms = now_ms
        self._refill_tables = _nothing if refill_tables is None else refill_tables
        self._foreign_copies: dict[tuple[int, int], _Copy] = {}
        self.created_at_ms = 0
        self.addresses: Sequence[str] = ()

    async def rebuild(self, node: Node, held: Held, end: LogEnd | None) -> LogEnd | Repaired:
        """Copies a whole log to another key of the node, then renames it together with setting the promise.

        Args:
            node: the node.
            held: the claim.
            end: where its log ends; None: it lost its data.

        Returns:
            Where the log ends that the node has now; or why it has none.
        """
        source = await self._sources.best(held, node)
        if source is None:
            return Repaired.LATER
        if await self._is_copied(node, held.shard):
            return Repaired.LATER
        # What the node acknowledged before it lost its data is on one of a majority of the others, whenever
        # they are asked after that. What is written meanwhile is on a majority without it.
        before = await self._confirming(node, held)
        if before is None:
            return Repaired.LATER
        copied = await self._copy(node, held, source, gone=end is None)
        if copied is None:
            return Repaired.LATER
        needed = max(reply.end.position for reply in before.values())
        result = await self._install(node, held, end, source, copied, needed)
        if result is not Repaired.DONE:
            # Another instance may have filled the node meanwhile: the copy must not be left there.
            await node.discard(held.shard, copied.position.stream_id, copied.hash)
            return result
        return copied

    async def _is_copied(self, node: Node, shard: int) -> bool:
        """Whether another instance may be copying the log there: to start again would undo its work."""
        reply = await node.copy_end(shard)
        if reply.status is not Status.OK:
            return True
        place, now_ms = (node.index, shard), self._now_ms()
        if not reply.values[0]:
            self._foreign_copies.pop(place, None)
            return False
        end, known = bytes(reply.values[0][0][0]), self._foreign_copies.get(place)
        if known is None or known.end != end:
            self._foreign_copies[place] = _Copy(end, now_ms)
            return True
        return now_ms - known.since_ms < _ABANDONED_MS

    async def _copy(
        self, node: Node, held: Held, source: tuple[Node, Inspected], *, gone: bool
    ) -> LogEnd | None:
        """Copies a log to another key and returns its end; None: a node is away, or another copy is made."""
        shard, epoch, nonce = held
        copied: LogEnd | None = None
        while True:
            entries = await self._sources.page(source[0], shard, copied)
            if entries is None:
                return None
            if not entries:
                return copied
            after = ("", b"") if copied is None else (copied.position.stream_id, copied.hash)
            reply = await node.stage(shard, epoch, nonce, after, entries, gone=gone)
            if reply.status is not Status.OK:
                return None
            copied = reply.end

    async def _install(
        self,
        node: Node,
        held: Held,
        end: LogEnd | None,
        source: tuple[Node, Inspected],
        copied: LogEnd,
        needed: Position,
    ) -> Repaired:
        """Puts a complete copy in the place of the log, if a majority without the node has the claim."""
        shard, epoch, nonce = held
        if copied.position < max(needed, source[1].end.position):
            return Repaired.LATER
        if end is None and not await self._refill_tables(node):
            return Repaired.LATER
        if not await self._snapshots.copy_missing(node, source[0], shard, nodes_heard=self._quorum.majority):
            return Repaired.LATER
        # The node votes as soon as the copy is in place: a majority without it must still have the claim.
        confirming = await self._confirming(node, held)
        if confirming is None:
            return Repaired.LATER
        if not await self._agrees(node, held, source[0], copied, confirming):
            return Repaired.LATER
        # Each floor that counts is on at least one of them.
        floor = max(int(reply.values[2]) for reply in confirming.values())
        expected = ("", b"") if end is None else (end.position.stream_id, end.hash)
        reply = await node.install(
            shard, epoch, nonce, copied.position.stream_id, copied.hash, *expected,
            source[1].acknowledged.stream_id, self.created_at_ms, ",".join(self.addresses), floor,
        )  # fmt: skip
        if reply.status is Status.FENCED:
            return Repaired.FENCED
        return Repaired.DONE if reply.status is Status.OK else Repaired.LATER

    async def _confirming(self, node: Node, held: Held) -> dict[Node, NodeReply] | None:
        """The answers of a majority without the node that has the claim; None: there is none."""
        verdict, replies = await self._quorum.ask(
            lambda other: None if other is node else other.check(*held),
            checked(self._quorum.majority),
        )
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return None
        answers = zip(self._quorum.nodes, replies, strict=True)
        return {other: reply for other, reply in answers if reply is not None and reply.status is Status.OK}

    async def _agrees(
        self, node: Node, held: Held, source: Node, copied: LogEnd, confirming: Mapping[Node, NodeReply]
    ) -> bool:
        """Whether the copy on a node is one log with those of the others that have the claim in theirs.

        Logs with entries of one claim are one log, as far as both go. What differs was damaged, or put there
        by somebody, and whether that was done to the source is not known.
        """
        for other, answer in confirming.items():
            if answer.end.position.epoch != held.epoch:
                continue
            place = min(answer.end, copied, key=lambda end: end.position)
            id_ = place.position.stream_id
            here = await node.copied(held.shard, id_)
            there = await other.hashes(held.shard, id_, 1)
            if not here.status is there.status is Status.OK:
                return False
            rows = here.values[0]
            if not rows and not await self._has_copy(node, held.shard, copied):
                return False  # another instance has put it in place meanwhile
            if not rows or [NodeEntry.from_redis(rows[0]).hash] != [*there.values[1:]]:
                self._sources.damaged(source, held.shard, f"{id_} of others that have the claim is not there")
                return False
        return True

    async def _has_copy(self, node: Node, shard: int, copied: LogEnd) -> bool:
        reply = await node.copy_end(shard)
        return reply.status is Status.OK and any(
            NodeEntry.from_redis(row).end == copied for row in reply.values[0]
        )


async def _nothing(_node: Node) -> bool:
    return True
