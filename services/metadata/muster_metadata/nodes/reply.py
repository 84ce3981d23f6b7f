"""One node's answer to one command: always a value, never an exception."""

import enum
from dataclasses import dataclass
from typing import Any

from redis.exceptions import BusyLoadingError, NoScriptError, OutOfMemoryError, ResponseError

from muster_metadata.nodes.entries import LogEnd, parse_id
from muster_metadata.nodes.problem import (
    BUSY,
    LOADING,
    REPLICA,
    SILENT,
    UNREACHABLE,
    UNVETTED,
    Problem,
    ProblemKind,
)


class Status(enum.Enum):
    """How a command ended at a node."""

    OK = "OK"
    """Done."""
    DUP = "DUP"
    """It had been done already."""
    MISMATCH = "MISMATCH"
    """The node's log does not end where the caller expects."""
    FENCED = "FENCED"
    """The node has a higher promise, or one of another claim with the same epoch."""
    UNPROMISED = "UNPROMISED"
    """The node has a lower promise: it has not got this claim yet."""
    PROMISED = "PROMISED"
    """`prepare` was refused for a higher promise."""
    SPENT = "SPENT"
    """`prepare` was refused: the log has a Claim of this nonce under another epoch."""
    SUPERSEDED = "SUPERSEDED"
    """A later run of the same name holds the lease."""
    NOLOG = "NOLOG"
    """The node has no such log: it was never initialised, or is lost. The node does not vote."""
    STRANGER = "STRANGER"
    """Another server is at the address: of another log, another node of this one, or an empty one that the
    log's configuration does not name. The node itself counts as away."""
    MOVED = "MOVED"
    """The log has another configuration at the node: the caller or the node has to adopt the newer one."""
    RESTARTED = "RESTARTED"
    """The node restarted and may have forgotten its last answers. It does not vote."""
    RAISED = "RAISED"
    """A floor was raised under the promise; a writer must name it."""
    UNFIT = "UNFIT"
    """The entries have lower ids than the log's stream takes: it must be copied up to where they belong."""
    DOWN = "DOWN"
    """Never sent: no connection."""
    LOST = "LOST"
    """Sent and not answered: it may have happened, or happen later."""
    LOADING = "LOADING"
    """The node is reading its data after a start, or the others were not asked yet what it may lack."""
    REFUSED = "REFUSED"
    """Out of memory or disk: nothing was written by this attempt."""
    BROKEN = "BROKEN"
    """An unexpected answer: foreign data under our keys, missing rights."""


@dataclass(frozen=True, slots=True)
class NodeReply:
    """Answer of one node.

    Attributes:
        status: how it ended.
        values: what the script or command returned after its status.
        problem: what is wrong with the node; None: nothing.
    """

    status: Status
    values: tuple[Any, ...] = ()
    problem: Problem | None = None

    @property
    def done(self) -> bool:
        """Whether the node has done what was asked, now or before."""
        return self.status is Status.OK or self.status is Status.DUP

    @property
    def end(self) -> LogEnd:
        """End of the log, for an answer that begins with it."""
        return LogEnd(parse_id(self.values[0]), self.values[1])

    @property
    def epoch(self) -> int:
        """Promised epoch or floor, in a refusal."""
        return int(self.values[0])

    @property
    def silent(self) -> bool:
        """Whether the answer says nothing about the node's log."""
        return self.status in _SILENT


_SILENT = frozenset({Status.DOWN, Status.LOST, Status.LOADING, Status.REFUSED, Status.BROKEN})
_BY_NAME = {status.value.encode(): status for status in Status}

DOWN = NodeReply(Status.DOWN, problem=UNREACHABLE)
LOST = NodeReply(Status.LOST, problem=SILENT)


def scripted(raw: Any) -> NodeReply:
    """Reads the answer to one of our scripts."""
    if isinstance(raw, list) and raw and isinstance(raw[0], bytes):
        status = _BY_NAME.get(raw[0])
        if status is not None:
            return NodeReply(status, tuple(raw[1:]))
    return failure(raw)


def plain(raw: Any) -> NodeReply:
    """Reads the answer to a plain command: `values` has the one value."""
    return failure(raw) if isinstance(raw, Exception) else NodeReply(Status.OK, (raw,))


def failure(raw: Any) -> NodeReply:
    """Reads an error, or any other answer that is not one of our scripts'."""
    text = str(raw)
    if isinstance(raw, BusyLoadingError):
        return NodeReply(Status.LOADING, problem=LOADING)
    if isinstance(raw, OutOfMemoryError) or "OOM" in text:
        return NodeReply(Status.REFUSED, problem=Problem(ProblemKind.OUT_OF_MEMORY, "it is out of memory"))
    if "MISCONF" in text:
        return NodeReply(Status.REFUSED, problem=Problem(ProblemKind.DISK, "it cannot write to its disk"))
    if isinstance(raw, NoScriptError):
        lost = Problem(ProblemKind.NO_SCRIPTS, "it lost its scripts; they are loaded again")
        return NodeReply(Status.DOWN, problem=lost)
    if text.startswith("BUSY "):
        return NodeReply(Status.BROKEN, problem=BUSY)
    if "READONLY" in text:
        return NodeReply(Status.BROKEN, problem=REPLICA)
    if "UNVETTED" in text:
        return NodeReply(Status.LOADING, problem=UNVETTED)
    if "DAMAGED" in text:
        damaged = Problem(ProblemKind.DAMAGED, "something else is stored there in the place of a log's data")
        return NodeReply(Status.BROKEN, problem=damaged)
    if isinstance(raw, ResponseError):
        refused = Problem(ProblemKind.COMMAND_REFUSED, f"it refuses: {text.split(':')[0][:80]}")
        return NodeReply(Status.BROKEN, problem=refused)
    return NodeReply(Status.BROKEN, problem=Problem(ProblemKind.NONSENSE, "its answer makes no sense"))
