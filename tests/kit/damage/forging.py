"""Records forged field by field, and whole logs set back: with every hash made right by who knows how."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from kit.damage.streams import rechain
from kit.damage.target import Damage, Entry, Target, place
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2

_BIG = 2**31 - 1


def a_field_of_a_record(target: Target) -> str:
    """Changes one field of a record, and whatever names a hash of what follows: markers and snapshots."""
    entries = target.entries
    index = target.draw.randrange(len(entries))
    try:
        record = records_pb2.Record.FromString(entries[index][1][b"r"])
    except DecodeError:
        return "nothing"
    owner, field, path = target.draw.choice(list(_fields(record, "")))
    _change(target.draw, owner, field)
    entries[index][1][b"r"] = record.SerializeToString()
    _make_right(target, entries, index)
    target.rewrite(entries)
    return f"{path[1:]} of {entries[index][0].decode()}, with all hashes"


def a_record_less(target: Target) -> str:
    """Takes an entry out and moves the rest up, with whole hashes."""
    entries = target.entries
    if len(entries) < 3:
        return "nothing"
    index = target.draw.randrange(1, len(entries) - 1)
    contents = [fields for at, (_, fields) in enumerate(entries) if at != index]
    moved = [(id_, fields) for (id_, _), fields in zip(entries[:-1], contents, strict=True)]
    _make_right(target, moved, index)
    target.rewrite(moved)
    return f"entry {index}, the others moved up, with all hashes"


def set_back(target: Target) -> str:
    """Sets a log back to an earlier end, with all that the nodes say of it."""
    entries = target.entries
    left = target.draw.randrange(1, len(entries) + 1)
    entries = entries[:left]
    end = place(entries[-1][0])
    claim = next((fields[b"n"] for id_, fields in entries if place(id_).epoch == end.epoch), b"")
    target.rewrite(entries)
    for node in target.nodes:
        node.set(target.base + b":acknowledged", end.stream_id)
        node.hset(target.base + b":promise", mapping={"epoch": end.epoch, "nonce": claim})
        for upto, marker in node.hgetall(target.base + b":snapshots").items():
            if not marker or place(marker) > end:
                node.hdel(target.base + b":snapshots", upto)
    return f"the log set back to {end.stream_id}"


def _fields(message: Message, path: str) -> Iterator[tuple[Message, FieldDescriptor, str]]:
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        yield message, field, here
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                yield from _fields(one, here)


def _change(draw: random.Random, message: Message, field: FieldDescriptor) -> None:
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
        return [b"", b"\xff\x01", value[::-1]]
    if field.type == FieldDescriptor.TYPE_BOOL:
        return [not value]
    if field.type == FieldDescriptor.TYPE_ENUM:  # ours have about so many values
        return list(range(12))
    unsigned = field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
    return [0, value + 1, max(value - 1, 0), _BIG, *([] if unsigned else [-5])]


def _make_right(target: Target, entries: list[Entry], first: int) -> None:
    """Makes the chain whole from an entry on, and with it the markers and snapshots after it."""
    rechain(entries, first)
    for index in range(first + 1, len(entries)):
        marker = _marker(entries[index][1][b"r"])
        if marker is None:
            continue
        upto = Position.from_proto(marker.snapshot.upto)
        at = upto.offset - place(entries[0][0]).offset
        if first <= at < index:
            marker.snapshot.hash = entries[at][1][b"h"]
            marker.snapshot.digest = _signed(target, upto, marker.snapshot.hash) or marker.snapshot.digest
            entries[index][1][b"r"] = marker.SerializeToString()
            rechain(entries, index)


def _marker(data: bytes) -> records_pb2.Record | None:
    try:
        record = records_pb2.Record.FromString(data)
    except DecodeError:
        return None
    return record if record.HasField("snapshot") else None


def _signed(target: Target, upto: Position, hash_: bytes) -> bytes:
    """Has a stored snapshot name another hash; the digest of its parts then; nothing: there is none."""
    key, digest = target.base + b":snapshot:" + upto.stream_id.encode(), b""
    for node in target.nodes:
        stored: dict[bytes, bytes] = node.hgetall(key)
        numbers = sorted((name for name in stored if name.isdigit()), key=int)
        if not numbers:
            continue
        part = snapshot_pb2.SnapshotPart.FromString(stored[numbers[0]])
        part.items[0].header.hash = hash_
        stored[numbers[0]] = part.SerializeToString(deterministic=True)
        hashes = [part_hash(stored[number]) for number in numbers]
        digest = digest_of(hashes)
        node.hset(key, mapping={numbers[0]: stored[numbers[0]], b"hashes": b"".join(hashes)})
    return digest


FORGING: tuple[Damage, ...] = (a_field_of_a_record,) * 5 + (a_record_less, set_back)
"""What leaves a right log on all nodes can only be told by an anchor, or by an export."""
