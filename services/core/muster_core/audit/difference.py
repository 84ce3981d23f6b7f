"""What two snapshots of one place differ in, for people: the group and the field."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from google.protobuf.message import Message
from muster_protos.muster.log.v1 import snapshot_pb2

_MAX_CHARACTERS = 80
_HASH = ".secret_hash"
"""Is in no line (SES-44)."""


def first_difference(stored: Iterable[bytes], made: Iterable[bytes]) -> str:
    """The first thing in which snapshots differ; empty: they hold the same.

    Args:
        stored: the parts of the snapshot that is stored.
        made: those of the one that the records give.
    """
    stored, made = list(stored), list(made)
    if stored == made:
        return ""
    of_group = ""
    for mine, theirs in zip_longest(_items(stored), _items(made)):
        one, other = (item or snapshot_pb2.SnapshotItem() for item in (mine, theirs))
        head = one.group if one.HasField("group") else other.group
        of_group = f"group {head.group_id!r}: " if head.group_id else of_group
        if one != other:
            return of_group + _difference(one, other, "")
    return ""


def _items(parts: Iterable[bytes]) -> Iterator[snapshot_pb2.SnapshotItem]:
    for part in parts:
        yield from snapshot_pb2.SnapshotPart.FromString(part).items


def _difference(stored: Message, made: Message, path: str) -> str:
    for field in stored.DESCRIPTOR.fields:
        one, other = getattr(stored, field.name), getattr(made, field.name)
        has = not field.has_presence or stored.HasField(field.name) == made.HasField(field.name)
        if one == other and has:
            continue
        here = f"{path}.{field.name}" if path else field.name
        if field.is_repeated:
            for index, (left, right) in enumerate(zip(one, other, strict=False)):
                if left != right:
                    return _values(left, right, f"{here}[{index}]")
            return f"{here} has {len(one)} items, {len(other)} by the records"
        if not has:
            there = stored.HasField(field.name)
            return f"{here} is {'there, and not' if there else 'missing, and there'} by the records"
        return _values(one, other, here)
    return f"{path or 'it'} differs"


def _values(stored: Any, made: Any, path: str) -> str:
    if isinstance(stored, Message):
        return _difference(stored, made, path)
    if path.endswith(_HASH):
        return f"{path} is another one than by the records"
    return f"{path} is {_short(stored)}, {_short(made)} by the records"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
