"""The tables of the lake computed again, each from its definition: slowly, with nothing carried along.

An interval is found by looking at the records that follow the one it begins with; who is in a group, and
which topics there are, is what the core's own replay says.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kit.logs import plain_incremental, plain_ownerships
from kit.logs.plain_reads import Read, TopicPartition, begun, cause_of, group_id_of, held_on
from muster_core.config import GroupConfig
from muster_core.log.replay import Entry
from muster_core.log.topics.topics import StoredTopic, Topics
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.group_settings_pb2 import GroupSettings

Table = list[dict[str, Any]]
_Named = common_pb2.PartitionNames.Partition


def tables(shard: int, entries: Sequence[Entry], *, catalog: bool = False) -> dict[str, Table]:
    """Every table of one log."""
    reads = []
    for entry in entries:
        record = records_pb2.Record.FromString(entry.record)
        reads.append(Read(entry.position, record.WhichOneof("kind") or "", record))
    changing = plain_incremental.groups_of(reads)
    classic = [read for read in reads if group_id_of(read) not in changing]
    found = {
        "generations": generations(reads) + plain_incremental.generations(reads),
        "members": members(classic) + plain_incremental.members(reads) if not catalog else [],
        "assignments": [*assignments(classic), *plain_ownerships.assignments(reads)],
        "settings": list(settings(reads)),
        "commits": list(commits(reads)),
        "topics": topics(entries) if catalog else [],
        "coordinators": list(coordinators(reads)),
        "operations": list(operations(reads)),
    }
    for rows in found.values():
        for row in rows:
            row["shard"] = shard
    return found


def _of_group(reads: Sequence[Read], group_id: str) -> list[Read]:
    return [read for read in reads if read.kind and getattr(read.message, "group_id", None) == group_id]


def _ended(at_ms: int | None, by: str | None) -> dict[str, Any]:
    return {"to_ms": at_ms, "ended_by": by}


# --- generations


def generations(reads: Sequence[Read]) -> Table:
    """Each GenerationStarted with the next one, and its assignment, of the same group."""
    rows = []
    for begin, read in enumerate(reads):
        if read.kind != "generation_started":
            continue
        message, later = read.message, _of_group(reads[begin + 1 :], read.message.group_id)
        end = next((one for one in later if one.kind in plain_incremental.ENDS_A_GENERATION), None)
        during = later[: later.index(end)] if end is not None else later
        assigned = [one for one in during if one.kind == "assignment_committed"][-1:]
        before = _ids_before(reads[:begin], message.group_id)
        ids = {one.member_id for one in message.members}
        row = begun(
            read,
            group_id=message.group_id,
            generation=message.generation,
            protocol_type=message.protocol_type,
            protocol_name=message.protocol_name,
            leader=message.leader,
            server_assignor=message.server_assignor,
            members=len(ids),
            joined=len(ids - before),
            missing=len(before - ids),
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
            claimed=sum(len(held_on(read, member_id) or ()) for member_id in ids),
            **_ended(None, None),
        )
        if end is not None:
            named = "group gone" if end.kind == "group_tombstone" else "next generation"
            row |= _ended(end.at_ms, named)
        for one in assigned:
            row |= {"assigned_at_ms": one.at_ms, "assigned_offset": one.position.offset}
            row |= _moves(reads[: reads.index(one)], one)
        rows.append(row)
    return rows


def _ids_before(reads: Sequence[Read], group_id: str) -> set[str]:
    """Who is in a group, by its records from the last generation on."""
    ids: set[str] = set()
    for read in _of_group(reads, group_id):
        if read.kind == "generation_started":
            ids = {one.member_id for one in read.message.members}
        elif read.kind == "member_left":
            ids.discard(read.message.member_id)
        elif read.kind == "member_replaced":
            ids.discard(read.message.old_member_id)
            ids.add(read.message.member.member_id)
        elif read.kind == "group_reverted":
            ids = {one.member_id for one in read.message.members}
        elif read.kind in ("group_tombstone", "group_converted"):
            ids = set()
    return ids


def _moves(reads: Sequence[Read], assigned: Read) -> dict[str, int]:
    """What an assignment moved, and the fewest moves."""
    given = {partition: member_id for partition, (member_id, _) in assigned.given.items()}
    before = _last_owners(reads, assigned.message.group_id)
    return plain_incremental.moved(before, given)


def _last_owners(reads: Sequence[Read], group_id: str) -> dict[TopicPartition, str]:
    """Who had each partition last, of those that are not gone for good."""
    owners = {}
    changing = plain_incremental.groups_of(reads)
    classic = [read for read in reads if group_id_of(read) not in changing]
    for row in (*assignments(classic), *plain_ownerships.assignments(reads)):
        if row["group_id"] == group_id and row["_open"]:
            owners[row["topic"], row["partition"]] = row["member_id"]
    return owners


# --- members


def members(reads: Sequence[Read]) -> Table:
    """Who the core's replay has in its groups after each record, told apart by id."""
    shard = Shard(0, GroupConfig())
    rows: Table = []
    open_: dict[tuple[str, str], dict[str, Any]] = {}
    for read in reads:
        before = {group_id: set(group.members) for group_id, group in shard.groups.items()}
        shard.replay(read.position, read.record)
        after = {group_id: dict(group.members) for group_id, group in shard.groups.items()}
        for group_id in before.keys() | after.keys():
            had, has = before.get(group_id, set()), after.get(group_id, {})
            for member_id in had - has.keys():
                row = open_.pop((group_id, member_id))
                row |= _ended(read.at_ms, _why_gone(read))
                if read.kind == "member_left":
                    row["reason"] = read.message.cause.reason
            for member_id in has.keys() - had:
                stored = _stored_member(read, member_id)
                row = open_[group_id, member_id] = begun(
                    read,
                    group_id=group_id,
                    member_id=member_id,
                    group_instance_id=stored.group_instance_id,
                    client_id=stored.client_id,
                    host=stored.host,
                    session_timeout_ms=stored.session_timeout_ms,
                    rebalance_timeout_ms=stored.rebalance_timeout_ms,
                    disconnect_grace_ms=stored.disconnect_grace_ms,
                    first_generation=read.message.generation,
                    reason="",
                    **_ended(None, None),
                )
                rows.append(row)
            for member_id, member in has.items():
                if (group_id, member_id) in open_:
                    row, last = open_[group_id, member_id], member.to_record()
                    row["last_generation"] = shard.groups[group_id].generation
                    row["client_version"], row["identity"] = last.client_version, last.identity
                    row["weight"] = last.weight or 1
                    row["secret_hash"] = "".join(f"{byte:02x}" for byte in last.secret_hash)
                    row["target"] = None
    return rows


def _why_gone(read: Read) -> str:
    if read.kind == "member_left":
        return cause_of(read.message.cause)
    by = {"member_replaced": "static replaced", "group_tombstone": "group gone"}
    return by.get(read.kind, "not rejoined")


def _stored_member(read: Read, member_id: str) -> records_pb2.Member:
    if read.kind == "member_replaced":
        found: records_pb2.Member = read.message.member
        return found
    started: records_pb2.GenerationStarted = read.message
    return next(one for one in started.members if one.member_id == member_id)


# --- assignments


def assignments(reads: Sequence[Read], known: dict[int, Table] | None = None) -> Iterator[dict[str, Any]]:
    """Each partition that was given with a token of its own, until the record that ends it.

    `_open` says whether a later record may still change the row. `known` has, by their number, what this
    says of the first records alone: it is asked for them again and again.
    """
    known = {} if known is None else known
    for begin, read in enumerate(reads):
        if read.kind == "assignment_committed":
            for partition, (member_id, token) in read.given.items():
                if token == read.position:
                    yield _interval(reads, begin, partition, member_id, read.message.generation)
        elif read.kind == "member_replaced":
            if begin not in known:
                known[begin] = list(assignments(reads[:begin], known))
            for row in known[begin]:
                same = row["group_id"] == read.message.group_id
                if (
                    same
                    and row["_open"]
                    and row["member_id"] == read.message.old_member_id
                    and row["to_ms"] is None
                ):
                    partition = row["topic"], row["partition"]
                    new = read.message.member.member_id
                    yield _interval(reads, begin, partition, new, read.message.generation)


def _interval(
    reads: Sequence[Read], begin: int, partition: TopicPartition, member_id: str, generation: int
) -> dict[str, Any]:
    read = reads[begin]
    group_id, token = read.message.group_id, read.position
    ended, settled_ms = _end_of(reads[begin + 1 :], group_id, partition, member_id, token)
    return begun(
        read,
        group_id=group_id,
        topic=partition[0],
        partition=partition[1],
        member_id=member_id,
        token=token.token,
        generation=generation,
        settled_ms=settled_ms,
        taken_ms=None,
        _open=settled_ms is None,
        **_ended(*ended),
    )


def _end_of(
    later: Iterable[Read], group_id: str, partition: TopicPartition, member_id: str, token: Position
) -> tuple[tuple[int | None, str | None], int | None]:
    """When and by what an ownership ended, and when that could not change any more."""
    ended: tuple[int | None, str | None] = None, None
    for read in later:
        about = read.kind == "topics_seen" and partition[0] in read.message.topics
        if not about and (not read.kind or getattr(read.message, "group_id", None) != group_id):
            continue
        if read.kind == "assignment_committed" and read.given.get(partition) == (member_id, token):
            ended = None, None
            continue
        by = _ending(read, partition, member_id)
        if by and ended[0] is None:
            ended = read.at_ms, by
        elif read.kind == "member_replaced":
            continue  # it had ended before: the new process gets it with the next assignment, if at all
        if by in _FOR_GOOD:
            return ended, read.at_ms
    return ended, None


_FOR_GOOD = ("topic deleted", "group gone", "reassigned", "static replaced")


def _ending(read: Read, partition: TopicPartition, member_id: str) -> str:
    """Why a member that has a partition does not have it after a record; empty: it does."""
    kind, message = read.kind, read.message
    if kind == "generation_started":
        held = held_on(read, member_id)
        return "not rejoined" if held is None else "" if partition in held else "given up"
    if kind == "member_left":
        return cause_of(message.cause) if message.member_id == member_id else ""
    if kind == "member_replaced":
        return "static replaced" if message.old_member_id == member_id else ""
    by = {
        "topics_seen": "topic deleted",
        "group_tombstone": "group gone",
        "assignment_committed": "reassigned",
    }
    return by.get(kind, "")


# --- commits


def commits(reads: Sequence[Read]) -> Iterator[dict[str, Any]]:
    """A row for each partition of each commit and of each removal."""
    for read in reads:
        at = {"epoch": read.position.epoch, "offset": read.position.offset, "written_at_ms": read.at_ms}
        if read.kind == "offset_committed":
            for one in read.message.offsets:
                yield at | {
                    "group_id": read.message.group_id,
                    "generation": read.message.generation,
                    "member_id": read.message.member_id,
                    "member_seq": read.message.member_seq,
                    "topic": one.topic,
                    "partition": one.partition,
                    "committed_offset": one.offset,
                    "leader_epoch": one.leader_epoch,
                    "metadata": one.metadata,
                    "expire_at_ms": read.message.expire_at_ms,
                    "removed": None,
                }
        elif read.kind == "offset_tombstone":
            for one in read.message.topics:
                for number in one.partitions:
                    yield at | {
                        "group_id": read.message.group_id,
                        "topic": one.topic,
                        "partition": number,
                        "removed": read.message.reason,
                        **dict.fromkeys(
                            (
                                "generation", "member_id", "member_seq", "committed_offset", "leader_epoch",
                                "metadata", "expire_at_ms",
                            )
                        ),
                    }  # fmt: skip


# --- settings


def settings(reads: Sequence[Read]) -> Iterator[dict[str, Any]]:
    """What each record sets for its group, up to the next one or the end of the group."""
    names = [field.name for field in GroupSettings.DESCRIPTOR.fields]
    for begin, read in enumerate(reads):
        if read.kind != "group_settings_altered" or not read.message.settings.ListFields():
            continue
        said = read.message.settings
        later = _of_group(reads[begin + 1 :], read.message.group_id)
        end = next((one for one in later if one.kind in ("group_settings_altered", "group_tombstone")), None)
        ended = _ended(None, None)
        if end is not None:
            ended = _ended(end.at_ms, "altered" if end.kind == "group_settings_altered" else "group gone")
        values = {name: getattr(said, name) if said.HasField(name) else None for name in names}
        yield begun(read, group_id=read.message.group_id, **values, **ended)


# --- the catalog and the owners


def topics(entries: Sequence[Entry]) -> Table:
    """What the catalog's own replay has after each record."""
    state, rows = Topics(strict=False), Table()
    open_: dict[str, dict[str, Any]] = {}
    for entry in entries:
        record = records_pb2.Record.FromString(entry.record)
        before = dict(state.by_name)
        state.apply(entry)
        for name in before.keys() | state.by_name.keys():
            old, new = before.get(name), state.by_name.get(name)
            if old == new:
                continue
            if old is not None:
                why = "deleted" if new is None else "zones changed"
                if new is not None and _count(new) != _count(old):
                    why = "resized"
                elif new is not None and new.names != old.names:
                    why = "weights changed"
                open_.pop(name).update(_ended(record.written_at_ms, why))
            if new is not None:
                open_[name] = begun(
                    Read(entry.position, "", record),
                    topic=name,
                    partitions=new.partitions,
                    incarnation=new.incarnation,
                    zones=_zones(new.zones),
                    names=_by_number(new, lambda entry: f'"{entry.name}"'),
                    weights=_by_number(new, lambda entry: str(entry.weight or 1)),
                    **_ended(None, None),
                )
                rows.append(open_[name])
    return rows


def _count(topic: StoredTopic) -> tuple[int, int]:
    names = common_pb2.PartitionNames.FromString(topic.names).partitions
    return topic.partitions, sum(not entry.name for entry in names)


def _zones(stored: bytes) -> str | None:
    zones = common_pb2.TopicZones.FromString(stored).zones
    told = ", ".join(f'"{zone.name}": {list(zone.partitions)}' for zone in zones)
    return f"{{{told}}}" if zones else None


def _by_number(topic: StoredTopic, show: Callable[[_Named], str]) -> str | None:
    names = common_pb2.PartitionNames.FromString(topic.names).partitions
    told = ", ".join(show(entry) if entry.name else "null" for entry in names)
    return f"[{told}]" if names else None


def operations(reads: Sequence[Read]) -> Iterator[dict[str, Any]]:
    """A row for each record about the cluster as a whole, with what it says."""
    said = {
        "node_replaced": ("configuration", "node", "old_address", "new_address"),
        "restored": ("reason",),
        "feature_enabled": ("feature", "version"),
    }
    for read in reads:
        if read.kind in said:
            row = dict.fromkeys(name for names in said.values() for name in names)
            row |= {name: getattr(read.message, name, None) for name in said[read.kind]}
            if read.kind == "feature_enabled":
                row["feature"] = read.message.name
            at = {"epoch": read.position.epoch, "offset": read.position.offset, "written_at_ms": read.at_ms}
            yield at | row | {"kind": read.kind.replace("_", " ")}


def coordinators(reads: Sequence[Read]) -> Iterator[dict[str, Any]]:
    """Each Claim with the entries of its epoch; `_last`: there is no later one."""
    for begin, read in enumerate(reads):
        if read.kind != "claim":
            continue
        epoch = [one for one in reads if one.position.epoch == read.position.epoch]
        previous = [one for one in reads[:begin] if one.position.epoch > 0]
        handed_over = [one.at_ms for one in epoch if one.kind == "handoff"]
        last_ms = epoch[-1].at_ms
        ended = _ended(None, None)
        if handed_over:
            ended = _ended(handed_over[0], "handed over")
        elif any(one.position.epoch > read.position.epoch for one in reads):
            ended = _ended(last_ms, "taken over")
        yield begun(
            read,
            owner=read.message.node_id,
            session=read.message.session,
            version=read.message.version,
            planned=bool(previous) and previous[-1].kind == "handoff",
            unowned_ms=max(read.at_ms - previous[-1].at_ms, 0) if previous else None,
            entries=len(epoch),
            last_written_at_ms=last_ms,
            _last=not any(one.position.epoch > read.position.epoch for one in reads),
            **ended,
        )
