"""Checks the records of groups against the promises about groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.groups.before_snapshot import BeforeSnapshot
from muster_core.audit.groups.binding_checker import BindingChecker
from muster_core.audit.groups.followed import FollowedGroup, FollowedMember
from muster_core.audit.groups.generations import GenerationChecker
from muster_core.audit.groups.incremental.checker import IncrementalChecker
from muster_core.audit.groups.incremental.commits import check_commit, check_reverted
from muster_core.audit.groups.incremental.conversion import converted, reverted
from muster_core.audit.groups.incremental.state import GroupState
from muster_core.audit.groups.incremental.stored import check_stored, check_tokens
from muster_core.audit.groups.kept_tokens import check_keepers, check_partitions
from muster_core.audit.groups.record_forms import check_forms
from muster_core.audit.groups.record_sizes import check_sizes
from muster_core.audit.groups.removal_checker import RemovalChecker
from muster_core.audit.groups.silence import check_silence
from muster_core.audit.groups.stored_members import check_members
from muster_core.audit.invariants import Findings
from muster_core.config import OFFSET_METADATA_MAX_BYTES, GroupConfig
from muster_core.incremental.application import KINDS as INCREMENTAL_KINDS
from muster_core.log.commits import CommitRow
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position
from muster_core.sharding import shard_of
from muster_core.state.group import CONSUMER, Group

_NO_GROUP = FollowedGroup()
_BY_GENERATION = ("G1", "G5", "G6", "G10", "G11", "M4", "M5")


class GroupChecker:
    """Follows the groups of one log through their records, in order.

    Args:
        findings: where the results go.
        trimmed: the beginning of the log is missing, so a group may be met in the middle of its life.
        limits: what a group may be.
        shard: number of the log.
        shard_count: of the cluster; 0: not known.
    """

    def __init__(
        self,
        findings: Findings,
        *,
        trimmed: bool,
        limits: GroupConfig | None = None,
        shard: int = 0,
        shard_count: int = 0,
    ) -> None:
        self.trimmed = trimmed
        self._findings = findings
        self._limits = GroupConfig() if limits is None else limits
        self._shard = shard
        self._shard_count = shard_count
        self._groups: dict[str, FollowedGroup] = {}
        self._deleted: dict[str, Position] = {}
        self._catalog_seen = NOWHERE
        self._before = BeforeSnapshot(findings)
        self.removals = RemovalChecker(findings)
        self._bindings = BindingChecker(findings)
        self._generations = GenerationChecker(findings, self._limits, self._bindings)
        self._now_ms = 0
        self._checks: dict[str, Callable[[Position, records_pb2.Record], None]] = {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_converted": self._group_converted,
            "group_reverted": self._group_reverted,
            "group_settings_altered": self._settings_altered,
            "group_tombstone": self._group_tombstone,
            "offset_tombstone": self._offset_tombstone,
            "topics_seen": self._topics_seen,
        }
        self._incremental = IncrementalChecker(findings, self._limits.max_size)
        self._checks.update((kind, partial(self._of_incremental, kind)) for kind in INCREMENTAL_KINDS)

    def add_run(self, run: RecordRun) -> None:
        """Takes the next records; those that do not concern groups pass."""
        checked, started = self._findings.checked, run.kinds.count("generation_started")
        if self.trimmed:
            self._before.add_run(run)
        if started:
            for invariant in _BY_GENERATION:
                checked[invariant] += started
        for index, part in run.in_order():
            if isinstance(part, list):
                self._commits(run, index, part)
            elif (check := self._checks.get(run.kinds[index])) is not None:
                self._now_ms = part.written_at_ms
                check(run.position(index), part)
        check_forms(run, self._findings)
        self.removals.add_run(run)
        if run.longest_bytes > OFFSET_METADATA_MAX_BYTES:
            check_sizes(run, self._findings)

    def claimed(self) -> None:
        """A new owner has come: its clock does not compare with the last one's."""
        for group in self._groups.values():
            group.forget_times()

    def begin_with(self, groups: Mapping[str, Group], position: Position) -> None:
        """Takes over the groups that a snapshot holds, so that none is met in the middle of its life.

        What the records before its end say is compared with it.
        """
        self.trimmed = False
        self._before.compare(groups, position)
        self._bindings.begin_with(groups.values())
        for known in groups.values():
            self._check_shard(known.group_id, position)
            check_tokens(known, position, self._findings)
            if known.incremental is not None:
                check_stored(known.group_id, known.incremental, position, self._findings)
            check_members(known, self._limits.max_size, position, self._findings)
            group = self._groups[known.group_id] = FollowedGroup(
                generation=known.generation,
                protocol_type=known.protocol_type,
                protocol_name=known.protocol_name,
                leader=known.leader,
                members={
                    member.member_id: FollowedMember(member.to_record(), commit_seq=member.commit_seq)
                    for member in (known.members.values() if known.incremental is None else ())
                },
                given=dict(known.owners),
                incremental=None if known.incremental is None else GroupState.of(known.incremental),
                reverted=known.reverted,
            )
            if known.assigned_generation == known.generation and known.generation:
                group.assignment = records_pb2.AssignmentCommitted(generation=known.generation)

    def compare(self, groups: Iterable[Group], position: Position) -> None:
        """Checks what a snapshot says of incremental groups that were followed from their beginning."""
        for stored in groups:
            mine = self._groups.get(stored.group_id)
            if stored.incremental is not None and mine is not None and mine.incremental is not None:
                self._incremental.compare(stored.group_id, mine.incremental, stored.incremental, position)

    def _group(self, group_id: str, position: Position) -> FollowedGroup:
        group = self._groups.get(group_id)
        if group is None:
            born_after = self._deleted.get(group_id, NOWHERE)
            group = self._groups[group_id] = FollowedGroup(
                born_after=born_after, met_in_the_middle=self.trimmed and born_after == NOWHERE
            )
            if group.met_in_the_middle:
                group.given = None
            self._check_shard(group_id, position)
        return group

    def _check_shard(self, group_id: str, position: Position) -> None:
        if self._shard_count:
            right = shard_of(group_id, self._shard_count)
            text = f"group {group_id!r} belongs to shard {right}"
            self._findings.expect("G14", right == self._shard, position, text)

    def _of_incremental(self, kind: str, position: Position, record: records_pb2.Record) -> None:
        message = getattr(record, kind)
        group = self._group(message.group_id, position)
        if group.met_in_the_middle and group.generation == 0:
            return
        if group.incremental is None:
            kept = sorted(group.members)
            text = f"group {message.group_id!r} becomes incremental while {kept} are members"
            self._findings.expect("G7", not kept, position, text)
            group.incremental, group.members = GroupState(group.generation), {}
        self._incremental.take(kind, position, group.incremental, message, self._now_ms)
        group.generation = group.incremental.epoch

    def _group_converted(self, position: Position, record: records_pb2.Record) -> None:
        message = record.group_converted
        group = self._group(message.group_id, position)
        if group.given is None:  # met in the middle, so nobody knows who has what: it is followed no more
            group.generation, group.members = 0, {}
            return
        known = {name: (one.record, one.commit_seq) for name, one in group.members.items()}
        now_ms, findings = self._now_ms, self._findings
        group.incremental = converted(
            position, message, group.generation, known, group.given, now_ms, findings
        )
        group.members, group.assignment, group.given, group.removal = {}, None, {}, None
        group.leader = group.protocol_name = ""
        group.reverted = False

    def _group_reverted(self, position: Position, record: records_pb2.Record) -> None:
        message = record.group_reverted
        group = self._group(message.group_id, position)
        is_unknown = group.met_in_the_middle and group.generation == 0
        state = group.incremental
        if state is None:
            text = f"group {message.group_id!r} is classic again, and was no incremental one"
            self._findings.expect("I9", is_unknown, position, text)
        group.given = None if state is None else reverted(position, message, state, self._findings)
        group.members = {
            one.member_id: FollowedMember(
                one,
                self._now_ms,
                state.members[one.member_id].commit_seq
                if state is not None and one.member_id in state.members
                else 0,
            )
            for one in message.members
        }
        self._bindings.group_reverted(message)
        group.gone.difference_update(group.members)  # an incremental member keeps its id when it joins anew
        group.assignment = records_pb2.AssignmentCommitted(generation=message.generation)
        group.incremental, group.members_are_right, group.reverted = None, False, True
        group.generation, group.protocol_type, group.protocol_name = message.generation, CONSUMER, ""
        group.leader, group.removal = "", None

    def _settings_altered(self, position: Position, record: records_pb2.Record) -> None:
        """Adds the group if there was none; its members, and what they have, stay."""
        self._group(record.group_settings_altered.group_id, position)

    def _is_classic(self, position: Position, group_id: str, group: FollowedGroup) -> None:
        """Notes that the group is a classic one from here on."""
        kept = sorted(group.incremental.members) if group.incremental is not None else []
        text = f"group {group_id!r} becomes classic while {kept} are members"
        self._findings.expect("G7", not kept, position, text)
        group.incremental = None

    def _broken(self, invariant: str, position: Position, detail: str) -> None:
        self._findings.expect(invariant, False, position, detail)

    # -- generations --------------------------------------------------------------------------------

    def _generation_started(self, position: Position, record: records_pb2.Record) -> None:
        group_id = record.generation_started.group_id
        group = self._groups.get(group_id) or self._group(group_id, position)
        if group.incremental is not None:
            self._is_classic(position, group_id, group)
        self._generations.take(position, record, group)

    def _wrong(self, invariant: str, position: Position, detail: str) -> None:
        """Notes a break of a promise whose look was counted already."""
        self._findings.broke(invariant, position, detail)

    # -- assignments --------------------------------------------------------------------------------

    def _assignment_committed(self, position: Position, record: records_pb2.Record) -> None:
        message = record.assignment_committed
        group = self._group(message.group_id, position)
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
        assigned = {row.member_id for row in message.members[:]}
        strangers, without = sorted(assigned - group.members.keys()), sorted(group.members.keys() - assigned)
        expect("G3", not strangers, position, f"{name}: {strangers} are no members of it")
        expect("G3", not without, position, f"{name}: it leaves {without} out, which are members of it")
        expect(
            "G5",
            message.leader == group.leader,
            position,
            f"{name}: by {message.leader!r}, the leader is {group.leader!r}",
        )
        expect("G7", bool(group.members), position, f"{name}: the group has no members")
        expect("G7", not group.is_over, position, f"{name}: a member has left it")
        group.reverted = False
        had = group.given
        group.given = check_partitions(position, message, had, group.born_after, self._findings)
        members = (member.record for member in group.members.values())
        check_keepers(position, message, members, had, self._limits.max_partitions, self._findings)
        group.assignment = message

    # -- members ------------------------------------------------------------------------------------

    def _member_left(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_left
        self._bindings.member_left(message)
        group = self._group(message.group_id, position)
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
        if member is not None and member.heard_ms is not None and not message.clock_moved:
            silent_ms = self._now_ms - member.heard_ms
            group.removal = check_silence(position, message, member.record, silent_ms, self._findings)
        group.seqs_of_strangers.pop(message.member_id, None)
        group.gone.add(message.member_id)
        group.is_over = True

    def _member_replaced(self, position: Position, record: records_pb2.Record) -> None:
        message = record.member_replaced
        self._bindings.member_replaced(position, message)
        group = self._group(message.group_id, position)
        new, static = message.member.member_id, message.member.group_instance_id
        if group.met_in_the_middle and group.generation == 0:
            return
        self._check_alive(position, group, "a replacement")
        self._findings.expect(
            "G7",
            message.generation == group.generation,
            position,
            f"group {message.group_id!r}: {new} takes {static!r} over in generation {message.generation}; "
            f"the group is in {group.generation}",
        )
        old = group.members.pop(message.old_member_id, None)
        self._findings.expect(
            "G10",
            bool(static) and old is not None and old.record.group_instance_id == static,
            position,
            f"group {message.group_id!r}: {new} takes {static!r} over from "
            f"{message.old_member_id}, which does not hold it",
        )
        self._findings.expect(
            "M5", bool(new), position, f"group {message.group_id!r}: a member without an id"
        )
        self._findings.expect(
            "M4",
            new not in group.gone,
            position,
            f"group {message.group_id!r}: {new}, which takes {static!r} over, left before",
        )
        taken = new in group.members or new == message.old_member_id
        text = f"group {message.group_id!r}: {new}, which takes {static!r} over, is a member already"
        self._findings.expect("G10", not taken, position, text)
        group.seqs_of_strangers.pop(message.old_member_id, None)
        group.gone.add(message.old_member_id)
        group.members_are_right = False
        group.members[new] = FollowedMember(message.member, self._now_ms, group.seqs_of_strangers.pop(new, 0))
        if group.given is not None:
            for partition, (owner, _) in list(group.given.items()):
                if owner == message.old_member_id:
                    group.given[partition] = (new, position)
        if group.leader == message.old_member_id:
            group.leader = new

    def _check_alive(self, position: Position, group: FollowedGroup, what: str) -> None:
        """A removed group comes back only with a first generation, or with a commit from outside."""
        if group.born_after != NOWHERE and group.generation == 0:
            text = f"{what} of a group that was removed at {group.born_after.stream_id}"
            self._broken("G13", position, text)

    def _group_tombstone(self, position: Position, record: records_pb2.Record) -> None:
        message = record.group_tombstone
        self._bindings.group_gone(message.group_id)
        known = self._groups.pop(message.group_id, None)
        group = known or FollowedGroup(met_in_the_middle=self.trimmed)
        self._deleted[message.group_id] = position
        name = f"group {message.group_id!r} is removed"
        if known is None:
            self._check_shard(message.group_id, position)
        if known is None and not self.trimmed:
            self._wrong("G16", position, f"{name}, and there is none")
        members = [*group.members, *(group.incremental.members if group.incremental is not None else ())]
        self._findings.expect("G7", not members, position, f"{name} while {sorted(members)} are members")
        self._findings.expect(
            "G13",
            message.last_generation == group.generation or group.met_in_the_middle,
            position,
            f"{name} in generation {message.last_generation}; it is in {group.generation}",
        )

    # -- offsets ------------------------------------------------------------------------------------

    def _commits(self, run: RecordRun, begin: int, rows: Sequence[CommitRow]) -> None:
        """Takes commits that follow each other; a log consists of little else."""
        checked = self._findings.checked
        checked["O3"] += len(rows)
        groups, numbered = self._groups, 0
        group, member, of_group, of_member, current = _NO_GROUP, None, None, None, None
        for index, (group_id, member_id, generation, seq, written_at_ms) in enumerate(rows, begin):
            if member_id != of_member or group_id != of_group:  # a member commits several times in a row
                of_group, of_member = group_id, member_id
                group = groups.get(group_id) or self._group(group_id, run.position(index))
                member = group.members.get(member_id)  # an incremental group has none of these
                current = None if group.reverted else group.generation
            if member is None or generation != current:
                row = rows[index - begin]
                if group.incremental is not None:
                    place = run.position(index)
                    check_commit(place, row, run.datas[index], group.incremental, self._findings)
                    continue
                if member is None or not group.reverted:
                    self._odd_commit(run.position(index), row, group, member)
                    continue
                if group.given is not None:
                    check_reverted(run.position(index), row, run.datas[index], group.given, self._findings)
            member.heard_ms = written_at_ms
            if seq:
                numbered += 1
                if seq <= member.commit_seq:
                    self._numbered_again(run.position(index), rows[index - begin], member.commit_seq)
                member.commit_seq = seq
        checked["O4"] += numbered

    def _odd_commit(
        self, position: Position, commit: CommitRow, group: FollowedGroup, member: FollowedMember | None
    ) -> None:
        """Takes a commit that is not of a member of the present generation."""
        group_id, member_id, generation, seq, _ = commit
        if not member_id and generation < 0:
            if group.members:
                text = f"group {group_id!r}: a commit from outside while it has members"
                self._wrong("O3", position, text)
            return
        if group.met_in_the_middle and group.generation == 0:
            return
        self._check_alive(position, group, "a commit")
        self._wrong(
            "O3",
            position,
            f"group {group_id!r}: a commit of {member_id} in generation {generation}; the group "
            f"is in {group.generation}, of which it is {'no' if member is None else 'a'} member",
        )
        if seq:
            self._findings.checked["O4"] += 1
            last = group.seqs_of_strangers.get(member_id, 0) if member is None else member.commit_seq
            if seq <= last:
                self._numbered_again(position, commit, last)
            if member is None:
                group.seqs_of_strangers[member_id] = seq
            else:
                member.commit_seq = seq

    def _numbered_again(self, position: Position, commit: CommitRow, last: int) -> None:
        group_id, member_id, _, seq, _ = commit
        text = f"group {group_id!r}: a commit of {member_id}: number {seq} after number {last}"
        self._wrong("O4", position, text)

    def _offset_tombstone(self, position: Position, record: records_pb2.Record) -> None:
        message = record.offset_tombstone
        group = self._group(message.group_id, position)
        if message.reason != "expired" or (group.met_in_the_middle and group.generation == 0):
            return
        wanted = [entry.topic for entry in message.topics if group.wants(entry.topic)]
        self._findings.expect(
            "O6",
            not wanted,
            position,
            f"group {message.group_id!r}: offsets of {wanted} expire while members are subscribed to them",
        )

    def _topics_seen(self, position: Position, record: records_pb2.Record) -> None:
        message, before = record.topics_seen, self._catalog_seen
        for group in self._groups.values() if message.topics else ():
            if group.incremental is not None:
                group.incremental.renew(message.topics, position)
        seen = Position(message.catalog_epoch or before.epoch, message.catalog_offset)
        if seen < before:
            text = f"the catalog was seen up to {before.stream_id} before, and now up to {seen.stream_id}"
            self._wrong("G16", position, text)
        self._catalog_seen = max(before, seen)
