"""Large messages of clients, decoded one at a time: two million parts would take a sixth of a second."""

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor

from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.quotas.connection import Connection
from muster_runtime.rpc.refusals import InvalidArgument, Violation, undecodable
from muster_runtime.rpc.sizes import note_size

LARGE_BYTES = 32 << 10
"""A message with no more is decoded in a millisecond or two, whatever it is made of."""
PARTS_MAX = 400_000
"""Parts of a message: a call names a hundred thousand things at most, each with a name and a list."""
_PART_BYTES = 2
"""No part of a message is smaller."""
UNCOUNTED_BYTES = PARTS_MAX * _PART_BYTES
"""A message with no more cannot have more parts, and is decoded in twenty milliseconds."""
VERY_LARGE_BYTES = 256 << 10
"""Who is in order loses no more of a message of a stream by its later fields."""
_TURN_PARTS = 2_000
"""So many are counted in a millisecond; then is looked whether others have their turn."""
_TURN_S = 0.002
"""Whose message took longer to decode leaves others as much time before the next one is."""

_VARINT, _I64, _LEN, _BEGIN, _END, _I32 = range(6)
_VARINT_BITS = 70
_FIXED_BYTES = {_I64: 8, _I32: 4}
_GROUPS = {_BEGIN: 1, _END: -1}


class Undecoded:
    """A large message as it came.

    Args:
        body: its bytes.
        decode: makes the message of them.
        kind: of the message; None: its parts are not counted.
        connection: by which it came.
        in_stream: whether it is one of several.
    """

    __slots__ = ("_body", "_connection", "_decode", "_in_stream", "_kind")

    def __init__(
        self,
        body: bytes,
        decode: Callable[[bytes], Any],
        kind: Descriptor | None,
        connection: Connection,
        *,
        in_stream: bool,
    ) -> None:
        self._body = body
        self._decode = decode
        self._kind = kind
        self._connection = connection
        self._in_stream = in_stream

    def __len__(self) -> int:
        """Its size in bytes."""
        return len(self._body)

    async def decoded(self) -> Any:
        """The message.

        Of fields of which one may be set the last one stays, so one of a stream may have taken long to decode
        and look small: what it has lost counts as parts, of which nobody who is in order has any.

        It waits for those of others, and leaves as much time of the loop as it takes. What is no message in
        the end took as long to find out, so it counts as the most parts that it may have had.

        Raises:
            ResourceExhausted: its sender owes too much for messages before.
            InvalidArgument: it has too many parts, or is none.
        """
        async with self._connection.turn_to_decode():
            self._connection.check_decoding()
            share = LoopShare()
            try:
                return await self._decoded(share)
            finally:
                if share.taken_s > _TURN_S:
                    await share.rest()

    async def decoded_of_stream(self) -> Any:
        """As `decoded`, of a stream: its bytes are counted until then.

        Raises:
            ResourceExhausted: as `decoded`, or there are too many.
            InvalidArgument: as `decoded`.
        """
        counted_bytes = self._connection.begin_waiting(len(self._body))
        try:
            return await self.decoded()
        finally:
            self._connection.end_waiting(counted_bytes)

    async def _decoded(self, share: LoopShare) -> Any:
        size_bytes = len(self._body)
        if size_bytes > UNCOUNTED_BYTES and self._kind is not None:
            await self._count(self._kind, share)
        try:
            message = self._decode(self._body)
        except MemoryError:
            raise
        except Exception:
            self._connection.owe_partitions(size_bytes // _PART_BYTES)
            raise undecodable() from None
        if not self._in_stream:
            note_size(message, size_bytes)
        elif size_bytes > VERY_LARGE_BYTES:
            await share.rest()
            if (lost_bytes := size_bytes - message.ByteSize()) > VERY_LARGE_BYTES:
                self._connection.owe_partitions(lost_bytes // _PART_BYTES)
        return message

    async def _count(self, kind: Descriptor, share: LoopShare) -> None:
        """Counts its parts, in turns of the loop.

        Raises:
            InvalidArgument: they are too many; they are owed.
        """
        for parts in _counts(self._body, kind):
            if parts > PARTS_MAX:
                self._connection.owe_partitions(parts)
                raise InvalidArgument([Violation("", f"the request has more than {PARTS_MAX:,} parts")])
            if share.taken_s > _TURN_S:
                await share.rest()


async def read_message(context: Any) -> Any:
    """Reads the next message of a stream; `grpc.aio.EOF`: there is none.

    Raises:
        Refused: it is none, or may not be decoded.
    """
    message = await context.read()
    return await message.decoded_of_stream() if isinstance(message, Undecoded) else message


def _counts(body: bytes, kind: Descriptor) -> Iterator[int]:
    """How many parts an encoded message has, so far and in the end; what is none is left to its decoder.

    Parts are fields, each as often as it is there, also those of the messages in it. In a group, which no
    message of ours has, the decoder knows no field, so that nothing in one is taken for a message.
    """
    parts, turn, groups = 0, _TURN_PARTS, 0
    inner: dict[Descriptor, dict[int, Descriptor]] = {}
    levels: list[tuple[int, Descriptor]] = [(len(body), kind)]
    at = 0
    try:
        while levels:
            end, kind = levels[-1]
            messages = inner.get(kind)
            if messages is None:
                messages = inner[kind] = _messages_of(kind)
            while at < end:
                tag, at = _varint(body, at)
                parts += 1
                if parts == turn:
                    turn += _TURN_PARTS
                    yield parts
                wire = tag & 7
                if wire == _LEN:
                    size, at = _varint(body, at)
                    held = messages.get(tag)
                    if held is not None and size and not groups:
                        levels.append((at + size, held))
                        break
                    at += size
                elif wire == _VARINT:
                    _, at = _varint(body, at)
                else:
                    at += _FIXED_BYTES.get(wire, 0)
                    groups += _GROUPS.get(wire, 0)
            else:
                levels.pop()
    except IndexError:
        pass
    yield parts


def _messages_of(kind: Descriptor) -> dict[int, Descriptor]:
    """The fields of a message that are messages, by the tag that they are encoded with."""
    return {
        field.number << 3 | _LEN: field.message_type
        for field in kind.fields
        if field.message_type is not None
    }


def _varint(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value = byte & 0x7F
    for shift in range(7, _VARINT_BITS, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError
