"""Group calls as frames on a session stream, several frames to a message."""

from collections.abc import Iterable, Iterator

import grpc
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2, session_pb2

from muster._session.transport import GroupRequest, GroupResponse, sort_status
from muster._tracing import traceparent

MOST_FRAMES = 500
"""Frames of one message; a server takes 1,000 by default."""

MOST_BYTES = 1 << 20
"""Size of one message, and of the largest call that travels as a frame."""

_FIELDS = {
    coordinator_pb2.JoinGroupRequest: "join_group",
    coordinator_pb2.SyncGroupRequest: "sync_group",
    coordinator_pb2.HeartbeatRequest: "heartbeat",
    coordinator_pb2.LeaveGroupRequest: "leave_group",
    coordinator_pb2.OffsetCommitRequest: "offset_commit",
    coordinator_pb2.OffsetFetchRequest: "offset_fetch",
    incremental_pb2.ConsumerGroupHeartbeatRequest: "consumer_group_heartbeat",
}
_STATUS = {status.value[0]: status for status in grpc.StatusCode}


def fits(request: GroupRequest) -> bool:
    """Whether a call can travel on a stream; others are made as unary calls."""
    return type(request) in _FIELDS and request.ByteSize() <= MOST_BYTES


def call_frame(call_id: int, request: GroupRequest, connection: int = 0) -> session_pb2.ClientFrame:
    """The frame of a call, with a copy of the request."""
    frame = session_pb2.ClientFrame()
    frame.call.call_id = call_id
    frame.call.connection = connection
    frame.call.traceparent = traceparent()
    getattr(frame.call, _FIELDS[type(request)]).CopyFrom(request)
    return frame


def response_of(reply: session_pb2.Reply) -> GroupResponse:
    """Returns the answer that a reply contains.

    Raises:
        ConnectionLost: there is none, or none that can be trusted.
        Overloaded: the server asks to come back later.
        RequestRefused: the request is wrong or not allowed.
    """
    kind = reply.WhichOneof("response")
    if kind is None or kind == "refused":
        refused = reply.refused
        status = _STATUS.get(refused.status, grpc.StatusCode.UNKNOWN)
        raise sort_status(status, refused.message, "the call", refused.retry_after_ms)  # it names the field
    response: GroupResponse = getattr(reply, kind)
    return response


def messages(frames: Iterable[session_pb2.ClientFrame]) -> Iterator[session_pb2.SessionRequest]:
    """Packs frames into as few messages as the limits allow, in order."""
    batch: list[session_pb2.ClientFrame] = []
    size_bytes = 0
    for frame in frames:
        frame_bytes = frame.ByteSize() + 8
        if batch and (len(batch) == MOST_FRAMES or size_bytes + frame_bytes > MOST_BYTES):
            yield session_pb2.SessionRequest(frames=batch)
            batch, size_bytes = [], 0
        batch.append(frame)
        size_bytes += frame_bytes
    if batch:
        yield session_pb2.SessionRequest(frames=batch)
