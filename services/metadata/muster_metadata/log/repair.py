"""Brings one node's log up to the log of a claim: a missing tail, a divergent end, or everything."""

import asyncio
import enum
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from muster_core.position import GENESIS, NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.clock import boot_ms
from muster_runtime.logs import alarm

from muster_metadata.log.snapshot_copies import SnapshotCopies
from muster_metadata.log.verdicts import checked
from muster_metadata.nodes.entries import LogEnd, NodeEntry, continues, parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status

_PAGE_ENTRIES = 500
_PAGE_BYTES = 4 << 20
_PORTION_BYTES = 256 << 10
_HASHES = 256
_MARK_BYTES = 8
_NOTHING = LogEnd(NOWHERE, b"")
"""Stands for "no entry in common" where two logs are compared."""

_ABANDONED_MS = 5_000
"""A copy of a log that has not grown for this long has been abandoned."""
_DAMAGED_MS = 60_000
"""How long nothing is copied from a node whose copy of the log was found damaged."""

FLOOR_ABOVE = 10_000
"""How far a floor is above every known epoch: more promises than a node can give for one log in the second or
two that it may forget. Epochs have ten digits in a token, which is room for a million restarts of nodes."""


class Held(NamedTuple):
    """A claim as the nodes know it."""

    shard: int
    epoch: int
    nonce: bytes


class Repaired(enum.Enum):
    """How a repair ended."""

    DONE = "done"
    """The node has the log now."""
    LEVEL = "level"
    """The node had all of it already."""
    LATER = "later"
    """The node or every source is away: try again."""
    FENCED = "fenced"
    """The node promised a higher epoch: only a new claim can repair it."""
    BLOCKED = "blocked"
    """The server is not the node: it is of another cluster, another node, or empty and not configured."""

    @property
    def whole(self) -> bool:
        """Whether the node has the log."""
        return self in (Repaired.DONE, Repaired.LEVEL)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What one node holds of a log."""

    end: LogEnd
    acknowledged: Position
    epoch: int
    nonce: bytes
    first: Position
    entries: int
    floor: int
    run: str

    @property
    def missing(self) -> int:
        """Number of entries missing between the oldest and the last one: 0 if the log is whole."""
        return self.end.position.offset - self.first.offset + 1 - self.entries

    @classmethod
    def read(cls, reply: NodeReply) -> "Inspected":
        """Reads the answer to `inspect`."""
        _, _, acknowledged, epoch, nonce, first, entries, floor, run = reply.values
        return cls(
            reply.end, parse_id(acknowledged), int(epoch), nonce, parse_id(first), int(entries), int(floor),
            run.decode(),
        )  # fmt: skip


def claim_on_majority(shard: int, states: Iterable[Inspected], majority: int) -> tuple[Held, LogEnd] | None:
    """The claim that a majority has promised and has in its log; None: there is none.

    Returns:
        The claim, and the last entry that a majority has under it, so that it is acknowledged. Logs that have
        the Claim differ in how far they go alone.
    """
    ends: defaultdict[tuple[int, bytes], list[LogEnd]] = defaultdict(list)
    for state in states:
        if state.end.position.epoch == state.epoch:
            ends[state.epoch, state.nonce].append(state.end)
    for (epoch, nonce), found in ends.items():
        if len(found) >= majority:
            found.sort(key=lambda end: end.position, reverse=True)
            return Held(shard, epoch, nonce), found[majority - 1]
    return None


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a log that another instance may be making on a node."""

    end: bytes
    since_ms: int


@dataclass(frozen=True, slots=True)
class _Floor:
    """The floor under which a node that is in doubt in a run votes again."""

    run: str
    epoch: int


@dataclass(frozen=True, slots=True)
class _Vacancy:
    """A log that is gone from a node, identified by the mark that was left there."""

    mark: bytes
    run: str
    since_ms: int


class Repairer:
    """Repairs single nodes under a claim.

    The node checks the claim's promise and the exact end of its log before each write, so any instance may
    run a repair for any claim at any time.

    Args:
        quorum: all nodes.
        rebuild_delay_ms: how long a log must have been gone from a node, without a break, before it is
            filled. No claimant counts the answer to a `prepare` for that long, so none can still count a
            promise that the node forgot.
        now_ms: boot clock; that of the machine if absent.
        refill_tables: copies to a node that lost its data what it needs besides its logs before it counts
            again, and returns whether all of it is there; absent: it needs nothing.

    Attributes:
        created_at_ms: when the cluster was made, for the identity of a node that lost its data.
        addresses: of the nodes in the log's configuration, also for that.
    """

    def __init__(
        self,
        quorum: Quorum,
        rebuild_delay_ms: int,
        now_ms: Callable[[], int] = boot_ms,
        refill_tables: Callable[[Node], Awaitable[bool]] | None = None,
    ) -> None:
        self._quorum = quorum
        self._copies = SnapshotCopies(quorum)
        self._rebuild_delay_ms = rebuild_delay_ms
        self._now_ms = now_ms
        self._refill_tables = _nothing if refill_tables is None else refill_tables
        self._vacant: dict[tuple[int, int], _Vacancy] = {}
        self._floors: dict[tuple[int, int], _Floor] = {}
        self._foreign_copies: dict[tuple[int, int], _Copy] = {}
        self._damaged_ms: dict[tuple[int, int], int] = {}
        self.created_at_ms = 0
        self.addresses: Sequence[str] = ()

    async def repair(
        self, node: Node, held: Held, target: LogEnd | None = None, *, waited: bool = False
    ) -> Repaired:
        """Prepares a node for a claim whose Claim is in the log, and copies what the node lacks.

        Args:
            node: the node to repair.
            held: the claim.
            target: the end of a log that has everything; None: unknown.
            waited: a higher promise of the node has been met for so long that its claimant is taken for dead.
        """
        reply = await node.prepare(held.shard, held.epoch, held.nonce, vote=False)
        if reply.status is Status.STRANGER:
            return Repaired.BLOCKED
        if reply.status is Status.NOLOG:
            return await self._fill(node, held)
        if reply.status not in (Status.OK, Status.PROMISED):
            return Repaired.LATER
        vote = await node.inspect(held.shard)
        promised = reply.status is Status.PROMISED
        if vote.status is Status.RESTARTED or (promised and waited):
            return await self._bring_back(node, held)
        if promised:
            return Repaired.FENCED
        if reply.end == target:
            return Repaired.DONE
        return await self._catch_up(node, held, reply.end, parse_id(reply.values[2]))

    async def _fill(self, node: Node, held: Held) -> Repaired:
        """Copies a lost log to a node, once it has been gone for long enough."""
        reply = await node.vacant(held.shard, secrets.token_bytes(_MARK_BYTES))
        if reply.status is not Status.NOLOG:
            return Repaired.LATER
        # The mark disappears when the log is filled, or the node loses its data again: that is a new vacancy.
        mark, run, now_ms = reply.values[1], node.steps.run_id, self._now_ms()
        place = (node.index, held.shard)
        known = self._vacant.get(place)
        if known is None or (known.mark, known.run) != (mark, run):
            known = self._vacant[place] = _Vacancy(mark, run, now_ms)
        if now_ms - known.since_ms < self._rebuild_delay_ms:
            return Repaired.LATER
        result = await self._rebuild(node, held, None)
        if result.whole:
            self._vacant.pop(place, None)
        return result

    async def _bring_back(self, node: Node, held: Held) -> Repaired:
        """Lets a node vote under a claim again, whatever it promised, or may have forgotten in a restart.

        First a floor is raised on a majority of the others, higher than any promise that the node can have
        forgotten: no claimant that counts a forgotten promise gets another one, and whoever counts a
        forgotten acknowledgement must ask again. That majority then has all that was acknowledged, and the
        node gets it.

        If the node promised to a later claimant that died, that promise is lowered to this claim first: the
        floor is above it too, and the majority that has the floor never will promise to that claimant.
        """
        shard, run = held.shard, node.steps.run
        floor = await self._floor(node, held, run)
        if floor is None:
            return Repaired.LATER
        verdict, replies = await self._quorum.ask(
            lambda other: None if other is node else other.raise_floor(*held, floor),
            checked(self._quorum.majority),
        )
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return Repaired.LATER
        end = max(
            (reply.end for reply in replies if reply is not None and reply.status is Status.OK),
            key=lambda end: end.position,
        )
        lowered = await node.lower(*held, floor)
        if lowered.status is Status.FENCED:
            return Repaired.FENCED
        if lowered.status is not Status.OK:
            return Repaired.LATER
        here = await node.inspect(shard, vote=False)
        if here.status is not Status.OK:
            return Repaired.LATER
        caught_up = await self._catch_up(node, held, here.end, Inspected.read(here).acknowledged)
        if not caught_up.whole:
            return caught_up
        if not await self.complete(node, held, nodes_heard=self._quorum.majority):
            return Repaired.LATER
        having = (end.position.stream_id, end.hash)
        answer = await node.readmit(shard, held.epoch, held.nonce, having, floor, run)
        if answer.status is Status.FENCED:
            return Repaired.FENCED
        if answer.status is not Status.OK:
            return Repaired.LATER
        self._floors.pop((node.index, shard), None)
        return Repaired.DONE

    async def _floor(self, node: Node, held: Held, run: str) -> int | None:
        """The floor under which a node may vote again; None: a majority of the others lacks the claim.

        A repeated attempt gets the same floor, unless a claim has an epoch above it.
        """
        states = await asyncio.gather(
            *(other.inspect(held.shard, vote=other is not node) for other in self._quorum.nodes)
        )
        answers = dict(zip(self._quorum.nodes, states, strict=True))
        known = {one: Inspected.read(state) for one, state in answers.items() if state.status is Status.OK}
        standing = sum(
            (state.epoch, state.nonce) == (held.epoch, held.nonce)
            for other, state in known.items()
            if other is not node
        )
        if node not in known or standing < self._quorum.majority:
            return None
        place = (node.index, held.shard)
        floor = self._floors.get(place)
        if floor is None or floor.run != run or floor.epoch <= max(state.epoch for state in known.values()):
            epoch = max(max(state.epoch, state.floor) for state in known.values()) + FLOOR_ABOVE
            floor = self._floors[place] = _Floor(run, epoch)
        return floor.epoch

    async def _catch_up(
        self, node: Node, held: Held, end: LogEnd, acknowledged: Position = GENESIS
    ) -> Repaired:
        source = await self.source(held, node)
        if source is None:
            return Repaired.LATER
        cut = await self._common(node, source[0], held.shard, end)
        if cut is None:
            return Repaired.LATER
        if cut == _NOTHING:
            return await self._rebuild(node, held, end)
        result = Repaired.LEVEL
        while True:
            entries = await self._page(source[0], held.shard, cut)
            if entries is None:
                return Repaired.LATER
            if not entries and end.position.epoch > held.epoch:
                # What a dead claimant left, whose promise was lowered, is cut though nothing takes its place.
                return await self._rebuild(node, held, end)
            if not entries:
                return result if cut == end else Repaired.LATER
            if result is Repaired.LEVEL and acknowledged.offset > cut.position.offset:
                # This can only be missing if a majority forgot it. A source that merely lags cuts nothing.
                alarm(
                    "log_acknowledged_records_cut", node=node.index, shard=held.shard, epoch=held.epoch,
                    after=cut.position.stream_id, acknowledged=acknowledged.stream_id,
                )  # fmt: skip
            ends = (end.position.stream_id, end.hash, cut.position.stream_id, cut.hash)
            reply = await node.repair(*held, ends, entries)
            if reply.status is Status.UNFIT and await self._copied(node, held, ends):
                reply = await node.repair(*held, ends, entries)
            if reply.status is Status.FENCED:
                return Repaired.FENCED
            if not reply.done:
                return Repaired.LATER
            end = cut = reply.end
            result = Repaired.DONE

    async def _copied(self, node: Node, held: Held, ends: Sequence[bytes | str]) -> bool:
        """Copies what is left of a node's log, in portions: no other log of the node waits long.

        Whoever comes after an attempt that was interrupted goes on with its copy.
        """
        while True:
            reply = await node.portion(*held, ends, _PORTION_BYTES)
            if reply.status is not Status.OK:
                return False
            if reply.end.position.stream_id == ends[2]:
                return True

    async def complete(self, node: Node, held: Held, *, nodes_heard: int = 1) -> bool:
        """Copies the missing snapshots to a node that has the log; returns whether it has them all now."""
        source = await self.source(held, node)
        return source is not None and await self._copies.copy_missing(
            node, source[0], held.shard, nodes_heard=nodes_heard
        )

    async def source(self, held: Held, excluded: Node | None = None) -> tuple[Node, Inspected] | None:
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

    async def _common(self, node: Node, source: Node, shard: int, end: LogEnd) -> LogEnd | None:
        """The last entry that both nodes have; by its chain hash everything before it is equal too.

        Returns:
            Its end; `_NOTHING`: there is none, since what both had was trimmed; None: one does not answer.
        """
        upto = end.position.stream_id
        while True:
            here, there = await asyncio.gather(
                node.hashes(shard, upto, _HASHES), source.hashes(shard, upto, _HASHES)
            )
            if not here.status is there.status is Status.OK:
                return None
            if not here.values or not there.values:
                return _NOTHING
            known = dict(zip(there.values[::2], there.values[1::2], strict=True))
            for id_, hash_ in zip(here.values[::2], here.values[1::2], strict=True):
                if known.get(id_) == hash_:
                    return LogEnd(parse_id(id_), hash_)
            below = max(parse_id(here.values[-2]), parse_id(there.values[-2]))
            upto = f"({below.stream_id}"

    async def _rebuild(self, node: Node, held: Held, end: LogEnd | None) -> Repaired:
        """Copies a whole log to another key of the node, then renames it together with setting the promise.

        Args:
            node: it lost its data (`end` is None), or its log ends before the others' oldest entry.
            held: the claim.
            end: where its log ends.
        """
        source = await self.source(held, node)
        if source is None:
            return Repaired.LATER
        if await self._is_copied(node, held.shard):
            return Repaired.LATER
        copied = await self._copy(node, held, source, gone=end is None)
        if copied is None:
            return Repaired.LATER
        result = await self._install(node, held, end, source, copied)
        if result is not Repaired.DONE:
            # Another instance may have filled the node meanwhile: the copy must not be left there.
            await node.discard(held.shard, copied.position.stream_id, copied.hash)
            return result
        caught_up = await self._catch_up(node, held, copied)
        return Repaired.DONE if caught_up.whole else caught_up

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
            entries = await self._page(source[0], shard, copied)
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
        self, node: Node, held: Held, end: LogEnd | None, source: tuple[Node, Inspected], copied: LogEnd
    ) -> Repaired:
        """Puts a complete copy in the place of the log, if a majority without the node has the claim."""
        shard, epoch, nonce = held
        if copied.position < source[1].end.position:
            return Repaired.LATER
        if end is None and not await self._refill_tables(node):
            return Repaired.LATER
        if not await self._copies.copy_missing(node, source[0], shard, nodes_heard=self._quorum.majority):
            return Repaired.LATER
        # The node votes as soon as the copy is in place: a majority without it must still have the claim.
        verdict, replies = await self._quorum.ask(
            lambda other: None if other is node else other.check(shard, epoch, nonce),
            checked(self._quorum.majority),
        )
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return Repaired.LATER
        # A majority has everything that was acknowledged; the copy must not end before it.
        confirming = [reply for reply in replies if reply is not None and reply.status is Status.OK]
        if copied.position < max(reply.end.position for reply in confirming):
            return Repaired.LATER
        # Each floor that counts is on at least one of them.
        floor = max(int(reply.values[2]) for reply in confirming)
        expected = ("", b"") if end is None else (end.position.stream_id, end.hash)
        reply = await node.install(
            shard, epoch, nonce, copied.position.stream_id, copied.hash, *expected,
            source[1].acknowledged.stream_id, self.created_at_ms, ",".join(self.addresses), floor,
        )  # fmt: skip
        if reply.status is Status.FENCED:
            return Repaired.FENCED
        return Repaired.DONE if reply.status is Status.OK else Repaired.LATER

    async def _page(self, source: Node, shard: int, after: LogEnd | None) -> list[NodeEntry] | None:
        """The next entries after an end, or from the oldest on; None: the source has no valid ones."""
        first = "-" if after is None else f"({after.position.stream_id}"
        reply = await source.entries(shard, first, _PAGE_ENTRIES, _PAGE_BYTES)
        if reply.status is not Status.OK:
            return None
        entries = _sound(reply.values, after)
        if entries is None and not await self._is_trimmed(source, shard, after):
            self._damaged_ms[source.index, shard] = self._now_ms()
            place = GENESIS if after is None else after.position
            problem = f"an entry after {place.stream_id} is missing, or was changed"
            alarm("log_node_damaged", node=source.index, address=source.place, shard=shard, problem=problem)
        return entries

    async def _is_trimmed(self, source: Node, shard: int, after: LogEnd | None) -> bool:
        """Whether the entries after an end may have been trimmed there."""
        reply = await source.inspect(shard, vote=False)
        if reply.status is not Status.OK:
            return True
        return after is not None and Inspected.read(reply).first.offset > after.position.offset + 1


async def _nothing(_node: Node) -> bool:
    return True


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
