"""Many messages that differ in a number alone, as bytes: twenty thousand partitions of a topic.

To add each by itself to a repeated field takes three times as long as to write what they have in common once,
and to have protobuf read that.
"""

from collections.abc import Iterable

_VARINT, _LENGTH = 0, 2
_LAST = [bytes((bits,)) for bits in range(0x80)]
_MORE = [bytes((bits | 0x80,)) for bits in range(0x80)]


def numbered_messages(field: int, like: bytes, number_field: int, numbers: Iterable[int]) -> bytes:
    """What adds a message for each number to a field: `MergeFromString` of the message that has it reads it.

    Args:
        field: number of the repeated field.
        like: one of its messages, encoded without its number.
        number_field: number of the field in it that they differ in.
        numbers: of the messages, in order; none is below 0.
    """
    begin = like + _varint(number_field << 3 | _VARINT)
    begins: dict[int, bytes] = {}  # by size of the number: twenty thousand topics may have one partition each
    parts: list[bytes] = []
    add = parts.append
    for number in numbers:
        encoded = _varint(number)
        size = len(encoded)
        if size not in begins:
            begins[size] = header(field, len(begin) + size) + begin
        add(begins[size])
        add(encoded)
    return b"".join(parts)


def header(field: int, length: int) -> bytes:
    """What is before a message of this length, in bytes, in a field of another one."""
    return _varint(field << 3 | _LENGTH) + _varint(length)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _LAST[number]
    if number < 0x4000:
        return _MORE[number & 0x7F] + _LAST[number >> 7]
    return _MORE[number & 0x7F] + _varint(number >> 7)
