"""Who had what in groups that are or were incremental, computed again by the core's replay of each record."""

from collections.abc import Callable, Iterator, Sequence

from kit.logs.plain_incremental import LASTS, Row, groups_of, states
from kit.logs.plain_reads import Read, TopicPartition, begun, cause_of, group_id_of, held_on
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_core.state.group import Group

_Held = dict[TopicPartition, tuple[str, Position, bool]]
"""Partition → who has it, by which token, and whether it was taken."""

_Mine = dict[TopicPartition, Row]
"""Rows of one group that a later record may still change."""

_GIVES = {
    "assignment_committed": "generation",
    "member_replaced": "generation",
    "member_stepped": "epoch",
    "member_subscribed": "",
    "instance_moved": "",
}
"""Kinds of records that may give a partition, and what in them says in which generation; empty: nothing."""

_ENDS = {
    "member_stepped": "given up",
    "member_went_away": "went away",
    "member_subscribed": "rejoined",
    "instance_moved": "static replaced",
}


def assignments(reads: Sequence[Read]) -> list[Row]:
    """Each partition that a member had under one token; `_open`: a later record may still change the row."""
    made, groups = _Ownerships(), groups_of(reads)
    for read, shard in states(reads):
        if read.kind == "topics_seen":
            made.delete_topics(read, shard)
        elif group_id_of(read) in groups:
            made.take(read, shard.groups.get(group_id_of(read)))
    return made.rows


class _Ownerships:
    """The rows so far, and what was held after the last record."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._held: dict[str, _Held] = {}
        self._last: dict[str, _Mine] = {}
        self._says: dict[str, Callable[[Read, _Mine], None]] = {
            "generation_started": _generation_started,
            "member_left": _member_left,
            "member_replaced": _member_replaced,
            "group_converted": _group_converted,
            "group_reverted": _group_reverted,
        }

    def delete_topics(self, read: Read, shard: Shard) -> None:
        """What is of topics that were deleted is settled."""
        for mine in self._last.values():
            for partition in [one for one in mine if one[0] in read.message.topics]:
                _settle(mine.pop(partition), read.at_ms, "topic deleted")
        self._held = {group_id: _held_in(shard.groups.get(group_id)) for group_id in self._held}

    def take(self, read: Read, group: Group | None) -> None:
        """Takes a record of a group, with the group after it."""
        group_id = group_id_of(read)
        mine = self._last.setdefault(group_id, {})
        before, after = self._held.get(group_id, {}), _held_in(group)
        self._held[group_id] = after
        if (says := self._says.get(read.kind)) is not None:
            says(read, mine)
        if read.kind == "group_tombstone":
            for partition in tuple(mine):
                _settle(mine.pop(partition), read.at_ms, "group gone")
            return
        for partition in sorted(before.keys() | after.keys() | mine.keys()):
            had, has, row = before.get(partition), after.get(partition), mine.get(partition)
            if row is not None:
                _note(read, row, had, has)
            if has is not None and _is_given(read, row, has):
                if row is not None:
                    _settle(row, read.at_ms, "reassigned")
                mine[partition] = _new(read, partition, has, row)
                self.rows.append(mine[partition])
            elif row is not None and has is None and read.kind == "assignment_committed":
                _settle(row, read.at_ms, "reassigned")
                del mine[partition]


def _held_in(group: Group | None) -> _Held:
    """Who has what, in an incremental group of topics that were not deleted since."""
    return {} if group is None else dict(_held(group))


def _held(group: Group) -> Iterator[tuple[TopicPartition, tuple[str, Position, bool]]]:
    if group.incremental is None:
        for partition, (member_id, token) in group.owners.items():
            yield partition, (member_id, token, False)
        return
    renewed = group.incremental.renewed
    for member_id, member in group.incremental.members.items():
        for partition, since in member.held.items():
            if since.token > renewed.get(partition[0], NOWHERE):
                yield partition, (member_id, since.token, since.taken != NOWHERE)


def _note(
    read: Read, row: Row, had: tuple[str, Position, bool] | None, has: tuple[str, Position, bool] | None
) -> None:
    """Notes how somebody's ownership ended, was taken, or goes on after all."""
    if had is not None and (has is None or had[:2] != has[:2]):
        if why := cause_of(read.message.cause) if read.kind == "member_removed" else _ENDS.get(read.kind):
            _end(row, read.at_ms, why)
    elif had is not None and has is not None and has[2] and not had[2]:
        row["taken_ms"] = read.at_ms
    if read.kind == "assignment_committed" and has is not None and _is_of(row, has):
        row["to_ms"] = row["ended_by"] = None


def _is_of(row: Row, has: tuple[str, Position, bool]) -> bool:
    return (row["member_id"], row["token"]) == (has[0], has[1].token)


def _is_given(read: Read, row: Row | None, has: tuple[str, Position, bool]) -> bool:
    """Whether a partition is somebody's, from this record on, that the last row is not about."""
    if read.kind not in _GIVES or (row is not None and _is_of(row, has)):
        return False
    if (
        read.kind == "member_replaced"
    ):  # what had ended before the new process gets by an assignment, if at all
        return row is not None and row["ended_by"] == "static replaced"
    return True


def _new(read: Read, partition: TopicPartition, has: tuple[str, Position, bool], before: Row | None) -> Row:
    number = _GIVES[read.kind]
    return begun(
        read,
        **LASTS,
        group_id=group_id_of(read),
        topic=partition[0],
        partition=partition[1],
        member_id=has[0],
        token=has[1].token,
        generation=getattr(read.message, number) if number else before["generation"] if before else None,
        settled_ms=None,
        taken_ms=None,
        _open=True,
    )


def _end(row: Row, at_ms: int, by: str) -> None:
    if row["to_ms"] is None:
        row["to_ms"], row["ended_by"] = at_ms, by


def _settle(row: Row, at_ms: int, by: str) -> None:
    _end(row, at_ms, by)
    row["settled_ms"], row["_open"] = at_ms, False


# --- what records say of ownerships that the group's state does not show


def _generation_started(read: Read, mine: _Mine) -> None:
    for partition, row in mine.items():
        keeps = held_on(read, row["member_id"])
        if keeps is None or partition not in keeps:
            _end(row, read.at_ms, "not rejoined" if keeps is None else "given up")


def _member_left(read: Read, mine: _Mine) -> None:
    for row in mine.values():
        if row["member_id"] == read.message.member_id:
            _end(row, read.at_ms, cause_of(read.message.cause))


def _member_replaced(read: Read, mine: _Mine) -> None:
    for row in mine.values():
        if row["member_id"] == read.message.old_member_id:
            _end(row, read.at_ms, "static replaced")


def _group_converted(read: Read, mine: _Mine) -> None:
    members = {member.member_id for member in read.message.members}
    for row in mine.values():
        if row["member_id"] in members:
            row["to_ms"] = row["ended_by"] = None


def _group_reverted(_: Read, mine: _Mine) -> None:
    for row in mine.values():
        if row["to_ms"] is None:
            row["taken_ms"] = None
