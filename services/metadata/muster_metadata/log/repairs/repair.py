"""Brings one node's log up to the log of a claim: a missing tail, a divergent end, or everything."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from muster_core.position import GENESIS, Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.clock import boot_ms
from muster_runtime.logs import alarm

from muster_metadata.log.repairs.rebuilding import Rebuilder
from muster_metadata.log.repairs.sources import NOTHING, Sources
from muster_metadata.log.snapshot_copies import SnapshotCopies
from muster_metadata.log.states import Held, Inspected, Repaired
from muster_metadata.log.verdicts import checked
from muster_metadata.nodes.entries import LogEnd, parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status

_PORTION_BYTES = 256 << 10
_MARK_BYTES = 8

FLOOR_ABOVE = 10_000
"""How far a floor is above every known epoch: more promises than a node can give for one log in the second or
two that it may forget. Epochs have ten digits in a token, which is room for a million restarts of nodes."""


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
        refill_tables: copies what a node that lost its data needs besides its logs before it counts again,
            and returns whether all of it is there; absent: it needs nothing.

    Attributes:
        sources: where the logs are read.
    """

    def __init__(
        self,
        quorum: Quorum,
        rebuild_delay_ms: int,
        now_ms: Callable[[], int] = boot_ms,
        refill_tables: Callable[[Node], Awaitable[bool]] | None = None,
    ) -> None:
        self.sources = Sources(quorum, now_ms)
        self._quorum = quorum
        self._snapshots = SnapshotCopies(quorum)
        self._rebuilder = Rebuilder(quorum, self.sources, self._snapshots, now_ms, refill_tables)
        self._rebuild_delay_ms = rebuild_delay_ms
        self._now_ms = now_ms
        self._vacant: dict[tuple[int, int], _Vacancy] = {}
        self._floors: dict[tuple[int, int], _Floor] = {}

    def identify(self, created_at_ms: int, addresses: Sequence[str]) -> None:
        """Sets what a node that lost its data is to know of itself when it is filled.

        Args:
            created_at_ms: when the cluster was made.
            addresses: of the nodes in the log's configuration.
        """
        self._rebuilder.created_at_ms = created_at_ms
        self._rebuilder.addresses = addresses

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
        source = await self.sources.best(held, node)
        if source is None:
            return Repaired.LATER
        cut = await self.sources.common(node, source[0], held.shard, end)
        if cut is None:
            return Repaired.LATER
        if cut == NOTHING:
            return await self._rebuild(node, held, end)
        result = Repaired.LEVEL
        while True:
            entries = await self.sources.portion(source[0], held.shard, cut)
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
        source = await self.sources.best(held, node)
        return source is not None and await self._snapshots.copy_missing(
            node, source[0], held.shard, nodes_heard=nodes_heard
        )

    async def _rebuild(self, node: Node, held: Held, end: LogEnd | None) -> Repaired:
        """Gives a node a whole log in the place of what it has, and what came to it since it was copied."""
        copied = await self._rebuilder.rebuild(node, held, end)
        if isinstance(copied, Repaired):
            return copied
        caught_up = await self._catch_up(node, held, copied)
        return Repaired.DONE if caught_up.whole else caught_up
