"""Large answers, encoded some at a time: in one piece megabytes hold the loop for tens of milliseconds."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from muster_core.numbered_messages import header
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2
from muster_runtime.loop_share import LoopShare

PIECE_PARTS = 64
"""Parts of an answer that are encoded at a time, at most: partitions, members, tokens."""

_FIRST_PIECE_PARTS = 8
_SHORT_PIECE_BYTES = 1 << 16
_LONG_PIECE_BYTES = 1 << 18
"""After a longer piece the next one has half as many parts, after a short one twice as many."""
_SMALL_BYTES = 4 << 10
"""Parts that have more in bytes and lists are encoded by themselves, whatever those before them had."""
_LISTED_BYTES = 32
"""About what is in a list takes: the name of a topic, or the number of a partition."""

_SLICE_S = 0.002
"""After longer of it the loop is left to others."""

_FEW: Mapping[type[Any], int] = {
    coordinator_pb2.OffsetFetchResponse: PIECE_PARTS,
    coordinator_pb2.SyncGroupResponse: PIECE_PARTS,
    coordinator_pb2.ListGroupsResponse: PIECE_PARTS,
    coordinator_pb2.JoinGroupResponse: _FIRST_PIECE_PARTS,
    coordinator_pb2.DescribeGroupsResponse: 0,
    coordinator_pb2.GroupHistoryResponse: 0,
    incremental_pb2.ConsumerGroupDescribeResponse: 0,
}
"""Answers that may be large, and with how many parts they are not: a member may have half a megabyte."""


def is_large(answer: Message) -> bool:
    """Whether to encode an answer may hold the loop for milliseconds."""
    few = _FEW.get(type(answer))
    return few is not None and _more_parts_than(few, answer) < 0


def _more_parts_than(left: int, message: Message) -> int:
    """How many parts a message may have still; below 0: it has more, not all of which were counted."""
    for field, parts in message.ListFields():
        if field.message_type is None or not field.is_repeated:
            continue
        if not _has_parts(field.message_type):
            left -= len(parts)
        else:
            for part in parts:
                left = _more_parts_than(left - 1, part)
                if left < 0:
                    break
        if left < 0:
            break
    return left


async def in_pieces(answer: Message, share: LoopShare) -> list[bytes]:
    """Encodes an answer of any size and leaves the loop to others meanwhile (LIM-48).

    In one piece 14 MB hold the loop for ten to forty milliseconds: the encoder copies what it has each time
    that it needs more room.

    Args:
        answer: the answer.
        share: of the loop's time that this may take.

    Returns:
        The answer, in pieces.
    """
    pieces: list[bytes] = []
    await _encode(answer, pieces, share)
    return pieces


async def _encode(message: Message, pieces: list[bytes], share: LoopShare) -> None:
    """Adds a message, encoded, at the end of what there is."""
    kind = type(message)
    rest, divided = kind(), []
    for field, content in message.ListFields():
        if field.message_type is None:
            _set(rest, field, content)
        elif field.is_repeated:
            divided.append((field, content))
        else:
            getattr(rest, field.name).CopyFrom(content)
    pieces.append(rest.SerializeToString())
    for field, parts in divided:
        may_be_large = _has_parts(field.message_type) or bool(_long_fields(field.message_type))
        begin, at_once = 0, 1 if may_be_large else _FIRST_PIECE_PARTS
        while begin < len(parts):
            some = parts[begin : begin + at_once]
            if may_be_large:
                some = list(takewhile(_is_small, some))
            if some:
                together = kind()
                getattr(together, field.name).extend(some)
                pieces.append(together.SerializeToString())
                begin += len(some)
                if len(pieces[-1]) > _LONG_PIECE_BYTES:
                    at_once = max(1, at_once // 2)
                elif len(pieces[-1]) < _SHORT_PIECE_BYTES:
                    at_once = min(PIECE_PARTS, at_once * 2)
            else:
                of_part: list[bytes] = []
                await _encode(parts[begin], of_part, share)
                pieces += (header(field.number, sum(map(len, of_part))), *of_part)
                begin += 1
            if share.taken_s >= _SLICE_S:
                await share.rest()


def _is_small(message: Message) -> bool:
    """Whether a part is encoded together with others."""
    if _more_parts_than(_FIRST_PIECE_PARTS, message) < 0:
        return False
    long = _long_fields(message.DESCRIPTOR)
    return sum([size * len(getattr(message, name)) for name, size in long]) <= _SMALL_BYTES


@lru_cache
def _long_fields(descriptor: Descriptor) -> tuple[tuple[str, int], ...]:
    """The fields of a message that have bytes, or many texts or numbers, and what one of them takes."""
    return tuple(
        (field.name, _LISTED_BYTES if field.is_repeated else 1)
        for field in descriptor.fields
        if field.message_type is None and (field.is_repeated or field.type == field.TYPE_BYTES)
    )


@lru_cache
def _has_parts(descriptor: Descriptor) -> bool:
    """Whether messages of a kind have messages in lists, and so may be encoded in pieces themselves."""
    return any(field.message_type is not None and field.is_repeated for field in descriptor.fields)


def _set(message: Message, field: Any, content: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend(content)
    else:
        setattr(message, field.name, content)
