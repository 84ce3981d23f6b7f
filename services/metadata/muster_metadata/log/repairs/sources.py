"""Where what a node lacks is read: which of the others, and what of it can be believed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from muster_core.position import GENESIS, NOWHERE
from muster_core.record_bounds import APPEND_MAX_BYTES, APPEND_MAX_RECORDS, RECORD_OVERHEAD_BYTES

from muster_metadata.log.damage import report_damage
from muster_metadata.log.states import Held, Inspected
from muster_metadata.nodes.entries import LogEnd, NodeEntry, continues, parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status

NOTHING = LogEnd(NOWHERE, b"")
"""Stands for "no entry in common" where two logs are compared."""

_PAGE_ENTRIES = 500
_PAGE_BYTES = 4 << 20
_HASHES = 256

_OPEN_BYTES = APPEND_MAX_BYTES + (1 << 20)
_OPEN_ENTRIES = APPEND_MAX_RECORDS + 1_000
"""More than is in a log and not acknowledged: one step of its owner, and Claims of who died after it."""

_DAMAGED_MS = 60_000
"""How long nothing is copied from a node whose copy of the log was found damaged."""


class Sources:
    """Reads logs in order to copy them.

    Args:
        quorum: all nodes.
        now_ms: boot clock.
    """

    def __init__(self, quorum: Quorum, now_ms: Callable[[], int]) -> None:
        self._quorum = quorum
        self._now_ms = now_ms
        self._damaged_ms: dict[tuple[int, int], int] = {}

    async def best(self, held: Held, excluded: Node | None = None) -> tuple[Node, Inspected] | None:
        """The node with the longest log of a claim: it has the promise, and its last entry has the epoch.

        Of equal ones it is the one with the fewest unanswered reads, then the one that answered first: nodes
        share the reads, and one that is slow is not everybody's source. A node whose copy is damaged is
        chosen only if there is no other.
        """
        found: list[tuple[Node, Inspected]] = []

        async def inspect(node: Node) -> None:
            reply = await node.inspect(held.shard, vote=False)
            if reply.status is Status.OK:
                found.append((node, Inspected.read(reply)))

        await asyncio.gather(*(inspect(node) for node in self._quorum.nodes if node is not excluded))
        having = [
            (node, state)
            for node, state in found
            if (state.epoch, state.nonce) == (held.epoch, held.nonce)
            and state.end.position.epoch == held.epoch
        ]
        sound = [pair for pair in having if not self._is_damaged(pair[0], held.shard)]
        return max(
            sound or having,
            key=lambda pair: (pair[1].end.position, -pair[0].bulk.unanswered),
            default=None,
        )

    def _is_damaged(self, node: Node, shard: int) -> bool:
        """Whether the node's copy was found damaged recently."""
        found_ms = self._damaged_ms.get((node.index, shard))
        return found_ms is not None and self._now_ms() - found_ms < _DAMAGED_MS

    async def common(self, node: Node, source: Node, shard: int, end: LogEnd) -> LogEnd | None:
        """The last entry that both nodes have; by its chain hash everything before it is equal too.

        Returns:
            Its end; `NOTHING`: there is none, since what both had was trimmed; None: one does not answer.
        """
        upto = end.position.stream_id
        while True:
            here, there = await asyncio.gather(
                node.hashes(shard, upto, _HASHES), source.hashes(shard, upto, _HASHES)
            )
            if not here.status is there.status is Status.OK:
                return None
            if not here.values or not there.values:
                return NOTHING
            known = dict(zip(there.values[::2], there.values[1::2], strict=True))
            for id_, hash_ in zip(here.values[::2], here.values[1::2], strict=True):
                if known.get(id_) == hash_:
                    return LogEnd(parse_id(id_), hash_)
            below = max(parse_id(here.values[-2]), parse_id(there.values[-2]))
            upto = f"({below.stream_id}"

    async def portion(self, source: Node, shard: int, after: LogEnd) -> list[NodeEntry] | None:
        """The next entries after an end that are written to a node at a time; None: there are no valid ones.

        They end at an acknowledged entry, or where the source's log ends: of a step that is not acknowledged
        a node gets all or nothing (docs/safety.md, LOG-70). The source may have heard late what is
        acknowledged; so they also end where more follows than can be open.
        """
        reply = await source.inspect(shard, vote=False)
        if reply.status is not Status.OK:
            return None
        state = Inspected.read(reply)
        last = state.end.position
        found: list[NodeEntry] = []
        while (found[-1].position if found else after.position) < last:
            some = await self.page(source, shard, found[-1].end if found else after)
            if not some:
                return None
            if not found:
                known = [entry for entry in some if entry.position <= state.acknowledged]
                if known:
                    return known
                first = len(some)
            found += some
            if _is_more_than_open(found[first:]):
                return found[:first]
        return [entry for entry in found if entry.position <= last]

    async def page(self, source: Node, shard: int, after: LogEnd | None) -> list[NodeEntry] | None:
        """The next entries after an end, or from the oldest on; None: the source has no valid ones."""
        first = "-" if after is None else f"({after.position.stream_id}"
        reply = await source.entries(shard, first, _PAGE_ENTRIES, _PAGE_BYTES)
        if reply.status is not Status.OK:
            return None
        entries = _sound(reply.values, after)
        if entries is None and not await self._is_trimmed(source, shard, after):
            place = GENESIS if after is None else after.position
            self.damaged(source, shard, f"an entry after {place.stream_id} is missing, or was changed")
        return entries

    def damaged(self, source: Node, shard: int, problem: str) -> None:
        """Notes that a node's copy of a log cannot be believed: for a while others are preferred to it."""
        self._damaged_ms[source.index, shard] = self._now_ms()
        report_damage(source, shard, problem)

    async def _is_trimmed(self, source: Node, shard: int, after: LogEnd | None) -> bool:
        """Whether the entries after an end may have been trimmed there."""
        reply = await source.inspect(shard, vote=False)
        if reply.status is not Status.OK:
            return True
        return after is not None and Inspected.read(reply).first.offset > after.position.offset + 1


def _is_more_than_open(entries: Sequence[NodeEntry]) -> bool:
    """Whether some of the entries must be acknowledged, since there are so many."""
    size_bytes = sum(len(entry.record) + RECORD_OVERHEAD_BYTES for entry in entries)
    return len(entries) > _OPEN_ENTRIES or size_bytes > _OPEN_BYTES


def _sound(rows: Sequence[Any], after: LogEnd | None) -> list[NodeEntry] | None:
    """The entries of a page; None: they are malformed, or do not follow the end."""
    try:
        entries = list(map(NodeEntry.from_redis, rows))
    except (IndexError, TypeError, ValueError):
        return None
    if after is None:
        # The oldest entry cannot be checked: after a trim the entry before it is gone.
        sound = not entries or continues(entries[0].end, entries[1:])
    else:
        sound = continues(after, entries)
    return entries if sound else None
