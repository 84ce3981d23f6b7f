"""How a session stream ends, and what that means for its members and calls."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import grpc
from muster_protos.muster.v1 import session_pb2

from muster._session.transport import ConnectionLost, sort_status


class SessionEnded(Exception):
    """The server takes no streams: make a unary call. Never leaves this package."""


class How(Enum):
    """How a stream ended."""

    IDLE = "it was no longer needed"
    BROKEN = "it broke; another one may be opened at once"
    AGED = "the server asks for a new one"
    UNREACHED = "there is no way to the server"
    SILENT = "the server accepts, and does not answer"
    DRAINED = "the server stops"
    UNSUPPORTED = "the server has no streams"
    REFUSED = "the server has no room for it, or did not like it"
    DENIED = "the server does not allow it"


Sort: TypeAlias = Callable[[grpc.StatusCode, str, str], Exception]
_STATUS = {
    grpc.StatusCode.OK: How.BROKEN,
    grpc.StatusCode.UNIMPLEMENTED: How.UNSUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: How.REFUSED,
}
_GOODBYES = {
    session_pb2.GOODBYE_REASON_DRAINING: How.DRAINED,
    session_pb2.GOODBYE_REASON_AGE: How.AGED,
    session_pb2.GOODBYE_REASON_REFUSED: How.REFUSED,
}


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream.

    Attributes:
        how: why it ended.
        error: what calls on it raise.
    """

    how: How
    error: Exception


def closed() -> StreamEnd:
    """The end of a stream that the client closed."""
    return StreamEnd(How.IDLE, ConnectionLost("the connection was closed"))


def by_status(
    status: grpc.StatusCode, details: str, *, established: bool, sort: Sort = sort_status
) -> StreamEnd:
    """The end of a stream that the server or the network ended.

    Args:
        status: gRPC status of the stream.
        details: explanation of the status.
        established: whether the server had answered on the stream.
        sort: gives the exception for a status.
    """
    error = ConnectionLost(details or "the stream ended")
    sorted_out = error if status is grpc.StatusCode.OK else sort(status, details, "the session")
    if status in _STATUS:
        how = _STATUS[status]
    elif isinstance(sorted_out, ConnectionLost):
        how = How.BROKEN
    else:
        how = How.DENIED
    if how is How.BROKEN and not established:
        how = How.UNREACHED
    return StreamEnd(how, sorted_out)


def by_goodbye(goodbye: session_pb2.Goodbye) -> StreamEnd:
    """The end of a stream on which the server sent a goodbye."""
    how = _GOODBYES.get(goodbye.reason, How.BROKEN)
    return StreamEnd(how, ConnectionLost(goodbye.message or how.value))
