"""Large answers on a stream, encoded once: a message would copy them, and be encoded again."""

from muster_protos.muster.v1 import session_pb2

_LENGTH_DELIMITED = 2
_REPLY = session_pb2.ServerFrame.DESCRIPTOR.fields_by_name["reply"].number
_FRAMES = session_pb2.SessionResponse.DESCRIPTOR.fields_by_name["frames"].number


def reply_message(call_id: int, kind: str, body: bytes) -> bytes:
    """A message of the stream with one frame, the answer to a call.

    Args:
        call_id: the call.
        kind: its field of `Reply`.
        body: the answer, encoded.

    Returns:
        A `SessionResponse`, encoded.
    """
    reply = session_pb2.Reply(call_id=call_id).SerializeToString()
    reply += _header(session_pb2.Reply.DESCRIPTOR.fields_by_name[kind].number, len(body))
    frame = _header(_REPLY, len(reply) + len(body)) + reply
    return b"".join((_header(_FRAMES, len(frame) + len(body)), frame, body))


def _header(field: int, length: int) -> bytes:
    """What is before a message in a field of another one."""
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
