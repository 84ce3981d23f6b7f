"""Large answers on a stream, encoded once: a message would copy them, and be encoded again."""

from collections.abc import Iterator, Sequence

from muster_protos.muster.v1 import session_pb2
from muster_protos.muster.v1.coordinator_pb2 import OffsetFetchResponse

from muster_coordinator.loop_share import LoopShare

PIECE_PARTITIONS = 64
"""Partitions that are encoded at a time; their metadata may be a quarter of a megabyte."""

_SLICE_PARTITIONS = 4_096
_SLICE_BYTES = 1 << 21
"""Of more than these the loop is left to others: about two milliseconds."""

_LENGTH_DELIMITED = 2
_REPLY = session_pb2.ServerFrame.DESCRIPTOR.fields_by_name["reply"].number
_FRAMES = session_pb2.SessionResponse.DESCRIPTOR.fields_by_name["frames"].number
_GROUPS = OffsetFetchResponse.DESCRIPTOR.fields_by_name["groups"].number
_TOPICS = OffsetFetchResponse.Group.DESCRIPTOR.fields_by_name["topics"].number


def has_many(answer: OffsetFetchResponse) -> bool:
    """Whether an answer has more partitions than are encoded at a time."""
    left = PIECE_PARTITIONS
    for group in answer.groups:
        for topic in group.topics:
            left -= len(topic.partitions)
            if left < 0:
                return True
    return False


async def encoded(answer: OffsetFetchResponse) -> list[bytes]:
    """Encodes an answer of any size and leaves the loop to others meanwhile (LIM-48).

    In one piece 14 MB hold the loop for ten to forty milliseconds: the encoder copies what it has each time
    that it needs more room.

    Returns:
        The answer, in pieces.
    """
    share = LoopShare()
    pieces: list[bytes] = []
    partitions = size_bytes = 0
    for group in answer.groups:
        of_group: list[bytes] = [_without_topics(group)]
        for topic in group.topics:
            of_topic = [OffsetFetchResponse.Topic(name=topic.name).SerializeToString()]
            for piece in _in_pieces(topic):
                of_topic.append(piece)
                partitions += PIECE_PARTITIONS
                size_bytes += len(piece)
                if partitions >= _SLICE_PARTITIONS or size_bytes >= _SLICE_BYTES:
                    await share.rest()
                    partitions = size_bytes = 0
            of_group += (_header(_TOPICS, sum(map(len, of_topic))), *of_topic)
            partitions += 1
        pieces += (_header(_GROUPS, sum(map(len, of_group))), *of_group)
    return pieces


def _in_pieces(topic: OffsetFetchResponse.Topic) -> Iterator[bytes]:
    """The partitions of a topic, encoded some at a time."""
    for begin in range(0, len(topic.partitions), PIECE_PARTITIONS):
        some = topic.partitions[begin : begin + PIECE_PARTITIONS]
        yield OffsetFetchResponse.Topic(partitions=some).SerializeToString()


def _without_topics(group: OffsetFetchResponse.Group) -> bytes:
    """All else of a group, encoded."""
    rest = OffsetFetchResponse.Group()
    for field, content in group.ListFields():
        if field.number == _TOPICS:
            continue
        if field.message_type is not None:
            getattr(rest, field.name).CopyFrom(content)
        else:
            setattr(rest, field.name, content)
    return rest.SerializeToString()


def reply_message(call_id: int, kind: str, body: Sequence[bytes]) -> bytes:
    """A message of the stream with one frame, the answer to a call.

    Args:
        call_id: the call.
        kind: its field of `Reply`.
        body: the answer, encoded, in pieces.

    Returns:
        A `SessionResponse`, encoded.
    """
    size_bytes = sum(map(len, body))
    reply = session_pb2.Reply(call_id=call_id).SerializeToString()
    reply += _header(session_pb2.Reply.DESCRIPTOR.fields_by_name[kind].number, size_bytes)
    frame = _header(_REPLY, len(reply) + size_bytes) + reply
    return b"".join((_header(_FRAMES, len(frame) + size_bytes), frame, *body))


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
