"""The lake's rows of incremental groups computed again, by what the core's replay has around each record."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_protos.muster.v1 import common_pb2

if TYPE_CHECKING:
    from kit.logs.plain_tables import Read

ENDS_A_GENERATION = ("generation_started", "epoch_raised", "group_tombstone")
Row = dict[str, Any]
_Partition = tuple[str, int]
_Held = dict[_Partition, tuple[str, Position, bool]]
"""Partition → who has it, by which token, and whether it was taken."""


def _begun(read: "Read", **values: Any) -> Row:
    place = {"epoch": read.position.epoch, "offset": read.position.offset, "from_ms": read.at_ms}
    return {**place, "begun_before": False, "to_ms": None, "ended_by": None, **values}


def _cause(cause: common_pb2.RebalanceCause) -> str:
    name = common_pb2.RebalanceCauseKind.Name(cause.kind)
    return name.removeprefix("REBALANCE_CAUSE_KIND_").lower().replace("_", " ")


def _states(reads: Sequence["Read"]) -> Iterator[tuple["Read", Shard]]:
    """Each record with the state after it."""
    shard = Shard(0, GroupConfig())
    for read in reads:
        shard.replay(read.position, read.record)
        yield read, shard


def _group(shard: Shard, group_id: str) -> IncrementalGroup:
    group = shard.groups.get(group_id)
    return IncrementalGroup() if group is None or group.incremental is None else group.incremental


def _group_id(read: "Read") -> str:
    return str(getattr(read.message, "group_id", "")) if read.kind else ""


def _held(group: IncrementalGroup) -> _Held:
    return {
        partition: (member_id, since.token, since.taken != NOWHERE)
        for member_id, member in group.members.items()
        for partition, since in member.held.items()
    }


def assignments(reads: Sequence["Read"]) -> list[Row]:
    """Each partition that a member had under one token; `_open`: a later record may still change the row."""
    rows: list[Row] = []
    held: dict[str, _Held] = {}
    last: dict[tuple[str, _Partition], Row] = {}
    for read, shard in _states(reads):
        group_id = _group_id(read)
        before, after = held.get(group_id, {}), _held(_group(shard, group_id))
        held[group_id] = after
        for partition in before.keys() | after.keys():
            had, has = before.get(partition), after.get(partition)
            row = last.get((group_id, partition))
            if had is not None and row is not None and (has is None or had[:2] != has[:2]):
                _end(row, read.at_ms, _why(read, had[0]))
            if has is not None and (had is None or had[:2] != has[:2]):
                if row is not None:
                    _settle(row, read.at_ms)
                row = last[group_id, partition] = _new(read, group_id, partition, has, row)
                rows.append(row)
            elif had is not None and has is not None and has[2] and not had[2] and row is not None:
                row["taken_ms"] = read.at_ms
        _settle_by_others(read, last)
    return rows


def _new(
    read: "Read", group_id: str, partition: _Partition, has: tuple[str, Position, bool], before: Row | None
) -> Row:
    stepped = read.kind == "member_stepped"
    return _begun(
        read,
        group_id=group_id,
        topic=partition[0],
        partition=partition[1],
        member_id=has[0],
        token=has[1].token,
        generation=read.message.epoch if stepped else before["generation"] if before else None,
        settled_ms=None,
        taken_ms=None,
        _open=True,
    )


def _end(row: Row, at_ms: int, by: str) -> None:
    if row["to_ms"] is None:
        row["to_ms"], row["ended_by"] = at_ms, by


def _settle(row: Row, at_ms: int) -> None:
    row["settled_ms"], row["_open"] = at_ms, False


def _why(read: "Read", member_id: str) -> str:
    if read.kind == "member_removed":
        return _cause(read.message.cause)
    by = {
        "member_stepped": "given up",
        "member_went_away": "went away",
        "member_subscribed": "rejoined",
        "instance_moved": "static replaced",
        "group_tombstone": "group gone",
    }
    assert read.kind in by, (read.kind, member_id)
    return by[read.kind]


def _settle_by_others(read: "Read", last: dict[tuple[str, _Partition], Row]) -> None:
    """What the group's end and a classic assignment settle."""
    if read.kind in ("group_tombstone", "assignment_committed"):
        for key in [key for key in last if key[0] == _group_id(read)]:
            row = last.pop(key)
            _end(row, read.at_ms, "group gone" if read.kind == "group_tombstone" else "reassigned")
            _settle(row, read.at_ms)


def members(reads: Sequence["Read"]) -> list[Row]:
    """Who the replay has in incremental groups; a new process under the same id is another row."""
    rows: list[Row] = []
    open_: dict[tuple[str, str], Row] = {}
    for read, shard in _states(reads):
        group_id = _group_id(read)
        group = _group(shard, group_id)
        moved = read.message.member.member_id if read.kind == "instance_moved" else ""
        for key in [key for key in open_ if key[0] == group_id]:
            if key[1] not in group.members or key[1] == moved:
                row = open_.pop(key)
                _end(row, read.at_ms, _why(read, key[1]))
                if read.kind == "member_removed":
                    row["reason"] = read.message.cause.reason
        for member_id, member in group.members.items():
            told = member.told
            if (group_id, member_id) not in open_:
                row = open_[group_id, member_id] = _begun(
                    read,
                    group_id=group_id,
                    member_id=member_id,
                    group_instance_id=told.group_instance_id,
                    client_id=told.client_id,
                    host=told.host,
                    rebalance_timeout_ms=told.rebalance_timeout_ms,
                    first_generation=0,
                    last_generation=0,
                    reason="",
                    client_version="",
                )
                rows.append(row)
            row = open_[group_id, member_id]
            row |= {"identity": told.identity, "secret_hash": told.secret_hash.hex()}
            row["session_timeout_ms"] = told.session_timeout_ms
            row["disconnect_grace_ms"] = told.disconnect_grace_ms
            row["weight"], row["client_version"] = told.weight, told.client_version
            if read.kind == "epoch_raised":
                row["first_generation"] = row["first_generation"] or group.epoch
                row["last_generation"] = group.epoch
    return rows


def generations(reads: Sequence["Read"]) -> list[Row]:
    """Each epoch with the next one, and its target, of the same group."""
    rows: list[Row] = []
    people = members(reads)
    for begin, (read, shard) in enumerate(_states(reads)):
        if read.kind != "epoch_raised":
            continue
        message = read.message
        later = [one for one in reads[begin + 1 :] if _group_id(one) == message.group_id]
        end = next((one for one in later if one.kind in ENDS_A_GENERATION), None)
        during = later[: later.index(end)] if end is not None else later
        here = {
            row["member_id"]: row
            for row in people
            if row["group_id"] == message.group_id and (row["epoch"], row["offset"]) < read.position
        }
        present = _group(shard, message.group_id).members
        joined = [one for one in present if here[one]["first_generation"] == message.epoch]
        row = _begun(
            read,
            group_id=message.group_id,
            generation=message.epoch,
            protocol_type="incremental",
            protocol_name="",
            leader="",
            server_assignor="",
            members=len(present),
            joined=len(joined),
            missing=0,
            cause=_cause(message.cause),
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
            _end(row, end.at_ms, "group gone" if end.kind == "group_tombstone" else "next generation")
        for one in during:
            if one.kind == "target_assigned" and one.message.epoch == message.epoch:
                gets = [entry for change in one.message.changes for entry in change.gets]
                row["moves"] = sum(len(entry.partitions) for entry in gets)
                row["server_assignor"] = one.message.server_assignor
                row |= {"assigned_at_ms": one.at_ms, "assigned_offset": one.position.offset}
        rows.append(row)
    return rows
