"""Decides from the answers of the nodes how a step ended. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.nodes.quorum import Replies
from muster_metadata.nodes.reply import NodeReply, Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a step.

    Attributes:
        outcome: what happened.
        epoch: with FENCED: the epoch that was promised.
        message: explanation for people; empty with OK.
        refusing_nodes: how many nodes took nothing because they are out of memory or disk.
    """

    outcome: "metadata_pb2.LogOutcome.ValueType"
    epoch: int = 0
    message: str = ""
    refusing_nodes: int = 0


OK = Verdict(metadata_pb2.LOG_OUTCOME_OK)
UNKNOWN = Verdict(
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    message="no majority of the log's nodes answered in time; repeat the step unchanged",
)
RAISED = Verdict(
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    message="a node of the log restarted meanwhile; repeat the step unchanged",
)
NO_LOG = Verdict(
    metadata_pb2.LOG_OUTCOME_NO_LOG,
    message="a majority of the nodes does not have this log: never initialised, or lost",
)
NEVER_THERE = Verdict(
    metadata_pb2.LOG_OUTCOME_INVALID, message="the log has other records after that end, or never ended there"
)


def truncated(end: Position | None, acknowledged: Position) -> Verdict:
    """The verdict on a log that lost records, with what is missing.

    Args:
        end: where the best copy that answered ends; None: unknown.
        acknowledged: where the log was acknowledged up to.
    """
    missing = "records are missing"
    if end is not None:
        lost = acknowledged.offset - end.offset
        missing = f"the last {lost} are missing; the best copy that answers ends at {end.stream_id}"
    return Verdict(
        metadata_pb2.LOG_OUTCOME_TRUNCATED,
        message=f"the log was acknowledged up to {acknowledged.stream_id}, and {missing}. Bring back the "
        "nodes that have them",
    )


def floor_in(replies: Replies) -> int:
    """The highest floor with which a node refused a writer that did not know it; 0: none did."""
    return max(
        (reply.epoch for reply in replies if reply is not None and reply.status is Status.RAISED), default=0
    )


def count_status(replies: Replies, *statuses: Status) -> int:
    """How many nodes answered with one of these statuses."""
    return sum(reply is not None and reply.status in statuses for reply in replies)


def fenced(replies: Replies) -> Verdict:
    """The verdict FENCED, with the highest promised epoch."""
    epoch = max(reply.epoch for reply in replies if reply is not None and reply.status in _OVERTAKEN)
    return Verdict(
        metadata_pb2.LOG_OUTCOME_FENCED,
        epoch,
        f"nodes without which there is no majority promised epoch {epoch} to another claim",
    )


def shared(replies: Replies, majority: int) -> Verdict | None:
    """The verdict that every step has in common: done, fenced or no log, each at a majority; None: none."""
    if count_status(replies, Status.OK, Status.DUP) >= majority:
        return OK
    if count_status(replies, *_OVERTAKEN) >= majority:
        return fenced(replies)
    if count_status(replies, Status.NOLOG) >= majority:
        return NO_LOG
    return None


def locked_out(replies: Replies, majority: int) -> Verdict | None:
    """FENCED if nodes with a higher promise are a minority without which no majority is possible; else None.

    Their claimant may have died long ago, and its promise would block the log for ever once another node is
    away: FENCED makes the owner claim again, above it. Nodes that merely lag do not count as away; they are
    repaired.
    """
    voting = count_status(replies, Status.OK, Status.DUP, Status.MISMATCH, Status.UNPROMISED)
    lost = count_status(replies, *_OVERTAKEN)
    return fenced(replies) if voting < majority <= voting + lost and lost else None


def appended(
    expected: Position, majority: int, *, first_attempt: bool
) -> Callable[[Replies, bool], Verdict | None]:
    """Returns what decides on an append after an acknowledged end.

    Args:
        expected: position of that end.
        majority: how many nodes are a majority.
        first_attempt: this batch was never sent before.
    """

    def decide(replies: Replies, final: bool) -> Verdict | None:
        verdict = shared(replies, majority)
        if verdict is None and count_status(replies, Status.RAISED):
            # The answers so far no longer count: the writer asks all nodes again.
            return RAISED
        if verdict is not None or not final:
            return verdict
        if not count_status(replies, Status.OK, Status.DUP):
            if sum(reply is not None and _behind(reply, expected) for reply in replies) >= majority:
                ends = [
                    reply.end.position
                    for reply in replies
                    if reply is not None and reply.status is Status.MISMATCH
                ]
                return truncated(max(ends, default=None), expected)
            if sum(reply is not None and _elsewhere(reply, expected) for reply in replies) >= majority:
                return NEVER_THERE
            written_nowhere = all(reply is not None and reply.status not in _MAY_BE for reply in replies)
            if first_attempt and written_nowhere and count_status(replies, Status.REFUSED):
                return _refused_by(replies, Verdict(metadata_pb2.LOG_OUTCOME_REFUSED))
        if verdict := locked_out(replies, majority):
            return verdict
        if count_status(replies, Status.REFUSED):
            return _refused_by(replies, UNKNOWN)
        return UNKNOWN

    return decide


def _refused_by(replies: Replies, verdict: Verdict) -> Verdict:
    """A verdict where nodes take no records, with how many; the text for people names no address."""
    refused = [reply for reply in replies if reply is not None and reply.status is Status.REFUSED]
    said = sorted({str(reply.problem) for reply in refused})
    message = f"{len(refused)} of {len(replies)} nodes of the log take no records: {', '.join(said)}"
    return replace(verdict, message=message, refusing_nodes=len(refused))


_OVERTAKEN = (Status.FENCED, Status.PROMISED, Status.SPENT)
_MAY_BE = (Status.OK, Status.DUP, Status.LOST)


def _behind(reply: NodeReply, expected: Position) -> bool:
    return reply.status is Status.UNPROMISED or (
        reply.status is Status.MISMATCH and reply.end.position < expected
    )


def _elsewhere(reply: NodeReply, expected: Position) -> bool:
    return reply.status is Status.MISMATCH and reply.end.position >= expected


def checked(majority: int) -> Callable[[Replies, bool], Verdict | None]:
    """Returns what decides on a read barrier."""

    def decide(replies: Replies, final: bool) -> Verdict | None:
        verdict = shared(replies, majority)
        return verdict or (locked_out(replies, majority) or UNKNOWN if final else None)

    return decide
