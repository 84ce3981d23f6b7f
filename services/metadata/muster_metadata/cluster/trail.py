"""The audit trail as the nodes keep it."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.loop_share import LoopShare
from muster_runtime.turns import Turns

from muster_metadata.log.verdicts import count_status
from muster_metadata.nodes import keys
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])
TrailEvent = metadata_pb2.TrailEvent

EVENTS_MAX = 100
EVENT_MAX_BYTES = 8 << 10
"""Of one event, and so many of them are kept with one call."""

_DONE = frozenset({"done", "unknown"})
"""Outcomes of calls that were carried out, or may be."""

_DAY_MS = 86_400_000
_PAGE = 500
_STEP = 500
"""So many are handled in a millisecond; then is looked whether others have their turn."""
_TURN_S = 0.002


class TrailStore:
    """Keeps events on the nodes and reads them.

    An event is kept once a majority of the nodes has it. They are a set: each node has its own order, a
    repeat is known by the id of the event, and the nodes of any majority together have each that was kept.

    Args:
        quorum: the nodes.
        stamp_ms: the log's time, Unix time in ms.
        events_max: how many are kept of what was done, and of what was refused or failed.
        days: for how long.
    """

    def __init__(self, quorum: Quorum, stamp_ms: Callable[[], int], events_max: int, days: int) -> None:
        self._quorum = quorum
        self._stamp_ms = stamp_ms
        self._events_max = events_max
        self._days = days
        self._turns = Turns()

    async def record(self, events: Iterable[TrailEvent]) -> bool:
        """Keeps events; returns whether a majority of the nodes has them. If not, repeat it."""
        done: list[bytes] = []
        refused: list[bytes] = []
        for event in events:
            (done if event.outcome in _DONE else refused).append(event.SerializeToString())
        kept = await asyncio.gather(self._keep(keys.TRAIL, done), self._keep(keys.TRAIL_REFUSED, refused))
        return all(kept)

    async def read(self, since_ms: int, host: str = "") -> list[bytes] | None:
        """The events since a time, encoded, the oldest first; None if no majority of the nodes answers.

        One reader at a time, host by host in turn, and in turns of the loop (docs/safety.md, LIM-67).
        """
        async with self._turns.turn(host):
            return await self._read(since_ms)

    async def _read(self, since_ms: int) -> list[bytes] | None:
        found: dict[bytes, tuple[int, int, bytes]] = {}
        for key in (keys.TRAIL, keys.TRAIL_REFUSED):
            texts = await _union(self._quorum.nodes, key, self._quorum.majority)
            if texts is None:
                return None
            async for some in _in_turns(texts):
                for text in some:
                    event = _parsed(text)
                    if event is None or event.at_ms < since_ms:
                        continue
                    known = found.get(event.event_id)
                    if known is None or event.left_out > known[1]:  # a repeat, which says more
                        found[event.event_id] = event.at_ms, event.left_out, text
        rows = [
            (at_ms, event_id, text)
            async for some in _in_turns(found.items())
            for event_id, (at_ms, _, text) in some
        ]
        return [text for _, _, text in await _in_order(rows)]

    async def _keep(self, key: str, events: Sequence[bytes]) -> bool:
        if not events:
            return True
        majority = self._quorum.majority

        def decide(replies: Replies, _final: bool) -> bool | None:
            return count_status(replies, Status.OK) >= majority or None

        now_ms = self._stamp_ms()
        bounds = ("", self._events_max, max(0, now_ms - self._days * _DAY_MS))
        timed = [(now_ms, event) for event in events]
        kept, _ = await self._quorum.ask(lambda node: node.tell(key, bounds, timed), decide)
        return bool(kept)


async def copy_trail(quorum: Quorum, node: Node) -> bool:
    """Copies the trail to a node that lost its data, before it counts again.

    Returns:
        Whether the node has what a majority of the others has; if not, try again.
    """
    others = [other for other in quorum.nodes if other is not node]
    for key in (keys.TRAIL, keys.TRAIL_REFUSED):
        texts = await _union(others, key, quorum.majority)
        if texts is None:
            return False
        bounds = ("refill", max(len(texts), 1), 0)
        timed = [(at_ms, text) for text, at_ms in texts.items()]
        if texts and not (await node.tell(key, bounds, timed)).done:
            return False
    return True


async def _union(nodes: Sequence[Node], key: str, enough: int) -> dict[bytes, int] | None:
    """What any of the nodes has, with when it came there, in that order; None if too few answer."""
    answers = await asyncio.gather(*(_all_of(node, key) for node in nodes))
    heard = [texts for texts in answers if texts is not None]
    if len(heard) < enough:
        return None
    first_at: dict[bytes, int] = {}
    for texts in heard:
        async for some in _in_turns(texts.items()):
            first_at.update(some)
    rows = [(at, text) async for some in _in_turns(first_at.items()) for text, at in some]
    in_order = await _in_order(rows)
    return {text: at for at, text in in_order}


async def _all_of(node: Node, key: str) -> dict[bytes, int] | None:
    """All that a node has, with when it came there; None: it does not say."""
    found: dict[bytes, int] = {}
    after = "0-0"
    while True:
        reply = await node.told(key, after, _PAGE)
        if reply.status is not Status.OK:
            return None
        page = reply.values[0]
        for id_, fields in page:
            found.setdefault(fields[1], int(id_.split(b"-")[0]))
        if len(page) < _PAGE:
            return found
        after = page[-1][0].decode()


async def _in_turns(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """Items, some at a time; others have the loop for as long as these take."""
    share, rest = LoopShare(), iter(items)
    while some := list(islice(rest, _STEP)):
        yield some
        if share.taken_s > _TURN_S:
            await share.rest()


async def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows in order, as `_in_turns`."""
    runs = [sorted(some) async for some in _in_turns(rows)]
    return [row async for some in _in_turns(heapq.merge(*runs)) for row in some]


def _parsed(text: bytes) -> TrailEvent | None:
    """An event as it is stored; None: somebody else put that there."""
    try:
        return TrailEvent.FromString(text)
    except DecodeError:
        return None
