"""Logs forged with every hash made right by who knows how: records, snapshots, and whole logs set back."""

import random
from collections.abc import Callable

from google.protobuf.message import DecodeError
from kit.damage.forged_fields import change, fields, raised, renamed
from kit.damage.streams import rechain
from kit.damage.target import Damage, Entry, Target, place
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2


def a_field_of_a_record(target: Target) -> str:
    """Changes one field of a record, set or not, and whatever names a hash of what follows."""
    entries = target.entries
    index = target.draw.randrange(len(entries))
    record = _record(entries[index])
    if record is None:
        return "nothing"
    owner, field, path = target.draw.choice(list(fields(record)))
    change(target.draw, owner, field)
    entries[index][1][b"r"] = record.SerializeToString()
    make_right(target, entries, index)
    target.rewrite(entries)
    return f"{path[1:]} of {entries[index][0].decode()}, with all hashes"


def a_field_of_a_snapshot(target: Target) -> str:
    """Changes one field of a stored snapshot, and its marker."""
    drawn = target.draw.randrange(1 << 30)
    said: list[str] = []

    def forge(part: snapshot_pb2.SnapshotPart) -> None:
        draw = random.Random(drawn)  # the same on each node
        items = [item for item in part.items if item.WhichOneof("kind") not in ("header", "end")]
        if not items:
            return
        owner, field, path = draw.choice(list(fields(draw.choice(items))))
        change(draw, owner, field)
        said.append(path[1:])

    uptos = sorted(_uptos(target))
    if not uptos:
        return "nothing"
    upto = target.draw.choice(uptos)
    _forge_snapshot(target, upto, forge)
    entries = target.entries
    make_right(target, entries, 0)
    target.rewrite(entries)
    return f"{said[0] if said else 'nothing'} of the snapshot up to {upto.decode()}, with all hashes"


def a_record_less(target: Target) -> str:
    """Takes an entry out and moves the rest up, with whole hashes."""
    entries = target.entries
    if len(entries) < 3:
        return "nothing"
    index = target.draw.randrange(1, len(entries) - 1)
    contents = [values for at, (_, values) in enumerate(entries) if at != index]
    moved = [(id_, values) for (id_, _), values in zip(entries[:-1], contents, strict=True)]
    make_right(target, moved, index)
    target.rewrite(moved)
    return f"entry {index}, the others moved up, with all hashes"


def a_record_over_another(target: Target) -> str:
    """Writes what one entry says in the place of another one, too."""
    entries = target.entries
    one, other = (target.draw.randrange(len(entries)) for _ in range(2))
    entries[other][1][b"r"] = entries[one][1][b"r"]
    make_right(target, entries, other)
    target.rewrite(entries)
    return f"what {entries[one][0].decode()} says at {entries[other][0].decode()}, with all hashes"


def two_records_exchanged(target: Target) -> str:
    """Lets an entry and a later one say what the other one said."""
    entries = target.entries
    first = target.draw.randrange(len(entries))
    second = min(first + target.draw.choice([1, 1, 2, 5]), len(entries) - 1)
    one, other = entries[first][1], entries[second][1]
    one[b"r"], other[b"r"] = other[b"r"], one[b"r"]
    make_right(target, entries, first)
    target.rewrite(entries)
    return f"{entries[first][0].decode()} and {entries[second][0].decode()} exchanged, with all hashes"


def all_numbers_of_a_group(target: Target) -> str:
    """Raises all epochs and generations of a group by one, in the records and in the snapshots."""
    entries = target.entries
    groups = sorted({group for entry in entries if (group := _group_of(_record(entry)))})
    if not groups:
        return "nothing"
    group = target.draw.choice(groups)
    for upto in _uptos(target):
        _forge_snapshot(target, upto, lambda part: _raise_in(part, group))
    for entry in entries:
        record = _record(entry)
        if record is not None and _group_of(record) == group and raised(record, group):
            entry[1][b"r"] = record.SerializeToString()
    make_right(target, entries, 0)
    target.rewrite(entries)
    return f"all epochs and generations of {group} raised, with all hashes"


def a_name_in_a_part(target: Target) -> str:
    """Gives a member another name or identity, or a group another id, up to an entry or from one on."""
    entries = target.entries
    names = sorted({name for entry in entries for name in _names_in(_record(entry))})
    if not names:
        return "nothing"
    name = target.draw.choice(names)
    cut = target.draw.randrange(len(entries) + 1)
    some = target.draw.choice([entries[:cut], entries[cut:], entries])
    if some is entries:
        for upto in _uptos(target):
            _forge_snapshot(target, upto, lambda part: renamed(part, name, name[::-1]))
    for entry in some:
        record = _record(entry)
        if record is not None and renamed(record, name, name[::-1]):
            entry[1][b"r"] = record.SerializeToString()
    make_right(target, entries, 0)
    target.rewrite(entries)
    return f"{name!r} in {len(some)} of {len(entries)} entries, cut at {cut}, with all hashes"


def set_back(target: Target) -> str:
    """Sets a log back to an earlier end, with all that the nodes say of it."""
    entries = target.entries
    left = target.draw.randrange(1, len(entries) + 1)
    entries = entries[:left]
    end = place(entries[-1][0])
    claim = next((values[b"n"] for id_, values in entries if place(id_).epoch == end.epoch), b"")
    target.rewrite(entries)
    for node in target.nodes:
        node.set(target.base + b":acknowledged", end.stream_id)
        node.hset(target.base + b":promise", mapping={"epoch": end.epoch, "nonce": claim})
        for upto, marker in node.hgetall(target.base + b":snapshots").items():
            if not marker or place(marker) > end:
                node.hdel(target.base + b":snapshots", upto)
    return f"the log set back to {end.stream_id}"


# --- what is in records


def _record(entry: Entry) -> records_pb2.Record | None:
    try:
        return records_pb2.Record.FromString(entry[1][b"r"])
    except DecodeError:
        return None


def _group_of(record: records_pb2.Record | None) -> str:
    kind = record.WhichOneof("kind") if record is not None else None
    return getattr(getattr(record, kind), "group_id", "") if kind else ""


def _names_in(record: records_pb2.Record | None) -> set[str]:
    """Ids of groups and members, identities and static ids that a record names."""
    if record is None:
        return set()
    return {
        value
        for owner, field, _ in fields(record)
        if field.name in ("group_id", "member_id", "identity", "group_instance_id")
        and (value := getattr(owner, field.name))
    }


# --- all hashes made right


def make_right(target: Target, entries: list[Entry], first: int) -> None:
    """Makes the chain whole from an entry on, and with it the markers and snapshots after it."""
    rechain(entries, first)
    for index in range(first + 1, len(entries)):
        record = _record(entries[index])
        if record is None or not record.HasField("snapshot"):
            continue
        upto = Position.from_proto(record.snapshot.upto)
        at = upto.offset - place(entries[0][0]).offset
        if first <= at < index:
            record.snapshot.hash = entries[at][1][b"h"]
            record.snapshot.digest = _signed(target, upto, record.snapshot.hash) or record.snapshot.digest
            entries[index][1][b"r"] = record.SerializeToString()
            rechain(entries, index)


def _signed(target: Target, upto: Position, hash_: bytes) -> bytes:
    """Has a stored snapshot name another hash; the digest of its parts then; nothing: there is none."""

    def sign(part: snapshot_pb2.SnapshotPart) -> None:
        if part.items and part.items[0].HasField("header"):
            part.items[0].header.hash = hash_

    return _forge_snapshot(target, upto.stream_id.encode(), sign)


def _uptos(target: Target) -> set[bytes]:
    """The ends of the snapshots that the nodes store."""
    prefix = target.base + b":snapshot:"
    return {key[len(prefix) :] for node in target.nodes for key in node.keys(_literally(prefix) + b"*")}


def _literally(key: bytes) -> bytes:
    return b"".join(b"\\" + bytes([one]) if one in b"[]*?\\" else bytes([one]) for one in key)


def _forge_snapshot(
    target: Target, upto: bytes, forge: Callable[[snapshot_pb2.SnapshotPart], object]
) -> bytes:
    """Changes the parts of a stored snapshot, and their hashes; their digest then; nothing: it has none."""
    key, digest = target.base + b":snapshot:" + upto, b""
    for node in target.nodes:
        stored: dict[bytes, bytes] = node.hgetall(key)
        numbers = sorted((name for name in stored if name.isdigit()), key=int)
        if not numbers:
            continue
        for number in numbers:
            part = snapshot_pb2.SnapshotPart.FromString(stored[number])
            forge(part)
            stored[number] = part.SerializeToString(deterministic=True)
        hashes = [part_hash(stored[number]) for number in numbers]
        digest = digest_of(hashes)
        node.hset(
            key, mapping={**{number: stored[number] for number in numbers}, b"hashes": b"".join(hashes)}
        )
    return digest


def _raise_in(part: snapshot_pb2.SnapshotPart, group_id: str) -> None:
    """Raises the numbers of a group whose items follow each other in a snapshot."""
    of_the_group = False
    for item in part.items:
        if item.HasField("group"):
            of_the_group = item.group.group_id == group_id
        if of_the_group and not item.HasField("end"):
            raised(item, group_id)


FORGING: tuple[Damage, ...] = (
    *(a_field_of_a_record,) * 5,
    *(a_field_of_a_snapshot,) * 2,
    a_record_less,
    a_record_over_another,
    two_records_exchanged,
    all_numbers_of_a_group,
    a_name_in_a_part,
    set_back,
)
"""What leaves a right log on all nodes can only be told by an anchor, or by an export."""
