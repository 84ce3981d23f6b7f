"""Stores snapshots and trims logs, as the owner asks for it."""

from collections.abc import Callable

from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log import verdicts
from muster_metadata.log.claim import HIGHEST_EPOCH
from muster_metadata.log.snapshot_copies import HASHES
from muster_metadata.log.states import Held
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd, parse_id
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

MAX_PART_BYTES = 16 << 20
MAX_PARTS = 1 << 20
_HASH_BYTES = 32

_OTHER_BYTES = Verdict(
    metadata_pb2.LOG_OUTCOME_INVALID,
    message="that part of the snapshot is stored with other bytes, or its marker is not in the log",
)


def _invalid(message: str) -> Verdict:
    return Verdict(metadata_pb2.LOG_OUTCOME_INVALID, message=message)


class Snapshots:
    """Stores snapshots and trims logs, under the promise of the owner's claim.

    Args:
        quorum: the nodes.
        upkeep: gets which nodes lack something.
    """

    def __init__(self, quorum: Quorum, upkeep: Upkeep) -> None:
        self._quorum = quorum
        self._upkeep = upkeep

    async def store(self, shard: int, step: metadata_pb2.SnapshotStep) -> Verdict:
        """Stores a part of a snapshot, or the list of all parts' hashes, on a majority."""
        problem = _claim_problem(step.epoch, step.claim_nonce) or _part_problem(step)
        if problem:
            return _invalid(problem)
        held = Held(shard, step.epoch, step.claim_nonce)
        upto = Position.from_proto(step.upto).stream_id
        field, data = (HASHES, step.part_hashes) if step.part_hashes else (str(step.part), step.data)
        return await self._ask(held, lambda node: node.keep(*held, upto, field, data))

    async def trim(self, shard: int, step: metadata_pb2.TrimStep) -> Verdict:
        """Stores which snapshot is the newest, and removes older snapshots and what both kept ones cover."""
        problem = _claim_problem(step.epoch, step.claim_nonce) or _trim_problem(step)
        if problem:
            return _invalid(problem)
        held = Held(shard, step.epoch, step.claim_nonce)
        marker = LogEnd.from_proto(step.marker)
        upto = Position.from_proto(step.upto).stream_id
        previous = Position.from_proto(step.previous_upto)
        kept = previous.stream_id if previous.offset else ""
        place = (marker.position.stream_id, marker.hash)
        verdict = await self._ask(held, lambda node: node.mark(*held, upto, *place, kept))
        before = Position.from_proto(step.before)
        if verdict.outcome != metadata_pb2.LOG_OUTCOME_OK or not before.offset:
            return verdict
        if step.only_exported:
            exported = await self._exported(shard)
            if exported is None:
                return verdicts.UNKNOWN
            before = min(before, exported)
        if not before.offset:
            return verdict
        return await self._ask(held, lambda node: node.trim(*held, before.stream_id, *place, kept))

    async def _exported(self, shard: int) -> Position | None:
        """How far the audit has reported that it exported the log; None: no majority answers."""

        def decide(replies: Replies, final: bool) -> bool | None:
            enough = verdicts.count_status(replies, Status.OK) >= self._quorum.majority
            return True if enough and final else (False if final else None)

        enough, replies = await self._quorum.ask(lambda node: node.how_far_exported(shard), decide)
        if not enough:
            return None
        found = [reply.values[0] for reply in replies if reply is not None and reply.status is Status.OK]
        return max((parse_id(raw) for raw in found if raw), default=Position(0, 0))

    async def _ask(self, held: Held, question: Callable[[Node], Answer]) -> Verdict:
        majority = self._quorum.majority
        decided = verdicts.checked(majority)

        def decide(replies: Replies, final: bool) -> Verdict | None:
            if verdicts.count_status(replies, Status.MISMATCH) >= majority:
                return _OTHER_BYTES
            return decided(replies, final)

        verdict, replies = await self._quorum.ask(
            question, decide, late=lambda node, reply: self._upkeep.replied(held, node, reply)
        )
        for node, reply in zip(self._quorum.nodes, replies, strict=True):
            if reply is not None and not reply.done:
                self._upkeep.replied(held, node, reply)
        return verdict or verdicts.UNKNOWN


def _claim_problem(epoch: int, nonce: bytes) -> str:
    if 0 < epoch <= HIGHEST_EPOCH and len(nonce) == 16:
        return ""
    return "the step needs the epoch and the 16-byte nonce of a claim"


def _part_problem(step: metadata_pb2.SnapshotStep) -> str:
    if not step.upto.offset:
        return "upto must be a position of the log"
    if step.part >= MAX_PARTS:
        return f"part must be below {MAX_PARTS}"
    if step.part_hashes:
        whole = len(step.part_hashes) % _HASH_BYTES == 0 and not step.data
        return "" if whole else f"part_hashes has {_HASH_BYTES} bytes per part, and no data beside it"
    if not 1 <= len(step.data) <= MAX_PART_BYTES:
        return f"data has 1 to {MAX_PART_BYTES} bytes"
    return ""


def _trim_problem(step: metadata_pb2.TrimStep) -> str:
    marker, upto = Position.from_proto(step.marker.position), Position.from_proto(step.upto)
    previous, before = Position.from_proto(step.previous_upto), Position.from_proto(step.before)
    if len(step.marker.hash) != _HASH_BYTES or not upto.offset or upto >= marker:
        return "marker must be a place with its 32-byte hash, after upto"
    if previous >= upto:
        return "previous_upto must be before upto"
    if before > previous:
        return "before must not be after previous_upto: the log is kept from where the older snapshot ends"
    return ""
