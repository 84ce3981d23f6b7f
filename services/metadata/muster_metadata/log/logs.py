"""Claims, appends and checks, as callers ask for them."""

import asyncio
from collections.abc import Callable, Sequence

from muster_core.record_bounds import APPEND_MAX_BYTES, APPEND_MAX_RECORDS, RECORD_MAX_BYTES
from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log import verdicts
from muster_metadata.log.claim import HIGHEST_EPOCH, Claimer
from muster_metadata.log.states import Held
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.connection import Argument, Packed
from muster_metadata.nodes.entries import LogEnd, NodeEntry, arguments, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

Claimed = Callable[[int, int, str, str], None]

_LARGE_BYTES = 256 << 10
"""To hash more takes so long that a thread does it, meanwhile other logs have the loop."""


def _invalid(message: str) -> Verdict:
    return Verdict(metadata_pb2.LOG_OUTCOME_INVALID, message=message)


class Logs:
    """Carries out steps on logs; every outcome is a value, never an exception.

    Args:
        quorum: the nodes.
        claimer: carries out claims.
        upkeep: gets what was written, and which nodes lack it.
        claimed: called with each claim: shard, epoch, name and session of the owner.

    Attributes:
        on_asked: called with each node that a batch is sent to and the future of its answer, if set.
    """

    def __init__(self, quorum: Quorum, claimer: Claimer, upkeep: Upkeep, claimed: Claimed) -> None:
        self._quorum = quorum
        self._claimer = claimer
        self._upkeep = upkeep
        self._claimed = claimed
        self.on_asked: Callable[[Node, Answer], None] | None = None
        self._floors: dict[int, int] = {}

    async def claim(
        self, shard: int, step: metadata_pb2.ClaimStep
    ) -> tuple[Verdict, Held | None, LogEnd | None]:
        """Claims a log.

        Returns:
            The verdict; with OK also the claim and the end of the log.
        """
        problem = _claim_problem(step)
        if problem:
            return _invalid(problem), None, None
        result = await self._claimer.claim(shard, step)
        if result.held is not None and result.end is not None:
            self._upkeep.wrote(result.held, result.end, result.behind)
            self._claimed(shard, result.held.epoch, step.node_id, step.session)
        return result.verdict, result.held, result.end

    async def append(self, shard: int, step: metadata_pb2.AppendStep) -> tuple[Verdict, LogEnd | None]:
        """Writes a batch after an end that is known to be acknowledged.

        Returns:
            The verdict; with OK also the new end.
        """
        records = [(new.record, new.nonce) for new in step.records[: APPEND_MAX_RECORDS + 1]]
        problem = _append_problem(step, records)
        if problem:
            return _invalid(problem), None
        held, end = Held(shard, step.epoch, step.claim_nonce), LogEnd.from_proto(step.end)
        entries: list[NodeEntry]
        of_entries: Sequence[Argument]
        if sum([len(record) for record, _ in records]) < _LARGE_BYTES:
            entries = chain(end, step.epoch, records)
            of_entries = arguments(entries)
        else:
            entries, of_entries = await asyncio.to_thread(_chained, end, step.epoch, records)
        id_ = end.position.stream_id
        # The caller goes on from an end only when a majority has it: it is the acknowledged position.
        batch: list[Argument] = [id_, end.hash, id_, *of_entries]
        first_attempt, frees = step.first_attempt, step.frees
        verdict, replies = await self._append(held, end, batch, first_attempt=first_attempt, frees=frees)
        if verdict.outcome == metadata_pb2.LOG_OUTCOME_OK:
            self._upkeep.wrote(held, entries[-1].end)
            self._pass_on(held, replies)
            return verdict, entries[-1].end
        if verdicts.count_status(replies, Status.OK, Status.DUP):
            # A node that has the batch has the claim too: the others can be repaired from it.
            self._upkeep.wrote(held, None)
            self._pass_on(held, replies)
        else:
            self._report_refusals(held, replies)
        return verdict, None

    async def _append(
        self, held: Held, end: LogEnd, batch: list[Argument], *, first_attempt: bool, frees: bool
    ) -> tuple[Verdict, Replies]:
        """Asks all nodes, and again if one restarted: only answers under the same floor are added up."""

        def question(node: Node) -> Answer:
            return self._asked(node, node.append(*held, batch, floor, frees=frees))

        while True:
            floor = self._floors.get(held.shard, 0)
            verdict, replies = await self._quorum.ask(
                question,
                verdicts.appended(end.position, self._quorum.majority, first_attempt=first_attempt),
                late=lambda node, reply: self._upkeep.replied(held, node, reply),
            )
            if verdict is not verdicts.RAISED:
                return verdict or verdicts.UNKNOWN, replies
            self._floors[held.shard] = max(floor, verdicts.floor_in(replies))
            first_attempt = False

    def _asked(self, node: Node, answer: Answer) -> Answer:
        if self.on_asked is not None:
            self.on_asked(node, answer)
        return answer

    async def check(self, shard: int, step: metadata_pb2.CheckStep) -> tuple[Verdict, LogEnd | None]:
        """The read barrier: confirms that a majority still has the claim.

        Returns:
            The verdict; with OK also the end of the log.
        """
        held = Held(shard, step.epoch, step.claim_nonce)
        if len(step.claim_nonce) != 16 or not 0 < step.epoch <= HIGHEST_EPOCH:
            return _invalid("a check needs the epoch and the 16-byte nonce of a claim"), None
        verdict, replies = await self._quorum.ask(
            lambda node: node.check(*held),
            verdicts.checked(self._quorum.majority),
            late=lambda node, reply: self._upkeep.replied(held, node, reply),
        )
        verdict = verdict or verdicts.UNKNOWN
        if verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            return verdict, None
        self._upkeep.wrote(held, None)
        self._pass_on(held, replies)
        ends = [reply.end for reply in replies if reply is not None and reply.status is Status.OK]
        return verdict, max(ends, key=lambda end: end.position)

    def _report_refusals(self, held: Held, replies: Replies) -> None:
        for node, reply in zip(self._quorum.nodes, replies, strict=True):
            if reply is not None:
                self._upkeep.report_refusal(held.shard, node, reply)

    def _pass_on(self, held: Held, replies: Replies) -> None:
        for node, reply in zip(self._quorum.nodes, replies, strict=True):
            if reply is not None and not reply.done:
                self._upkeep.replied(held, node, reply)


def _claim_problem(step: metadata_pb2.ClaimStep) -> str:
    if not 1 <= len(step.node_id.encode()) <= ID_MAX_BYTES:
        return f"node_id must have 1 to {ID_MAX_BYTES} bytes"
    if len(step.nonce) != 16:
        return "the nonce of a claim must have 16 bytes"
    return "" if step.above_epoch < HIGHEST_EPOCH else f"above_epoch must be below {HIGHEST_EPOCH}"


def _chained(
    end: LogEnd, epoch: int, records: Sequence[tuple[bytes, bytes]]
) -> tuple[list[NodeEntry], Sequence[Argument]]:
    """The entries of a large batch, and what is sent of them to each node, packed once for all."""
    entries = chain(end, epoch, records)
    return entries, [Packed.of(arguments(entries))]


def _append_problem(step: metadata_pb2.AppendStep, records: Sequence[tuple[bytes, bytes]]) -> str:
    if not 0 < step.epoch <= HIGHEST_EPOCH or len(step.claim_nonce) != 16:
        return "an append needs the epoch and the 16-byte nonce of a claim"
    if not step.HasField("end") or len(step.end.hash) != 32 or step.end.position.epoch != step.epoch:
        return "an append needs the end of the log: a place of the same epoch and its 32-byte hash"
    if not 1 <= len(records) <= APPEND_MAX_RECORDS:
        return f"a batch has 1 to {APPEND_MAX_RECORDS} records"
    if any(len(nonce) != 16 or not record for record, nonce in records):
        return "every record needs bytes and a nonce of 16 bytes"
    sizes = [len(record) for record, _ in records]
    if max(sizes) > RECORD_MAX_BYTES or sum(sizes) > APPEND_MAX_BYTES:
        return f"a record has at most {RECORD_MAX_BYTES} bytes, a batch {APPEND_MAX_BYTES}"
    return ""
