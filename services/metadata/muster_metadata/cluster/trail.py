"""The audit trail as the nodes keep it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import DecodeError
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log.verdicts import count_status
from muster_metadata.nodes import keys
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

TrailEvent = metadata_pb2.TrailEvent

EVENTS_MAX = 100
EVENT_MAX_BYTES = 8 << 10
"""Of one event, and so many of them are kept with one call."""

_DONE = frozenset({"done", "unknown"})
"""Outcomes of calls that were carried out, or may be."""

_DAY_MS = 86_400_000
_PAGE = 500


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

    async def record(self, events: Iterable[TrailEvent]) -> bool:
        """Keeps events; returns whether a majority of the nodes has them. If not, repeat it."""
        done: list[bytes] = []
        refused: list[bytes] = []
        for event in events:
            (done if event.outcome in _DONE else refused).append(event.SerializeToString())
        kept = await asyncio.gather(self._keep(keys.TRAIL, done), self._keep(keys.TRAIL_REFUSED, refused))
        return all(kept)

    async def read(self, since_ms: int) -> list[TrailEvent] | None:
        """The events since a time, the oldest first; None if no majority of the nodes answers."""
        found: dict[bytes, TrailEvent] = {}
        for key in (keys.TRAIL, keys.TRAIL_REFUSED):
            texts = await _union(self._quorum.nodes, key, self._quorum.majority)
            if texts is None:
                return None
            for event in map(_parsed, texts):
                if event is None or event.at_ms < since_ms:
                    continue
                known = found.setdefault(event.event_id, event)
                if event.left_out > known.left_out:  # a repeat, which says more
                    found[event.event_id] = event
        return sorted(found.values(), key=lambda event: (event.at_ms, event.event_id))

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
    first_at = {text: at for texts in heard for text, at in texts.items()}
    return {text: first_at[text] for text in sorted(first_at, key=lambda text: (first_at[text], text))}


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


def _parsed(text: bytes) -> TrailEvent | None:
    """An event as it is stored; None: somebody else put that there."""
    try:
        return TrailEvent.FromString(text)
    except DecodeError:
        return None
