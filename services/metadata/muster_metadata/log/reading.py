"""Reads a log in pages: for its claimant up to the end, for others up to the acknowledged position."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster_core.position import GENESIS, NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log import verdicts
from muster_metadata.log.damage import report_damage
from muster_metadata.log.runs import Malformed, Run, runs_of
from muster_metadata.log.snapshot_copies import FoundSnapshot, SnapshotCopies, SnapshotLost
from muster_metadata.log.states import Inspected
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd, NodeEntry, continues
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

DEFAULT_PAGE = 1_000
MAX_PAGE = 5_000
_FIRST_PAGE = 8
"""So few that a page comes in time even if each entry is as large as one may be."""
PAGE_BYTES = 4 << 20
"""About as large is a page, however many entries are asked for."""

_TRIMMED = Verdict(
    metadata_pb2.LOG_OUTCOME_TRIMMED,
    message="the log begins after that place; start again from its newest snapshot",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read.

    Attributes:
        shard: which log.
        first: first position; offset 0: from the oldest entry, or from a snapshot.
        epoch: epoch of the reader's claim; 0: read up to the acknowledged position.
        nonce: nonce of the reader's claim.
        page_size: largest number of entries in a page; 0: 1,000.
        snapshot: start with the newest snapshot, if there is one.
        without: snapshots not to start with, by the last position that they cover.
        after_hash: hash of the entry before `first`: nodes whose entries do not continue it are passed over.
            For a read from the oldest entry on it is the hash before the Genesis; a snapshot replaces it by
            its own. Empty: the chain is not checked here, but by the reader.
    """

    shard: int
    first: Position
    epoch: int = 0
    nonce: bytes = b""
    page_size: int = 0
    snapshot: bool = False
    without: frozenset[Position] = frozenset()
    after_hash: bytes = b""

    @property
    def is_load(self) -> bool:
        """Whether no more is read than a shard has after a snapshot; else it may be all of a log."""
        return self.epoch > 0 or (self.snapshot and not self.without and not self.first.offset)


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Some entries or a part of a snapshot, or why there are no more.

    Attributes:
        verdict: OK, or why the read ends here.
        runs: entries, in order.
        acknowledged: the acknowledged position that the nodes know.
        part: the next part of the snapshot; empty: none.
        snapshot_upto: last position covered by the snapshot that the read began with.
    """

    verdict: Verdict
    runs: tuple[Run, ...] = ()
    acknowledged: Position = GENESIS
    part: bytes = b""
    snapshot_upto: Position | None = None

    @property
    def entries(self) -> list[NodeEntry]:
        """The entries, one by one."""
        return [entry for run in self.runs for entry in run.entries()]


class Room:
    """Room in memory for what is read: here as much as one likes."""

    async def begin(self) -> None:
        """Waits for room for a page or a part of a snapshot, before it is read."""

    def may_read_ahead(self) -> bool:
        """Whether the next page is read while nobody has taken this one; then it has its room."""
        return True


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which nodes to read from, and up to where."""

    sources: tuple[Node, ...]
    last: Position
    last_hash: bytes
    acknowledged: Position
    oldest: Position


@dataclass(slots=True)
class _Cursor:
    """The state of a read."""

    sources: list[Node]
    next: str
    expected: int
    count: int
    largest: int
    before: LogEnd | None
    damage: str = ""
    damaged: set[Node] = field(default_factory=set)
    widened: bool = False
    unsure: bool = False
    pending: Answer | None = None

    def advance(self, end: LogEnd, runs: Sequence[Run]) -> None:
        """A page was read; the next one is for twice as many, if they are no larger than these."""
        self.next, self.expected = f"({end.position.stream_id}", end.position.offset + 1
        self.before = end if self.before is not None else None
        entries, size = sum(len(run.records) for run in runs), sum(run.size_bytes for run in runs)
        self.count = max(1, min(2 * self.count, entries * PAGE_BYTES // max(size, 1), self.largest))


class LogReader:
    """Reads a log from one node that has all of it, after a majority said where it ends.

    Args:
        quorum: the nodes.
        copies: reads snapshots; absent: one of its own.
    """

    def __init__(self, quorum: Quorum, copies: SnapshotCopies | None = None) -> None:
        self._quorum = quorum
        self._copies = SnapshotCopies(quorum) if copies is None else copies

    async def read(self, wanted: Wanted, room: Room | None = None) -> AsyncGenerator[ReadPage, None]:
        """Yields the parts of a snapshot, then pages of entries; the last page may be empty.

        A page whose verdict is not OK ends the read.

        Args:
            wanted: what to read.
            room: for it; as much as it takes if absent.
        """
        room = Room() if room is None else room
        plan = await self._plan(wanted.shard, wanted.epoch, wanted.nonce)
        if isinstance(plan, Verdict):
            yield ReadPage(plan)
            return
        found = None
        if wanted.snapshot and not wanted.first.offset:
            scan = plan.oldest != GENESIS
            found = await self._copies.newest(
                wanted.shard, plan.last, wanted.without, plan.sources[0], scan=scan
            )
            if found is None and scan:
                yield ReadPage(await self._no_snapshot(wanted.shard, plan))
                return
        if found is not None:
            try:
                await room.begin()
                async for part in self._copies.parts(found):
                    yield ReadPage(verdicts.OK, (), plan.acknowledged, part, found.upto)
                    await room.begin()
            except SnapshotLost as lost:
                outcome = (
                    metadata_pb2.LOG_OUTCOME_DAMAGED if lost.certain else metadata_pb2.LOG_OUTCOME_UNKNOWN
                )
                yield ReadPage(Verdict(outcome, message=str(lost)), snapshot_upto=found.upto)
                return
        async for page in self._pages(wanted, plan, found, room):
            yield page
            del page  # else it is in memory while the next one waits for room

    async def _no_snapshot(self, shard: int, plan: _Plan) -> Verdict:
        """The verdict on a trimmed log without a usable snapshot."""
        replies = [await node.snapshots(shard) for node in self._quorum.nodes]
        message = (
            f"the log begins at {plan.oldest.stream_id}, and no snapshot that reaches there is on the nodes "
            "as its marker in the log says"
        )
        if all(reply.status is Status.OK for reply in replies):
            return Verdict(metadata_pb2.LOG_OUTCOME_DAMAGED, message=message)
        return Verdict(metadata_pb2.LOG_OUTCOME_UNKNOWN, message=f"{message} that answer")

    async def _pages(
        self, wanted: Wanted, plan: _Plan, found: FoundSnapshot | None, room: Room
    ) -> AsyncGenerator[ReadPage, None]:
        cursor = _begin(wanted, plan, found)
        while cursor.sources or await self._widen(wanted, plan, cursor):
            source = cursor.sources[0]
            if wanted.first <= plan.last:
                await room.begin()
            answer, cursor.pending = cursor.pending or _ask(source, wanted, plan, cursor), None
            reply = await answer
            if reply.status is not Status.OK:
                cursor.unsure = True
                cursor.sources.pop(0)
                continue
            rows = reply.values[0] if wanted.is_load else reply.values
            if not rows and wanted.first > plan.last:
                yield ReadPage(verdicts.OK, (), plan.acknowledged)
                return
            try:
                runs = _sound(rows, cursor, plan)
            except Malformed as error:
                if await self._trimmed(source, wanted.shard, cursor.expected):
                    yield ReadPage(_TRIMMED)
                    return
                self._pass_over(cursor, wanted.shard, str(error))
                continue
            end = runs[-1].end
            cursor.advance(end, runs)
            done = end.position >= plan.last
            if not done and room.may_read_ahead():
                # The next page is on its way while this one is sent.
                cursor.pending = _ask(source, wanted, plan, cursor)
            upto = None if found is None else found.upto
            page = ReadPage(verdicts.OK, tuple(runs), plan.acknowledged, snapshot_upto=upto)
            del answer, reply, rows, runs
            yield page
            del page
            if done:
                return
        damaged = cursor.damage and not cursor.unsure
        yield ReadPage(
            Verdict(metadata_pb2.LOG_OUTCOME_DAMAGED, message=cursor.damage) if damaged else verdicts.UNKNOWN
        )

    async def _widen(self, wanted: Wanted, plan: _Plan, cursor: _Cursor) -> bool:
        """Adds the other nodes that have the log, once those of the plan turned out to be damaged."""
        if cursor.widened or not cursor.damage:
            return False
        cursor.widened = True
        others = [node for node in self._quorum.nodes if node not in cursor.damaged]
        replies = await asyncio.gather(*(node.inspect(wanted.shard) for node in others))
        cursor.unsure = any(reply.status not in (Status.OK, Status.NOLOG) for reply in replies)
        cursor.sources = [
            node
            for node, reply in zip(others, replies, strict=True)
            if reply.status is Status.OK and _has(Inspected.read(reply), wanted, plan)
        ]
        return bool(cursor.sources)

    def _pass_over(self, cursor: _Cursor, shard: int, problem: str) -> None:
        """Gives the current node up as damaged, and raises an alarm."""
        node = cursor.sources.pop(0)
        cursor.damaged.add(node)
        cursor.damage = f"on every node that has the log to its end: {problem}"
        report_damage(node, shard, problem)

    async def _trimmed(self, source: Node, shard: int, expected: int) -> bool:
        """Whether the log of a node begins after the offset that was expected next."""
        if not expected:
            return False
        reply = await source.inspect(shard)
        return reply.status is Status.OK and Inspected.read(reply).first.offset > expected

    async def _plan(self, shard: int, epoch: int, nonce: bytes) -> _Plan | Verdict:
        decide = self._mine(epoch, nonce) if epoch else self._known
        verdict, replies = await self._quorum.ask(lambda node: node.inspect(shard), decide)
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return verdict or verdicts.UNKNOWN
        found = [
            (node, Inspected.read(reply))
            for node, reply in zip(self._quorum.nodes, replies, strict=True)
            if reply is not None and reply.status is Status.OK
        ]
        sound = [pair for pair in found if _is_sound(pair[1])]
        if len(sound) >= self._quorum.majority:
            found = sound
        acknowledged = max(state.acknowledged for _, state in found)
        oldest = max(state.first for _, state in found)
        if epoch:
            mine = [(node, state) for node, state in found if (state.epoch, state.nonce) == (epoch, nonce)]
            last = max((state.end for _, state in mine), key=lambda end: end.position)
            if last.position.epoch != epoch:
                return Verdict(
                    metadata_pb2.LOG_OUTCOME_UNKNOWN,
                    message="the Claim is not on a majority yet; claim again",
                )
            sources = _least_busy_first(node for node, state in mine if state.end == last)
            return _Plan(sources, last.position, last.hash, acknowledged, oldest)
        # A node stores an acknowledged position only with the entry itself.
        sources = _least_busy_first(node for node, state in found if state.acknowledged == acknowledged)
        return _Plan(sources, acknowledged, b"", acknowledged, oldest)

    def _known(self, replies: Replies, final: bool) -> Verdict | None:
        """Waits for a majority of nodes that have what they say is acknowledged, or for all."""
        decided = verdicts.checked(self._quorum.majority)(replies, final)
        if decided is not verdicts.OK or final:
            return decided
        states = (Inspected.read(reply) for reply in replies if reply and reply.status is Status.OK)
        return decided if sum(map(_is_sound, states)) >= self._quorum.majority else None

    def _mine(self, epoch: int, nonce: bytes) -> Callable[[Replies, bool], Verdict | None]:
        majority = self._quorum.majority

        def decide(replies: Replies, final: bool) -> Verdict | None:
            states = [
                Inspected.read(reply) for reply in replies if reply is not None and reply.status is Status.OK
            ]
            if sum((state.epoch, state.nonce) == (epoch, nonce) for state in states) >= majority:
                return verdicts.OK
            if verdicts.count_status(replies, Status.NOLOG) >= majority:
                return verdicts.NO_LOG
            above = [
                state.epoch
                for state in states
                if state.epoch > epoch or (state.epoch == epoch and state.nonce != nonce)
            ]
            if len(above) >= majority:
                return Verdict(
                    metadata_pb2.LOG_OUTCOME_FENCED,
                    max(above),
                    f"a majority of the log's nodes promised epoch {max(above)}",
                )
            return verdicts.UNKNOWN if final else None

        return decide


def _is_sound(state: Inspected) -> bool:
    """Whether a node's log reaches as far as it says that the log is acknowledged."""
    return state.acknowledged <= state.end.position


def _least_busy_first(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes in the order in which they are read: loads at the same time share them."""
    return tuple(sorted(nodes, key=lambda node: node.bulk.unanswered))


def _has(state: Inspected, wanted: Wanted, plan: _Plan) -> bool:
    """Whether a node has everything up to where the read ends."""
    if wanted.epoch:
        mine = (state.epoch, state.nonce) == (wanted.epoch, wanted.nonce)
        return mine and state.end.position >= plan.last
    return state.acknowledged >= plan.acknowledged


def _ask(source: Node, wanted: Wanted, plan: _Plan, cursor: _Cursor) -> Answer:
    """Asks a node for the next page; where thousands of large records may follow small ones, by size."""
    first, last = cursor.next, plan.last.stream_id
    if wanted.is_load:
        return source.page(wanted.shard, first, last, cursor.count)
    return source.entries(wanted.shard, first, cursor.count, PAGE_BYTES, last)


def _sound(rows: Sequence[Any], cursor: _Cursor, plan: _Plan) -> list[Run]:
    """The entries of a page.

    Raises:
        Malformed: they are damaged, or do not follow what was read before.
    """
    if not rows:
        raise Malformed("its last entries are missing")
    runs = runs_of(rows)
    if cursor.expected and runs[0].first_offset != cursor.expected:
        raise Malformed(f"entry {cursor.expected} is missing")
    end = runs[-1].end
    if end.position >= plan.last and plan.last_hash and end.hash != plan.last_hash:
        raise Malformed(f"{end.position.stream_id} has another hash than it had")
    if cursor.before is not None:
        before = cursor.before
        for entry in (entry for run in runs for entry in run.entries()):
            if not continues(before, [entry]):
                raise Malformed(f"{entry.position.stream_id} does not match its hash and the entry before it")
            before = entry.end
    return runs


def _begin(wanted: Wanted, plan: _Plan, found: FoundSnapshot | None) -> _Cursor:
    largest = min(wanted.page_size or DEFAULT_PAGE, MAX_PAGE)
    before = None
    if found is not None:
        first, expected = f"({found.upto.stream_id}", found.upto.offset + 1
        if wanted.after_hash:
            before = LogEnd(found.upto, found.hash)
    elif wanted.first.offset:
        first, expected = wanted.first.stream_id, wanted.first.offset
        if wanted.after_hash:
            before = LogEnd(Position(wanted.first.epoch, wanted.first.offset - 1), wanted.after_hash)
    else:
        first, expected = "-", 0
        if wanted.after_hash:
            expected, before = GENESIS.offset, LogEnd(NOWHERE, wanted.after_hash)
    return _Cursor(list(plan.sources), first, expected, min(_FIRST_PAGE, largest), largest, before)
