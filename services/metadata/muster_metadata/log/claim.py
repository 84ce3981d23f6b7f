"""Claims a log: gets a promise from a majority, finds the best log among them, writes a Claim after it."""

import asyncio
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.log import verdicts
from muster_metadata.log.best_copy import Copy, NotTheLog, best_copy
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held, Inspected, Repaired
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd, NodeEntry, arguments, chain
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import NodeReply, Status

HIGHEST_EPOCH = (1 << 53) - 1
"""Lua's numbers are exact up to here."""

_ATTEMPTS = 4
_FORGOTTEN = (Status.FENCED, Status.UNPROMISED, Status.NOLOG, Status.STRANGER, Status.RESTARTED)


@dataclass(frozen=True, slots=True)
class Claimed:
    """Outcome of a claim.

    Attributes:
        verdict: what happened.
        held: with OK: the claim as the nodes know it.
        end: with OK: the end of the log, which is the Claim record.
        behind: nodes that do not have the record yet.
    """

    verdict: Verdict
    held: Held | None = None
    end: LogEnd | None = None
    behind: tuple[Node, ...] = ()


@dataclass(slots=True)
class _Heard:
    """The state of the nodes before a claim."""

    top_epoch: int
    resumable: tuple[int, LogEnd] | None = None
    nodes: list[tuple[Node, Inspected]] = field(default_factory=list)


class Claimer:
    """Carries out claims, one at a time for each shard.

    Args:
        quorum: the nodes.
        repairer: brings nodes that lag up to the log of the claim.
        wall_ms: clock for the Claim record's time.
        claim_timeout_ms: after this the outcome is unknown.
    """

    def __init__(
        self, quorum: Quorum, repairer: Repairer, wall_ms: Callable[[], int], claim_timeout_ms: int
    ) -> None:
        self._quorum = quorum
        self._repairer = repairer
        self._wall_ms = wall_ms
        self._timeout_s = claim_timeout_ms / 1000
        self._locks: dict[int, asyncio.Lock] = {}

    async def claim(self, shard: int, step: metadata_pb2.ClaimStep) -> Claimed:
        """Claims a log. Repeated with its nonce, it resumes where an attempt stopped, at any instance."""
        try:
            async with asyncio.timeout(self._timeout_s), self._locks.setdefault(shard, asyncio.Lock()):
                return await self._claim(shard, step)
        except TimeoutError:
            return Claimed(verdicts.UNKNOWN)

    async def _claim(self, shard: int, step: metadata_pb2.ClaimStep) -> Claimed:
        above = step.above_epoch
        claimed = Claimed(verdicts.UNKNOWN)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(secrets.randbelow(20) * attempt / 1000)
            heard = await self._hear(shard, step.nonce)
            if isinstance(heard, Verdict):
                return Claimed(heard)
            configuration = self._quorum.configuration
            if heard.resumable is not None and heard.resumable[0] > above:
                held = Held(shard, heard.resumable[0], step.nonce)
                claimed = await self._spread(held, heard.resumable[1], {})
                return claimed if self._quorum.configuration == configuration else Claimed(verdicts.UNKNOWN)
            epoch = max(heard.top_epoch, above) + 1
            if epoch > HIGHEST_EPOCH:
                return Claimed(Verdict(metadata_pb2.LOG_OUTCOME_INVALID, message="there is no higher epoch"))
            claimed = await self._take(Held(shard, epoch, step.nonce), step)
            if self._quorum.configuration != configuration:
                # A node that took the Claim may have been replaced: whether the others are enough is unknown.
                claimed = Claimed(verdicts.UNKNOWN)
                continue
            if claimed.verdict.outcome != metadata_pb2.LOG_OUTCOME_UNKNOWN:
                return claimed
            above = epoch
        return claimed

    async def _hear(self, shard: int, nonce: bytes) -> _Heard | Verdict:
        """Asks which epochs there are, and whether this claim is in the log already."""
        verdict, replies = await self._quorum.ask(
            lambda node: node.inspect(shard), verdicts.checked(self._quorum.majority)
        )
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return verdict or verdicts.UNKNOWN
        found = [
            (node, Inspected.read(reply))
            for node, reply in zip(self._quorum.nodes, replies, strict=True)
            if reply is not None and reply.status is Status.OK
        ]
        top = max(max(state.epoch, state.floor, state.end.position.epoch) for _, state in found)
        # A node that restarted does not vote, but the promise that it remembers would refuse a lower epoch.
        top = max([top, *(reply.epoch for reply in replies if reply and reply.status is Status.RESTARTED)])
        heard = _Heard(top, nodes=found)
        node, best = max(found, key=lambda pair: pair[1].end.position)
        if best.end.position.epoch == top and (best.epoch, best.nonce) == (top, nonce):
            id_ = best.end.position.stream_id
            reply = await node.page(shard, id_, id_, 1)
            if reply.status is Status.OK and reply.values[0]:
                entry = NodeEntry.from_redis(reply.values[0][0])
                if entry.nonce == nonce and entry.hash == best.end.hash:
                    heard.resumable = (top, best.end)
        return heard

    async def _take(self, held: Held, step: metadata_pb2.ClaimStep) -> Claimed:
        shard, epoch, nonce = held
        tag = secrets.token_bytes(8)
        left_out: set[Node] = set()
        heard_all = False
        while True:
            copies = await self._promises(held, step, tag, left_out, all_nodes=heard_all)
            if isinstance(copies, Verdict):
                return Claimed(copies)
            found = await best_copy(self._quorum, shard, copies)
            if isinstance(found, Copy):
                break
            if isinstance(found, NotTheLog):
                left_out.add(found.node)
            elif heard_all:
                return Claimed(found)
            else:
                heard_all = True  # those that answered later may have what is missing
        best, promised = found.end, {copy.node for copy in copies}
        entry = self._entry(held, best, step)
        batch: list[bytes | str] = [best.position.stream_id, best.hash, "", *arguments([entry])]
        verdict, replies = await self._quorum.ask(
            lambda node: node.append(shard, epoch, nonce, batch, frees=True),
            verdicts.checked(self._quorum.majority),
        )
        answers = {
            node: reply for node, reply in zip(self._quorum.nodes, replies, strict=True) if reply is not None
        }
        if verdict is not None and verdict.outcome == metadata_pb2.LOG_OUTCOME_FENCED:
            return Claimed(verdict)
        forgotten = any(node in promised and reply.status in _FORGOTTEN for node, reply in answers.items())
        if forgotten and (verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK):
            # A promise that was counted is gone: a later one replaced it, or the node lost its data.
            return Claimed(verdicts.UNKNOWN)
        return await self._spread(held, entry.end, answers)

    async def _promises(
        self,
        held: Held,
        step: metadata_pb2.ClaimStep,
        tag: bytes,
        left_out: Container[Node],
        *,
        all_nodes: bool,
    ) -> list[Copy] | Verdict:
        """The copies of a majority that gave its promise, or of all that do in time; or why there is none."""
        shard, epoch, nonce = held
        checked = verdicts.checked(self._quorum.majority)

        def decide(replies: Replies, final: bool) -> Verdict | None:
            return checked(replies, final) if final or not all_nodes else None

        # A node may lose its data after it promised, and be rebuilt; `ask` counts no promise for that long.
        verdict, replies = await self._quorum.ask(
            lambda node: (
                None if node in left_out else node.prepare(shard, epoch, nonce, tag, above=step.above_epoch)
            ),
            decide,
        )
        if verdict is None or verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return verdict or verdicts.UNKNOWN
        return [
            Copy.read(node, reply)
            for node, reply in zip(self._quorum.nodes, replies, strict=True)
            if reply is not None and reply.status is Status.OK
        ]

    async def _spread(self, held: Held, end: LogEnd, answers: dict[Node, NodeReply]) -> Claimed:
        """Repairs nodes until a majority has the Claim; nothing is acknowledged before that."""
        having = {node for node, reply in answers.items() if reply.done}
        if len(having) >= self._quorum.majority:
            # Nothing is known of a node that has not answered yet; upkeep asks it again soon.
            return Claimed(verdicts.OK, held, end, tuple(node for node in answers if node not in having))
        rest = [node for node in self._quorum.nodes if node not in having]
        repairs = {asyncio.ensure_future(self._repairer.repair(node, held, end)): node for node in rest}
        fenced = 0
        try:
            for finished in asyncio.as_completed(repairs):
                result = await finished
                fenced += result is Repaired.FENCED
                if result.whole:
                    having |= {node for task, node in repairs.items() if _is_done(task)}
                if len(having) >= self._quorum.majority:
                    rest = [node for node in rest if node not in having]
                    return Claimed(verdicts.OK, held, end, tuple(rest))
        finally:
            for task in repairs:
                task.cancel()
            await asyncio.gather(*repairs, return_exceptions=True)
        if fenced >= self._quorum.majority:
            return Claimed(
                Verdict(
                    metadata_pb2.LOG_OUTCOME_FENCED,
                    held.epoch,
                    "another claim overtook this one on a majority",
                )
            )
        return Claimed(verdicts.UNKNOWN)

    def _entry(self, held: Held, best: LogEnd, step: metadata_pb2.ClaimStep) -> NodeEntry:
        record = records_pb2.Record(
            written_at_ms=self._wall_ms(),
            critical=True,
            claim=records_pb2.Claim(
                node_id=step.node_id,
                session=step.session,
                previous=best.position.to_proto(),
                version=step.version,
            ),
        ).SerializeToString()
        return chain(best, held.epoch, [(record, held.nonce)])[0]


def _is_done(task: "asyncio.Task[Repaired]") -> bool:
    return task.done() and not task.cancelled() and task.result().whole
