"""Reads a log in pages: for its claimant up to the end, for others up to the acknowledged position."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from muster_core.position import GENESIS, Position
from muster_protos.muster.internal.v1 import metadata_pb2 as pb

from muster_metadata import steps
from muster_metadata.entries import Entry
from muster_metadata.node import Node
from muster_metadata.quorum import Quorum, Replies
from muster_metadata.repair import Inspected
from muster_metadata.reply import Status
from muster_metadata.steps import Verdict

DEFAULT_PAGE = 1_000
MAX_PAGE = 5_000
_FIRST_PAGE = 200
_PAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, or why there are no more.

    Attributes:
        verdict: OK, or why the read ends here.
        entries: in order.
        acknowledged: acknowledged position as known.
    """

    verdict: Verdict
    entries: tuple[Entry, ...] = ()
    acknowledged: Position = GENESIS


@dataclass(frozen=True, slots=True)
class _Plan:
    """From where to where."""

    sources: tuple[Node, ...]
    last: Position
    last_hash: bytes
    acknowledged: Position


class LogReader:
    """Reads from one node that has everything, after a majority said what everything is."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    async def read(
        self, shard: int, first: Position, epoch: int, nonce: bytes, page_size: int
    ) -> AsyncIterator[Page]:
        """Pages from `first` on; the last one may be empty. A page that is not OK ends the read.

        Args:
            shard: which log.
            first: first place wanted; offset 0: from the oldest entry.
            epoch: epoch of the reader's claim; 0: read up to the acknowledged position.
            nonce: nonce of the reader's claim.
            page_size: entries per page at most; 0: 1,000.
        """
        plan = await self._plan(shard, epoch, nonce)
        if isinstance(plan, Verdict):
            yield Page(plan)
            return
        sources = list(plan.sources)
        cursor, expected = (first.stream_id if first.offset else "-"), 0
        largest = min(page_size or DEFAULT_PAGE, MAX_PAGE)
        count = min(_FIRST_PAGE, largest)
        sent = False
        while sources:
            reply = await sources[0].page(shard, cursor, plan.last.stream_id, count)
            if reply.status is not Status.OK:
                sources.pop(0)
                continue
            entries = tuple(map(Entry.from_redis, reply.values[0]))
            if not entries:
                if not sent and (not first.offset or first <= plan.last):
                    # Nothing where at least the last entry must be: trimmed or lost under the reader.
                    sources.pop(0)
                    continue
                yield Page(steps.OK, (), plan.acknowledged)
                return
            if not _dense(entries, expected):
                sources.pop(0)
                continue
            done = entries[-1].position >= plan.last
            if done and plan.last_hash and entries[-1].hash != plan.last_hash:
                sources.pop(0)
                continue
            sent = True
            yield Page(steps.OK, entries, plan.acknowledged)
            if done:
                return
            cursor, expected = f"({entries[-1].position.stream_id}", entries[-1].position.offset + 1
            size = sum(len(entry.record) for entry in entries)
            count = max(1, count // 2) if size > _PAGE_BYTES else min(2 * count, largest)
        yield Page(steps.UNKNOWN)

    async def _plan(self, shard: int, epoch: int, nonce: bytes) -> _Plan | Verdict:
        decide = self._mine(epoch, nonce) if epoch else steps.checked(self._quorum.majority)
        verdict, replies = await self._quorum.ask(lambda node: node.inspect(shard), decide)
        if verdict is None or verdict.outcome != pb.LOG_OUTCOME_OK:
            return verdict or steps.UNKNOWN
        found = [
            (node, Inspected.read(reply))
            for node, reply in zip(self._quorum.nodes, replies, strict=True)
            if reply is not None and reply.status is Status.OK
        ]
        acknowledged = max(state.acknowledged for _, state in found)
        if epoch:
            mine = [(node, state) for node, state in found if (state.epoch, state.nonce) == (epoch, nonce)]
            last = max((state.end for _, state in mine), key=lambda end: end.position)
            if last.position.epoch != epoch:
                return Verdict(
                    pb.LOG_OUTCOME_UNKNOWN, message="the Claim is not on a majority yet; claim again"
                )
            sources = tuple(node for node, state in mine if state.end == last)
            return _Plan(sources, last.position, last.hash, acknowledged)
        # A node stores an acknowledged position only with the entry itself.
        sources = tuple(node for node, state in found if state.acknowledged == acknowledged)
        return _Plan(sources, acknowledged, b"", acknowledged)

    def _mine(self, epoch: int, nonce: bytes):  # type: ignore[no-untyped-def]
        majority = self._quorum.majority

        def decide(replies: Replies, final: bool) -> Verdict | None:
            states = [
                Inspected.read(reply) for reply in replies if reply is not None and reply.status is Status.OK
            ]
            if sum((state.epoch, state.nonce) == (epoch, nonce) for state in states) >= majority:
                return steps.OK
            if steps.count(replies, Status.NOLOG) >= majority:
                return steps.NO_LOG
            above = [
                state.epoch
                for state in states
                if state.epoch > epoch or (state.epoch == epoch and state.nonce != nonce)
            ]
            if len(above) >= majority:
                return Verdict(
                    pb.LOG_OUTCOME_FENCED,
                    max(above),
                    f"a majority of the log's nodes promised epoch {max(above)}",
                )
            return steps.UNKNOWN if final else None

        return decide


def _dense(entries: tuple[Entry, ...], expected: int) -> bool:
    first = entries[0].position.offset
    if expected and first != expected:
        return False
    return entries[-1].position.offset - first == len(entries) - 1


async def drain(
    reader: LogReader, shard: int, first: Position, epoch: int, nonce: bytes
) -> tuple[Verdict, list[Entry]]:
    """A whole read at once, for small logs."""
    entries: list[Entry] = []
    async for page in reader.read(shard, first, epoch, nonce, MAX_PAGE):
        if page.verdict.outcome != pb.LOG_OUTCOME_OK:
            return page.verdict, entries
        entries += page.entries
    return steps.OK, entries
