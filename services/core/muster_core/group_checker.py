"""Checks the records of groups against the promises about groups."""

from collections.abc import Callable
from dataclasses import dataclass, field

from muster_protos.muster.log.v1 import records_pb2

from muster_core.invariants import Findings
from muster_core.position import Position
from muster_core.published import partitions_in


@dataclass(slots=True)
class _Group:
    """What the records so far say of one group."""

    generation: int = 0
    assigned: bool = False
    leader: str = ""
    server_assignor: str = ""
    members: dict[str, str] = field(default_factory=dict)  # id -> static id
    gone: set[str] = field(default_factory=set)
    commit_seqs: dict[str, int] = field(default_factory=dict)
    given: dict[tuple[str, int], tuple[str, Position]] = field(default_factory=dict)


class GroupChecker:
    """Follows the groups of one log through their records, in order.

    Args:
        findings: where the results go.
        trimmed: the beginning of the log is missing, so a group may be met in the middle of its life.
    """

    def __init__(self, findings: Findings, *, trimmed: bool) -> None:
        self._findings = findings
        self._trimmed = trimmed
        self._groups: dict[str, _Group] = {}
        self._checks: dict[str, Callable[[Position, records_pb2.Record], None]] = {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_tombstone": self._group_tombstone,
            "offset_committed": self._offset_committed,
        }

    def add(self, position: Position, record: records_pb2.Record) -> None:
        """Takes the next record; those that do not concern groups pass."""
        check = self._checks.get(record.WhichOneof("kind") or "")
        if check is not None:
            check(position, record)

    def _group(self, group_id: str) -> _Group:
        return self._groups.setdefault(group_id, _Group())

    def _generation_started(self, position: Position, record: records_pb2.Record) -> None:
        message = record.generation_started
        group = self._group(message.group_id)
        name = f"group {message.group_id!r}, generation {message.generation}"
        first_after_trim = self._trimmed and group.generation == 0
        self._findings.expect(
            "G1",
            message.generation == group.generation + 1 or (first_after_trim and message.generation > 0),
            position,
            f"{name} follows generation {group.generation}",
        )
        ids = [member.member_id for member in message.members]
        self._findings.expect(
            "G5",
            len(set(ids)) == len(ids) and (message.leader in ids if ids else not message.leader),
            position,
            f"{name}: leader {message.leader!r} of members {ids}",
        )
        without = [
            member.member_id
            for member in message.members
            if message.protocol_name not in {protocol.name for protocol in member.protocols}
        ]
        self._findings.expect(
            "G6", not without, position, f"{name}: {without} do not support {message.protocol_name!r}"
        )
        static = [member.group_instance_id for member in message.members if member.group_instance_id]
        self._findings.expect(
            "G10",
            len(set(static)) == len(static),
            position,
            f"{name}: a static id stands for two members among {static}",
        )
        back = sorted(group.gone.intersection(ids))
        self._findings.expect("M4", not back, position, f"{name}: {back} left before")
        for member_id in set(group.commit_seqs) - set(ids):
            del group.commit_seqs[member_id]
        group.generation = message.generation
        group.assigned = False
        group.leader = message.leader
        group.server_assignor = message.server_assignor
        group.members = {member.member_id: member.group_instance_id for member in message.members}

    def _assignment_committed(self, position: Position, record: records_pb2.Record) -> None:
        message = record.assignment_committed
        group = self._group(message.group_id)
        name = f"group {message.group_id!r}, assignment of generation {message.generation}"
        current = message.generation == group.generation
        self._findings.expect(
            "G2",
            current and not group.assigned,
            position,
            f"{name}: the second one"
            if current
            else f"{name}: the group is in generation {group.generation}",
        )
        if not current:
            return
        strangers = sorted({row.member_id for row in message.members} - set(group.members))
        self._findings.expect("G3", not strangers, position, f"{name}: {strangers} are no members of it")
        self._findings.expect(
            "G5",
            message.leader == ("" if group.server_assignor else group.leader),
            position,
            f"{name}: by {message.leader!r}, the leader is {group.leader!r}",
        )
        self._findings.expect("G7", bool(group.members), position, f"{name}: the group has no members")
        self._check_partitions(position, message, group, name)
        group.assigned = True

    def _check_partitions(
        self, position: Position, message: records_pb2.AssignmentCommitted, group: _Group, name: str
    ) -> None:
        before, group.given = group.given, {}
        for row in message.members:
            kept = {
                (token.topic, token.partition): Position.from_proto(token.position)
                for token in row.kept_tokens
            }
            for partition, since in kept.items():
                had = before.get(partition)
                what = f"{name}: {row.member_id} keeps {partition[0]}/{partition[1]} since {since.stream_id}"
                self._findings.expect("G13", since < position, position, what)
                if had is not None:
                    self._findings.expect(
                        "G13",
                        had == (row.member_id, since),
                        position,
                        f"{what}, which {had[0]} had since {had[1].stream_id}",
                    )
            for partition in partitions_in(row.assignment):
                other = group.given.get(partition)
                self._findings.expect(
                    "G9",
                    other is None,
                    position,
                    f"{name}: {partition[0]}/{partition[1]} is given a second time, to {row.member_id}",
                )
                group.given[partition] = (row.member_id, kept.get(partition, position))

    def _member_left(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_left
        group = self._group(message.group_id)
        known = message.member_id in group.members
        self._findings.expect(
            "G7",
            known and message.generation == group.generation,
            position,
            f"group {message.group_id!r}: {message.member_id} left generation {message.generation}; "
            f"the group is in {group.generation} and it is {'a' if known else 'no'} member",
        )
        group.members.pop(message.member_id, None)
        group.commit_seqs.pop(message.member_id, None)
        group.gone.add(message.member_id)

    def _member_replaced(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_replaced
        group = self._group(message.group_id)
        static = message.member.group_instance_id
        self._findings.expect(
            "G10",
            bool(static) and group.members.get(message.old_member_id) == static,
            position,
            f"group {message.group_id!r}: {message.member.member_id} takes {static!r} over from "
            f"{message.old_member_id}, which does not hold it",
        )
        group.members.pop(message.old_member_id, None)
        group.commit_seqs.pop(message.old_member_id, None)
        group.gone.add(message.old_member_id)
        group.members[message.member.member_id] = static
        for partition, (owner, _) in list(group.given.items()):
            if owner == message.old_member_id:
                group.given[partition] = (message.member.member_id, position)
        if group.leader == message.old_member_id:
            group.leader = message.member.member_id

    def _group_tombstone(self, position: Position, record: records_pb2.Record) -> None:
        message = record.group_tombstone
        group = self._groups.pop(message.group_id, _Group())
        self._findings.expect(
            "G7",
            not group.members,
            position,
            f"group {message.group_id!r} is removed while {sorted(group.members)} are members",
        )

    def _offset_committed(self, position: Position, record: records_pb2.Record) -> None:
        message = record.offset_committed
        if not message.member_id and message.generation < 0:
            self._findings.checked["O3"] += 1
            return
        group = self._group(message.group_id)
        name = f"group {message.group_id!r}: a commit of {message.member_id}"
        if self._trimmed and group.generation == 0:
            return
        self._findings.expect(
            "O3",
            message.generation == group.generation and message.member_id in group.members,
            position,
            f"{name} in generation {message.generation}; the group is in {group.generation}, "
            f"of which it is {'a' if message.member_id in group.members else 'no'} member",
        )
        if message.member_seq:
            last = group.commit_seqs.get(message.member_id, 0)
            self._findings.expect(
                "O2",
                message.member_seq > last,
                position,
                f"{name}: number {message.member_seq} after number {last}",
            )
            group.commit_seqs[message.member_id] = message.member_seq
