"""The lake's rows of groups that are or were incremental, computed again by the core's replay of each record.

Such a group may have been classic before and be classic again, with its members and what they have.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

from kit.logs.plain_reads import Read, TopicPartition, begun, cause_of, group_id_of
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.shard import Shard
from muster_core.state.group import Group

ENDS_A_GENERATION = ("generation_started", "epoch_raised", "group_tombstone")
_MAKES_INCREMENTAL = ("member_subscribed", "epoch_raised", "group_converted")
Row = dict[str, Any]
LASTS: Row = {"to_ms": None, "ended_by": None}


def groups_of(reads: Sequence[Read]) -> frozenset[str]:
    """The groups that this module is about."""
    return frozenset(group_id_of(read) for read in reads if read.kind in _MAKES_INCREMENTAL)


def states(reads: Sequence[Read]) -> Iterator[tuple[Read, Shard]]:
    """Each record with the state after it."""
    shard = Shard(0, GroupConfig())
    for read in reads:
        shard.replay(read.position, read.record)
        yield read, shard


def _incremental(shard: Shard, group_id: str) -> IncrementalGroup | None:
    group = shard.groups.get(group_id)
    return None if group is None else group.incremental


# --- members


def members(reads: Sequence[Read]) -> list[Row]:
    """Who the replay has in these groups; a new process under the same id is another row."""
    groups, rows = groups_of(reads), list[Row]()
    open_: dict[tuple[str, str], Row] = {}
    for read, shard in states(reads):
        group_id = group_id_of(read)
        if group_id not in groups:
            continue
        group = shard.groups.get(group_id)
        present = {} if group is None else _present(group)
        moved = read.message.member.member_id if read.kind == "instance_moved" else ""
        for key in [key for key in open_ if key[0] == group_id]:
            if key[1] not in present or key[1] == moved:
                row = open_.pop(key)
                row["to_ms"], row["ended_by"] = read.at_ms, _why_gone(read)
                if read.kind in ("member_removed", "member_left"):
                    row["reason"] = read.message.cause.reason
        for member_id, said in present.items():
            if (group_id, member_id) not in open_:
                first = {"first_generation": 0, "last_generation": 0, "reason": ""}
                row = begun(read, **LASTS, group_id=group_id, member_id=member_id, **said, **first)
                open_[group_id, member_id] = row
                rows.append(row)
            row = open_[group_id, member_id]
            row |= {name: said[name] for name in _TOLD_ANEW}
            if said["target"] is not None or read.kind == "group_reverted":
                row |= {name: said[name] for name in _TIMES}
            number = _number(read)
            if number:
                row["first_generation"] = row["first_generation"] or number
                row["last_generation"] = number
    return rows


_TOLD_ANEW = ("client_version", "identity", "secret_hash", "weight", "target")
_TIMES = ("session_timeout_ms", "disconnect_grace_ms")
_SAID = ("group_instance_id", "client_id", "host", "rebalance_timeout_ms", *_TIMES)


def _present(group: Group) -> dict[str, Row]:
    """What members of a group said."""
    if group.incremental is None:
        records = [member.to_record() for member in group.members.values()]
        return {one.member_id: _said(one) | {"target": None} for one in records}
    return {
        member_id: _said(member.told.to_record()) | {"target": len(member.target)}
        for member_id, member in group.incremental.members.items()
    }


def _said(record: Any) -> Row:
    told = {name: getattr(record, name) for name in (*_SAID, "client_version", "identity")}
    return told | {"secret_hash": record.secret_hash.hex(), "weight": record.weight or 1}


def _number(read: Read) -> int:
    """The generation or epoch that a record begins, or that a new process comes in; 0: none."""
    if read.kind in ("generation_started", "member_replaced"):
        return int(read.message.generation)
    return int(read.message.epoch) if read.kind == "epoch_raised" else 0


def _why_gone(read: Read) -> str:
    if read.kind in ("member_removed", "member_left"):
        return cause_of(read.message.cause)
    by = {"instance_moved": "static replaced", "member_replaced": "static replaced"}
    return by.get(read.kind, "group gone" if read.kind == "group_tombstone" else "not rejoined")


# --- epochs


def generations(reads: Sequence[Read]) -> list[Row]:
    """Each epoch with the next one, and its target, of the same group."""
    rows: list[Row] = []
    people = members(reads)
    targets = list(_targets(reads))
    for begin, (read, shard) in enumerate(states(reads)):
        if read.kind != "epoch_raised":
            continue
        message = read.message
        later = [one for one in reads[begin + 1 :] if group_id_of(one) == message.group_id]
        end = next((one for one in later if one.kind in ENDS_A_GENERATION), None)
        during = later[: later.index(end)] if end is not None else later
        here = {
            row["member_id"]: row
            for row in people
            if row["group_id"] == message.group_id and (row["epoch"], row["offset"]) < read.position
        }
        group = _incremental(shard, message.group_id)
        assert group is not None
        joined = [one for one in group.members if here[one]["first_generation"] == message.epoch]
        row = begun(
            read,
            **LASTS,
            group_id=message.group_id,
            generation=message.epoch,
            protocol_type="incremental",
            protocol_name="",
            leader="",
            server_assignor="",
            members=len(group.members),
            joined=len(joined),
            missing=0,
            cause=cause_of(message.cause),
            cause_member_id=message.cause.member_id,
            cause_host=message.cause.host,
            cause_reason=message.cause.reason,
            cause_sentence=message.cause.sentence,
            cause_at_ms=message.cause.at_ms,
            silence_ms=message.cause.silence_ms,
            assigned_at_ms=None,
            assigned_offset=None,
            partitions=None,
            moves=None,
            minimum_moves=None,
            claimed=None,
        )
        if end is not None:
            row["to_ms"] = end.at_ms
            row["ended_by"] = "group gone" if end.kind == "group_tombstone" else "next generation"
        for one, moves in targets:
            if one in during and one.message.epoch == message.epoch:
                row |= moves
                row["server_assignor"] = one.message.server_assignor
                row |= {"assigned_at_ms": one.at_ms, "assigned_offset": one.position.offset}
        rows.append(row)
    return rows


def _targets(reads: Sequence[Read]) -> Iterator[tuple[Read, Row]]:
    """Each target with what it moved."""
    wanted: dict[str, dict[TopicPartition, str]] = {}
    for read, shard in states(reads):
        group_id = group_id_of(read)
        group = _incremental(shard, group_id)
        after = {} if group is None else _wanted(group)
        if read.kind == "target_assigned":
            yield read, moved(wanted.get(group_id, {}), after)
        wanted[group_id] = after


def _wanted(group: IncrementalGroup) -> dict[TopicPartition, str]:
    return {
        partition: member_id for member_id, member in group.members.items() for partition in member.target
    }


def moved(before: dict[TopicPartition, str], given: dict[TopicPartition, str]) -> Row:
    """What moved, and the fewest moves, by trying every way to hand out the shares."""
    moves = sum(before.get(partition) != member_id for partition, member_id in given.items())
    shares = Counter(given.values())
    had = Counter(before[partition] for partition in given if before.get(partition) in shares)
    ids = list(shares)
    most = max(
        (
            sum(min(had[member_id], size) for member_id, size in zip(ids, sizes, strict=True))
            for sizes in set(permutations(shares.values()))
        ),
        default=0,
    )
    return {"partitions": len(given), "moves": moves, "minimum_moves": len(given) - most}
