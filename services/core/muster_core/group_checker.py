"""Checks the records of groups against the promises about groups."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core import causes
from muster_core.config import GroupConfig
from muster_core.group import CONSUMER, Group
from muster_core.invariants import Findings
from muster_core.position import NOWHERE, Position
from muster_core.published import TopicPartition, partitions_in, read_subscription

RECORD_MAX_BYTES = 8 << 20
"""What one record may have."""

_TOLERANCE_MS = 100  # between two times of one writer


@dataclass(slots=True)
class _Group:
    """What the records so far say of one group."""

    generation: int = 0
    assignment: records_pb2.AssignmentCommitted | None = None
    protocol_type: str = ""
    protocol_name: str = ""
    leader: str = ""
    server_assignor: str = ""
    members: dict[str, records_pb2.Member] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    commit_seqs: dict[str, int] = field(default_factory=dict)
    heard_ms: dict[str, int] = field(default_factory=dict)
    given: dict[TopicPartition, tuple[str, Position]] = field(default_factory=dict)
    born_behind: Position = NOWHERE
    met_in_the_middle: bool = False


class GroupChecker:
    """Follows the groups of one log through their records, in order.

    Args:
        findings: where the results go.
        trimmed: the beginning of the log is missing, so a group may be met in the middle of its life.
        limits: what a group may be.
    """

    def __init__(self, findings: Findings, *, trimmed: bool, limits: GroupConfig | None = None) -> None:
        self.trimmed = trimmed
        self._findings = findings
        self._limits = GroupConfig() if limits is None else limits
        self._groups: dict[str, _Group] = {}
        self._deleted: dict[str, Position] = {}
        self._now_ms = 0
        self._checks: dict[str, Callable[[Position, records_pb2.Record], None]] = {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_tombstone": self._group_tombstone,
            "offset_committed": self._offset_committed,
            "offset_tombstone": self._offset_tombstone,
        }

    def add(self, position: Position, record: records_pb2.Record) -> None:
        """Takes the next record; those that do not concern groups pass."""
        check = self._checks.get(record.WhichOneof("kind") or "")
        if check is not None:
            self._now_ms = record.written_at_ms
            check(position, record)

    def claimed(self) -> None:
        """A new owner has come: its clock does not compare with the last one's."""
        for group in self._groups.values():
            group.heard_ms.clear()

    def begin_with(self, groups: Iterable[Group]) -> None:
        """Takes over the groups that a snapshot holds, so that none is met in the middle of its life."""
        self.trimmed = False
        for known in groups:
            group = self._groups[known.group_id] = _Group(
                generation=known.generation,
                protocol_type=known.protocol_type,
                protocol_name=known.protocol_name,
                leader=known.leader,
                members={member.member_id: member.to_record() for member in known.members.values()},
                commit_seqs={
                    member.member_id: member.commit_seq
                    for member in known.members.values()
                    if member.commit_seq
                },
                given=dict(known.owners),
            )
            if known.assigned_generation == known.generation and known.generation:
                group.assignment = records_pb2.AssignmentCommitted(generation=known.generation)

    def _group(self, group_id: str) -> _Group:
        group = self._groups.get(group_id)
        if group is None:
            born_behind = self._deleted.get(group_id, NOWHERE)
            group = self._groups[group_id] = _Group(
                born_behind=born_behind, met_in_the_middle=self.trimmed and born_behind == NOWHERE
            )
        return group

    def _broken(self, invariant: str, position: Position, detail: str) -> None:
        self._findings.expect(invariant, False, position, detail)

    # -- generations --------------------------------------------------------------------------------

    def _generation_started(self, position: Position, record: records_pb2.Record) -> None:
        message = record.generation_started
        group = self._group(message.group_id)
        name = f"group {message.group_id!r}, generation {message.generation}"
        unknown = group.met_in_the_middle and group.generation == 0
        checked = self._findings.checked
        for invariant in ("G1", "G5", "G6", "G10", "G11", "M4", "M5"):
            checked[invariant] += 1
        if message.generation != group.generation + 1 and not (unknown and message.generation > 0):
            self._wrong("G1", position, f"{name} follows generation {group.generation}")
        if group.born_behind != NOWHERE and group.generation == 0:
            checked["G13"] += 1
            if message.generation != 1:
                self._wrong(
                    "G13", position, f"{name} of a group that was removed at {group.born_behind.stream_id}"
                )
        members = {member.member_id: member for member in message.members}
        self._check_members(position, message, members, name)
        back = sorted(group.gone.intersection(members))
        if back:
            self._wrong("M4", position, f"{name}: {back} left before")
        for known in (group.commit_seqs, group.heard_ms):
            for member_id in known.keys() - members.keys():
                del known[member_id]
        for member_id in members:
            group.heard_ms[member_id] = self._now_ms
        group.generation = message.generation
        group.assignment = None
        group.protocol_type = message.protocol_type
        group.protocol_name = message.protocol_name
        group.leader = message.leader
        group.server_assignor = message.server_assignor
        group.members = members

    def _check_members(
        self,
        position: Position,
        message: records_pb2.GenerationStarted,
        members: dict[str, records_pb2.Member],
        name: str,
    ) -> None:
        if "" in members:
            self._wrong("M5", position, f"{name}: a member without an id")
        one_each = len(members) == len(message.members)
        if not one_each or (message.leader not in members if members else bool(message.leader)):
            self._wrong("G5", position, f"{name}: leader {message.leader!r} of members {list(members)}")
        without = [
            member.member_id
            for member in message.members
            if all(protocol.name != message.protocol_name for protocol in member.protocols)
        ]
        if without:
            self._wrong("G6", position, f"{name}: {without} do not support {message.protocol_name!r}")
        static = [member.group_instance_id for member in message.members if member.group_instance_id]
        if len(set(static)) != len(static):
            self._wrong("G10", position, f"{name}: a static id stands for two members among {static}")
        size_bytes = message.ByteSize()
        if len(message.members) > self._limits.max_size or size_bytes > RECORD_MAX_BYTES:
            self._wrong(
                "G11",
                position,
                f"{name}: {len(message.members)} members of at most {self._limits.max_size}, "
                f"{size_bytes} bytes of at most {RECORD_MAX_BYTES}",
            )

    def _wrong(self, invariant: str, position: Position, detail: str) -> None:
        """Notes a break of a promise whose look was counted already."""
        self._findings.checked[invariant] -= 1
        self._broken(invariant, position, detail)

    # -- assignments --------------------------------------------------------------------------------

    def _assignment_committed(self, position: Position, record: records_pb2.Record) -> None:
        message = record.assignment_committed
        group = self._group(message.group_id)
        expect = self._findings.expect
        name = f"group {message.group_id!r}, assignment of generation {message.generation}"
        if group.met_in_the_middle and group.generation == 0:
            return
        self._check_alive(position, group, "an assignment")
        current = message.generation == group.generation
        first = group.assignment is None
        expect(
            "G2",
            current and first,
            position,
            f"{name}: the second one"
            if current
            else f"{name}: the group is in generation {group.generation}",
        )
        if not current:
            return
        if not first and group.assignment is not None and group.assignment.members:
            same = {row.member_id: row.assignment for row in group.assignment.members} == {
                row.member_id: row.assignment for row in message.members
            }
            expect("G4", same, position, f"{name}: other bytes than the ones that were stored first")
        else:
            self._findings.checked["G4"] += 1
        strangers = sorted({row.member_id for row in message.members} - group.members.keys())
        expect("G3", not strangers, position, f"{name}: {strangers} are no members of it")
        expect(
            "G5",
            message.leader == ("" if group.server_assignor else group.leader),
            position,
            f"{name}: by {message.leader!r}, the leader is {group.leader!r}",
        )
        expect("G7", bool(group.members), position, f"{name}: the group has no members")
        self._check_partitions(position, message, group, name)
        group.assignment = message

    def _check_partitions(
        self, position: Position, message: records_pb2.AssignmentCommitted, group: _Group, name: str
    ) -> None:
        before, group.given = group.given, {}
        checked = self._findings.checked
        for row in message.members:
            kept = {
                (token.topic, token.partition): Position.from_proto(token.position)
                for token in row.kept_tokens
            }
            for partition, since in kept.items():
                had = before.get(partition)
                checked["G13"] += 1
                if since >= position or since < group.born_behind:
                    what = "not before it" if since >= position else "from before the group was removed"
                    self._wrong("G13", position, f"{_keeps(name, row.member_id, partition, since)}: {what}")
                elif had is not None and had != (row.member_id, since):
                    what = _keeps(name, row.member_id, partition, since)
                    self._wrong("G13", position, f"{what}, which {had[0]} had since {had[1].stream_id}")
            for partition in partitions_in(row.assignment):
                checked["G9"] += 1
                if partition in group.given:
                    topic, number = partition
                    self._wrong(
                        "G9",
                        position,
                        f"{name}: {topic}/{number} is given a second time, to {row.member_id}",
                    )
                group.given[partition] = (row.member_id, kept.get(partition, position))

    # -- members ------------------------------------------------------------------------------------

    def _member_left(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_left
        group = self._group(message.group_id)
        if group.met_in_the_middle and group.generation == 0:
            group.gone.add(message.member_id)
            return
        self._check_alive(position, group, "a departure")
        member = group.members.pop(message.member_id, None)
        self._findings.expect(
            "G7",
            member is not None and message.generation == group.generation,
            position,
            f"group {message.group_id!r}: {message.member_id} left generation {message.generation}; "
            f"the group is in {group.generation} and it is {'a' if member is not None else 'no'} member",
        )
        heard_ms = group.heard_ms.pop(message.member_id, None)
        if member is not None and heard_ms is not None:
            self._check_silence(position, message, heard_ms)
        group.commit_seqs.pop(message.member_id, None)
        group.gone.add(message.member_id)

    def _check_silence(self, position: Position, message: records_pb2.MemberLeft, heard_ms: int) -> None:
        allowed_ms = causes.silence_ms(message.cause)
        if allowed_ms is None:
            return
        silent_ms = self._now_ms - heard_ms
        self._findings.expect(
            "M3",
            silent_ms < 0 or silent_ms >= allowed_ms - _TOLERANCE_MS,  # below 0: the clock was set back
            position,
            f"group {message.group_id!r}: {message.member_id} was removed {silent_ms} ms after it was heard "
            f"of; its time-out is {allowed_ms} ms",
        )

    def _member_replaced(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_replaced
        group = self._group(message.group_id)
        new, static = message.member.member_id, message.member.group_instance_id
        if group.met_in_the_middle and group.generation == 0:
            return
        self._check_alive(position, group, "a replacement")
        old = group.members.pop(message.old_member_id, None)
        self._findings.expect(
            "G10",
            bool(static) and old is not None and old.group_instance_id == static,
            position,
            f"group {message.group_id!r}: {new} takes {static!r} over from "
            f"{message.old_member_id}, which does not hold it",
        )
        self._findings.expect(
            "M5", bool(new), position, f"group {message.group_id!r}: a member without an id"
        )
        group.commit_seqs.pop(message.old_member_id, None)
        group.heard_ms.pop(message.old_member_id, None)
        group.gone.add(message.old_member_id)
        group.members[new] = message.member
        group.heard_ms[new] = self._now_ms
        for partition, (owner, _) in list(group.given.items()):
            if owner == message.old_member_id:
                group.given[partition] = (new, position)
        if group.leader == message.old_member_id:
            group.leader = new

    def _check_alive(self, position: Position, group: _Group, what: str) -> None:
        """A removed group comes back only with a first generation, or with a commit from outside."""
        if group.born_behind != NOWHERE and group.generation == 0:
            text = f"{what} of a group that was removed at {group.born_behind.stream_id}"
            self._broken("G13", position, text)

    def _group_tombstone(self, position: Position, record: records_pb2.Record) -> None:
        message = record.group_tombstone
        group = self._groups.pop(message.group_id, None) or _Group(met_in_the_middle=self.trimmed)
        self._deleted[message.group_id] = position
        name = f"group {message.group_id!r} is removed"
        self._findings.expect(
            "G7", not group.members, position, f"{name} while {sorted(group.members)} are members"
        )
        self._findings.expect(
            "G13",
            message.last_generation == group.generation or group.met_in_the_middle,
            position,
            f"{name} in generation {message.last_generation}; it is in {group.generation}",
        )

    # -- offsets ------------------------------------------------------------------------------------

    def _offset_committed(self, position: Position, record: records_pb2.Record) -> None:
        message = record.offset_committed
        group = self._group(message.group_id)
        member_id, generation = message.member_id, message.generation
        self._findings.checked["O3"] += 1
        limit = self._limits.offset_metadata_max_bytes
        for entry in message.offsets:
            metadata = entry.metadata
            if len(metadata) * 4 > limit and len(metadata.encode()) > limit:  # 4: of the longest character
                text = f"group {message.group_id!r}: a commit with more than {limit} bytes of metadata"
                self._broken("G11", position, text)
        if not member_id and generation < 0:
            if group.members:
                text = f"group {message.group_id!r}: a commit from outside while it has members"
                self._wrong("O3", position, text)
            return
        if group.met_in_the_middle and group.generation == 0:
            return
        if generation != group.generation or member_id not in group.members:
            self._check_alive(position, group, "a commit")
            member = "a" if member_id in group.members else "no"
            self._wrong(
                "O3",
                position,
                f"group {message.group_id!r}: a commit of {member_id} in generation {generation}; the group "
                f"is in {group.generation}, of which it is {member} member",
            )
        else:
            group.heard_ms[member_id] = record.written_at_ms
        seq = message.member_seq
        if seq:
            self._findings.checked["O4"] += 1
            last = group.commit_seqs.get(member_id, 0)
            if seq <= last:
                text = (
                    f"group {message.group_id!r}: a commit of {member_id}: number {seq} after number {last}"
                )
                self._wrong("O4", position, text)
            group.commit_seqs[member_id] = seq

    def _offset_tombstone(self, position: Position, record: records_pb2.Record) -> None:
        message = record.offset_tombstone
        group = self._group(message.group_id)
        if message.reason != "expired" or (group.met_in_the_middle and group.generation == 0):
            return
        wanted = [entry.topic for entry in message.topics if self._wants(group, entry.topic)]
        self._findings.expect(
            "O6",
            not wanted,
            position,
            f"group {message.group_id!r}: offsets of {wanted} expire while members are subscribed to them",
        )

    @staticmethod
    def _wants(group: _Group, topic: str) -> bool:
        """Whether a member may be using a topic's offsets."""
        if not group.members:
            return False
        if group.protocol_type != CONSUMER or group.assignment is None:
            return True
        for member in group.members.values():
            metadata = next(
                (row.metadata for row in member.protocols if row.name == group.protocol_name), b""
            )
            subscription: common_pb2.Subscription | None = read_subscription(metadata)
            if subscription is None or topic in subscription.topics:
                return True
        return False


def _keeps(name: str, member_id: str, partition: TopicPartition, since: Position) -> str:
    return f"{name}: {member_id} keeps {partition[0]}/{partition[1]} since {since.stream_id}"
