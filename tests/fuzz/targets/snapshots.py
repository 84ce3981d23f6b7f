"""Any bytes in the place of a snapshot: read or refused, and what was read is written as the same snapshot.

Nothing but `SnapshotUnusable` is raised. A snapshot of the state that was read is read as that state, and a
snapshot of that has the same bytes.
"""

from kit.lives.drawn_messages import DrawnMessages
from kit.logs.snapshots import pictures
from muster_core.config import GroupConfig
from muster_core.log.snapshot import Covered, SnapshotUnusable, parts
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import snapshot_pb2

from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 4_096
CONFIG = GroupConfig(history_length=4, history_moves=2)
KINDS = ("group", "member", "member", "owned", "generation", "offsets", "offsets", "catalog", "end", "header")


def play(data: bytes) -> None:
    source = Draw(data)
    taken = _drawn(source) if source.random() < 0.7 else _chunks(source)
    shard = Shard(0, CONFIG)
    reader = shard.restore()
    try:
        for part in taken:
            reader.take(part)
    except SnapshotUnusable:
        return
    if not reader.complete or reader.covered is None:
        return
    written = list(parts(shard.groups.values(), reader.covered, 100))
    again, covered = _read(written)
    if pictures(again) != pictures(shard):
        raise Broken("what is written is read as another state")
    if covered != reader.covered or list(parts(again.groups.values(), covered, 100)) != written:
        raise Broken("the snapshot of a snapshot has other bytes")


def _read(written: list[bytes]) -> tuple[Shard, Covered]:
    shard = Shard(0, CONFIG)
    reader = shard.restore()
    for part in written:
        reader.take(part)
    if not reader.complete or reader.covered is None:
        raise Broken("what is written is no whole snapshot")
    return shard, reader.covered


def _chunks(source: Draw) -> list[bytes]:
    found: list[bytes] = []
    while not source.over and len(found) < 20:
        found.append(source.take(source.randrange(1, 300)))
    return found


def _drawn(source: Draw) -> list[bytes]:
    """Items in nearly any order, after a header."""
    messages, damaged = DrawnMessages(source), source.random() > 0.95
    part = snapshot_pb2.SnapshotPart()
    header = messages.message(snapshot_pb2.SnapshotHeader)
    header.format = source.choice((1, 1, 1, 1, 2))
    header.shard = source.choice((0, 0, 0, 0, 1))
    part.items.add().header.CopyFrom(header)
    groups = 0
    while not source.over and len(part.items) < 40:
        kind = source.choice(KINDS[:7]) if source.random() < 0.95 else source.choice(KINDS)
        item = getattr(part.items.add(), kind)
        item.SetInParent()
        item.MergeFrom(messages.message(type(item)))
        if kind == "group":
            groups += 1
            item.group_id = f"g{groups}" if source.random() < 0.95 else "g1"
        elif kind == "member":
            item.member.member_id = source.choice(("m1", "m2", "m3"))
            item.member.group_instance_id = source.choice(("", "", "i", "j"))
    part.items.add().end.groups = groups
    body = part.SerializeToString()
    return [messages.changed(body) if damaged else body]
