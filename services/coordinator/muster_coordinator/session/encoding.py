"""Large answers on a stream, which are encoded already: a message would copy them, and be encoded again."""

from collections.abc import Sequence

from muster_core.numbered_messages import header
from muster_protos.muster.v1 import session_pb2

_REPLY = session_pb2.ServerFrame.DESCRIPTOR.fields_by_name["reply"].number
_FRAMES = session_pb2.SessionResponse.DESCRIPTOR.fields_by_name["frames"].number


def reply_message(call_id: int, kind: str, body: Sequence[bytes]) -> list[bytes]:
    """A message of the stream with one frame, the answer to a call.

    Args:
        call_id: the call.
        kind: its field of `Reply`.
        body: the answer, encoded, in pieces.

    Returns:
        A `SessionResponse`, encoded, in pieces.
    """
    size_bytes = sum(map(len, body))
    reply = session_pb2.Reply(call_id=call_id).SerializeToString()
    reply += header(session_pb2.Reply.DESCRIPTOR.fields_by_name[kind].number, size_bytes)
    frame = header(_REPLY, len(reply) + size_bytes) + reply
    return [header(_FRAMES, len(frame) + size_bytes), frame, *body]
