"""Other values for fields of messages, set or not: what somebody writes who knows the form of a record."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from muster_protos.muster.v1 import common_pb2

_BIG = 2**31 - 1


def fields(message: Message, path: str = "") -> Iterator[tuple[Message, FieldDescriptor, str]]:
    """All fields that can be forged: those that are set, and single ones beside them that are not.

    Yields:
        The message that a field is in, the field, and where it is.
    """
    given = {field.name for field, _ in message.ListFields()}
    every: list[Any] = list(message.DESCRIPTOR.fields)
    for field in every:
        here, there = f"{path}.{field.name}", field.name in given
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if there or not (is_message or field.is_repeated or field.containing_oneof):
            yield message, field, here
        if there and is_message:
            value = getattr(message, field.name)
            for one in value if field.is_repeated else [value]:
                yield from fields(one, here)


def change(draw: random.Random, message: Message, field: FieldDescriptor) -> None:
    """Gives a field another value."""
    value: Any = getattr(message, field.name)
    if field.is_repeated:
        left = list(value)
        draw.choice([left.reverse, left.pop, left.clear])()
        message.ClearField(field.name)
        getattr(message, field.name).extend(left)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, draw.choice(_others(field, value)))


def _others(field: FieldDescriptor, value: Any) -> list[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return ["", "forged", value + "x"]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", b"\xff\x01", value[::-1], b"\x07" * 16]
    if field.type == FieldDescriptor.TYPE_BOOL:
        return [not value]
    if field.type == FieldDescriptor.TYPE_ENUM:  # ours have about so many values
        return list(range(12))
    unsigned = field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
    return [0, value + 1, max(value - 1, 0), _BIG, *([] if unsigned else [-5])]


def raised(message: Message, group_id: str) -> bool:
    """Adds one to all numbers of generations and epochs of a group in a message; whether there was one.

    Those of a snapshot's parts stand in items that do not name their group, so they are all raised.
    """
    if getattr(message, "group_id", group_id) != group_id:
        return False
    found = False
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                found |= not isinstance(one, common_pb2.Position) and raised(one, group_id)
        elif field.name in _NUMBERS and value > 0:
            setattr(message, field.name, value + 1)
            found = True
    return found


_NUMBERS = frozenset(
    {
        "generation",
        "last_generation",
        "assigned_generation",
        "converted_generation",
        "epoch",
        "target_epoch",
        "previous_epoch",
    }
)


def renamed(message: Message, before: str, now: str) -> bool:
    """Puts another name or secret in the place of one, wherever a message has it; whether it had."""
    found = False
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                found |= renamed(one, before, now)
        elif not field.is_repeated and value in (before, before.encode()):
            setattr(message, field.name, now if isinstance(value, str) else now.encode())
            found = True
    return found
