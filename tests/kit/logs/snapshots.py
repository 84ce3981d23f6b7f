"""What a snapshot must not lose: everything that a replay made of the log."""

from collections import deque
from collections.abc import Sequence
from types import NoneType
from typing import Any

from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.log.snapshot import Covered, parts
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member
from muster_core.state.members.member_ids import MemberIds
from muster_core.state.members.member_secret import Lock
from muster_core.state.members.protocols import Supporters
from muster_core.state.offsets.offset_store import OffsetStore
from muster_protos.muster.log.v1 import records_pb2

Records = list[tuple[Position, records_pb2.Record]]

IN_MEMORY_ONLY = {
    "heartbeat",
    "join_call",
    "sync_call",
    "stream_id",
    "suspect",
    "confirmed",
    "_participant",
    "_record",
    "_topics_of",
    "_owned",
    "_owned_topics",
    "_peopled",
    "__weakref__",
    "line",
    "ends",
}
"""Attributes that no record sets: timers, parked calls, streams, reports, and what is derived on the way."""

PLAIN = (str, bytes, int, NoneType, frozenset, set, Position, GroupState)


def picture(value: Any) -> Any:
    """A value as something that can be compared."""
    if isinstance(value, Group):
        names = set(Group.__slots__) - IN_MEMORY_ONLY
        return {name: picture(getattr(value, name)) for name in names}
    if isinstance(value, Member | MemberIds):
        names = set(type(value).__slots__) - IN_MEMORY_ONLY
        return {name: picture(getattr(value, name)) for name in names}
    if isinstance(value, IncrementalGroup):
        return vars(value)  # in the order of the records, or of the snapshot: it has none of its own
    if isinstance(value, Lock):
        return value.secret_hash  # the secret itself is known to who brought it
    if isinstance(value, Supporters):
        return value.by_all
    if isinstance(value, dict):
        return [(key, picture(found)) for key, found in value.items()]  # the order counts, too
    if hasattr(value, "to_proto") and not isinstance(value, Position):
        return value.to_proto().SerializeToString(deterministic=True)
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, PLAIN):
        return value
    assert isinstance(value, Sequence | deque | OffsetStore), f"cannot compare a {type(value).__name__}"
    return [picture(found) for found in value]


def pictures(shard: Shard) -> dict[str, Any]:
    """All groups of a shard."""
    return {group_id: picture(group) for group_id, group in shard.groups.items()}


def through_snapshot(shard: Shard, upto: Position, config: GroupConfig, part_bytes: int = 1) -> Shard:
    """A shard that was made of the snapshot of another one."""
    copy = Shard(shard.number, config)
    reader = copy.restore()
    covered = Covered(
        shard.number,
        upto,
        bytes(32),
        catalog_place=shard.catalog_place,
        incarnations=shard.incarnations,
        removed=shard.removed,
    )
    for part in parts(shard.groups.values(), covered, part_bytes):
        reader.take(part)
    assert reader.complete
    assert reader.covered == covered
    assert copy.catalog_place == shard.catalog_place
    assert copy.incarnations == shard.incarnations
    assert copy.removed == shard.removed
    return copy


def check_every_cut(records: Records, config: GroupConfig) -> None:
    """At every cut a snapshot gives the replayed state back, and with the tail that of the whole log."""
    whole = Shard(0, config)
    restored: list[tuple[int, Shard]] = []
    step = max(1, len(records) // 4)
    for length, (position, record) in enumerate(records, 1):
        whole.replay(position, record)
        copy = through_snapshot(whole, position, config)
        assert pictures(copy) == pictures(whole), f"after {length} records"
        if length % step == 0:
            restored.append((length, copy))
    for length, shard in restored:
        for position, record in records[length:]:
            shard.replay(position, record)
        assert pictures(shard) == pictures(whole), f"snapshot after {length} records, then the tail"
