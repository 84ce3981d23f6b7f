"""What an acknowledged record does to the groups of a shard, live and in a replay alike."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2, group_settings_pb2

from muster_core.config import GroupConfig
from muster_core.incremental import application as incremental
from muster_core.incremental.conversion import converted
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import named_in
from muster_core.log.commits import CommittedRow
from muster_core.log.record_run import RecordRun
from muster_core.log.reversion import check_reversion, revert
from muster_core.position import NOWHERE, Position
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.group_table import GroupTable
from muster_core.state.history import GenerationEntry
from muster_core.state.holdings import Holdings
from muster_core.state.members.claims import Claims
from muster_core.state.members.member import Member
from muster_core.state.moves import list_moves, moves_between
from muster_core.state.published import TopicPartition, partitions_in

_NOBODY = ("", None)
_FEW = 6
_OF_OFFSETS = frozenset({"offset_committed", "offset_tombstone", "group_tombstone"})


class UnknownCriticalRecord(Exception):
    """A record of a kind that this version does not know and must not skip."""


class Application:
    """Applies records to groups.

    Args:
        groups: the groups by id; changed in place.
        config: limits of the history.
        on_gone: called with each member just before a record removes it, so that what it waits for ends.

    Attributes:
        skipped: number of records of an unknown kind that were passed over.
        frozen: ids of groups of which only offsets are taken over: their other records made this program
            fail.
        failed: the record that raised last, with its position; None: none did.
        catalog_place: up to where in the catalog's log deletions were carried out; nowhere: not known.
        removed: numbers of partitions that were removed, by topic, as the log says.
        incarnations: of the topics that offsets and assignments belong to, by name, as far as they are known.
        on_incremental: called with each record of an incremental group after it was carried out, as kind and
            part; None: nobody follows, in a replay.
        on_converted: called with a classic group just before a record makes it incremental, so that what its
            members wait for ends; None: nobody follows, in a replay.
        on_reverted: the same with an incremental group that a record makes classic.
        counts_in: what the bytes of new groups are counted in; None: they are not, in a replay.
        held: groups beside those of the shard of which offsets are removed, and nothing else changes.
        on_ended: called with each group that a record has removed; None: nobody follows, in a replay.
    """

    def __init__(
        self, groups: GroupTable, config: GroupConfig, on_gone: Callable[[Group, Member], None]
    ) -> None:
        self._groups = groups
        self._config = config
        self.counts_in: Holdings | None = None
        self.on_incremental: Callable[[Group, str, Any], None] | None = None
        self.on_converted: Callable[[Group], None] | None = None
        self.on_reverted: Callable[[Group], None] | None = None
        self.on_ended: Callable[[Group], None] | None = None
        self._on_gone = on_gone
        self.skipped = 0
        self.frozen: frozenset[str] = frozenset()
        self.failed: tuple[Position, records_pb2.Record] | None = None
        self.catalog_place = NOWHERE
        self.incarnations: dict[str, int] = {}
        self.removed: dict[str, frozenset[int]] = {}
        self.held: dict[str, Group] = {}
        self._appliers: dict[str, Callable[[Position, int, Any], None]] = {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_converted": self._group_converted,
            "group_reverted": self._group_reverted,
            "group_settings_altered": self._group_settings_altered,
            "group_tombstone": self._group_tombstone,
            "offset_committed": self._offset_committed,
            "offset_tombstone": self._offset_tombstone,
            "topics_seen": self._topics_seen,
            "partitions_removed": self._partitions_removed,
        }
        self._appliers.update((kind, partial(self._incremental, kind)) for kind in incremental.KINDS)

    def apply(self, position: Position, record: records_pb2.Record) -> None:
        """Carries out one record.

        Raises:
            UnknownCriticalRecord: its kind is unknown and it is marked critical.
            IllegalTransition, KeyError, ValueError: it contradicts the records before it.
        """
        self.apply_as(record.WhichOneof("kind") or "", position, record)

    def apply_as(self, kind: str, position: Position, record: records_pb2.Record) -> None:
        """Carries out one record whose kind the caller has looked up; empty: this version does not know it.

        Raises:
            UnknownCriticalRecord, IllegalTransition, KeyError, ValueError: as `apply`.
        """
        if not kind:
            if record.critical:
                raise UnknownCriticalRecord(f"record {position.stream_id} is of an unknown, critical kind")
            self.skipped += 1
        elif (applier := self._appliers.get(kind)) is not None:
            if self.frozen and kind not in _OF_OFFSETS and group_of(record) in self.frozen:
                return
            try:
                applier(position, record.written_at_ms, getattr(record, kind))
            except Exception:
                self.failed = position, record
                raise

    def apply_run(self, run: RecordRun) -> None:
        """Carries out the records of one epoch, one after the other, as `apply` does each.

        Raises:
            UnknownCriticalRecord: its kind is unknown and it is marked critical.
            IllegalTransition, KeyError, ValueError: it contradicts the records before it.
        """
        for index, part in run.in_order_by_partition():
            if isinstance(part, list):
                self.apply_commits(part)
            else:
                self.apply_as(run.kinds[index], run.position(index), part)

    def group(self, group_id: str, wall_ms: int) -> Group:
        """The group of that id, made when it is not there."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, wall_ms, self._config.history_length)
            if self.counts_in is not None:
                group.count_in(self.counts_in)
        return group

    def _generation_started(
        self, position: Position, wall_ms: int, record: records_pb2.GenerationStarted
    ) -> None:
        group = self.group(record.group_id, wall_ms)
        group.incremental = None
        if group.state is not GroupState.PREPARING_REBALANCE:
            group.become(GroupState.PREPARING_REBALANCE, wall_ms)  # in memory only, so the log skips it
        group.stored = True
        staying = {entry.member_id: entry for entry in record.members[:]}
        if not group.members.keys() <= staying.keys():
            for member_id in [member_id for member_id in group.members if member_id not in staying]:
                self._remove(group, member_id)
        unassigned = group.assigned_generation != group.generation
        for member_id, entry in staying.items():
            member = group.members.get(member_id)
            if member is None or not member.goes_on_as(entry):  # nearly all do
                member = self._adopt(group, member, entry)
            if unassigned and (member.assignment or member.kept_tokens):
                group.assign(member, b"")  # the generation before never got one (as Kafka's describe shows)
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.leader = record.leader
        cause = group.cause = record.cause if not group.history.length else _alone(record.cause)
        group.unfinished = None
        group.new_member_added = False
        if staying:
            group.recompute_subscribed_topics()
            group.become(GroupState.COMPLETING_REBALANCE, wall_ms)
        else:
            group.owners, group.reverted = {}, False
            group.renewed_topics = frozenset()
            group.subscribed_topics = frozenset()
            group.become(GroupState.EMPTY, wall_ms)
        if group.history.length:
            present = tuple([group.members[member_id].participant for member_id in staying])
            group.history.remember(
                GenerationEntry(
                    generation=group.generation,
                    cause=cause,
                    started_at_ms=wall_ms,
                    leader=group.leader,
                    protocol_name=group.protocol_name,
                    members=present,
                    position=position,
                )
            )
        group.weigh()

    def _assignment_committed(
        self, position: Position, wall_ms: int, record: records_pb2.AssignmentCommitted
    ) -> None:
        group = self._groups[record.group_id]
        owners: dict[TopicPartition, tuple[str, Position]] = {}
        planned = group.planned
        for entry in record.members[:]:
            member_id, assignment = entry.member_id, entry.assignment
            member = group.members[member_id]
            member.token = position
            handed_in = None if planned is None else planned.handed_to(member_id, assignment)
            if handed_in is not None:
                given, known = handed_in
                group.assign(member, assignment, entry.kept_tokens if known else ())
                _give(owners, given, (member_id, position))
                owners.update(known)
                continue
            kept_tokens = entry.kept_tokens or ()
            group.assign(member, assignment, kept_tokens)
            _give(owners, partitions_in(assignment), (member_id, position))
            since: dict[tuple[int, int], tuple[str, Position]] = {}  # many partitions have few tokens
            for kept in kept_tokens:
                partition = kept.topic, kept.partition
                if owners.get(partition, _NOBODY)[0] == member_id:
                    kept_since = kept.position  # each look at it makes an object
                    place = kept_since.epoch, kept_since.offset
                    owners[partition] = since.get(place) or since.setdefault(
                        place, (member_id, Position(*place))
                    )
        moves = None if planned is None else planned.moves
        if group.history:
            with group.history.adding() as latest:
                most = self._config.history_moves
                moved = moves_between(group.owners, owners, most) if moves is None else moves.first
                latest.assigned_at_ms = wall_ms
                list_moves(latest, moved, group.owners, owners, most)
        group.owners = owners
        if moves is None:
            group.ends.keep_only(owners)
        else:
            group.ends.forget(moves.gone)
        if group.renewed_topics:
            # What members are to release is of the topic before; they commit it in this generation (TOP-09).
            claims = Claims(group.members.values())
            unmet = claims.unmet_topics({entry.member_id: entry.assignment for entry in record.members})
            group.renewed_topics &= unmet
        group.assigned_generation, group.reverted = record.generation, False
        group.become(GroupState.STABLE, wall_ms)
        group.weigh()

    def _incremental(self, kind: str, position: Position, wall_ms: int, record: Any) -> None:
        group = self.group(record.group_id, wall_ms)
        group.stored = True
        if group.incremental is None:
            if not group.is_vacant:
                raise ValueError(f"classic group {group.group_id!r} has members")
            group.incremental = IncrementalGroup(group.generation)
        if kind == "target_assigned" and group.history:
            with group.history.adding(record.epoch) as entry:
                self._note_target(entry, wall_ms, record)
        incremental.apply(group.incremental, kind, position, record)
        if kind == "epoch_raised":
            self._note_epoch(group, group.incremental, position, wall_ms, record)
        group.generation = group.incremental.epoch
        if not group.incremental.members:
            group.state_since_ms = wall_ms  # how long it has been empty
        group.weigh()
        if self.on_incremental is not None:
            self.on_incremental(group, kind, record)

    @staticmethod
    def _note_epoch(
        group: Group,
        incremental_group: IncrementalGroup,
        position: Position,
        wall_ms: int,
        record: incremental_pb2.EpochRaised,
    ) -> None:
        """An epoch is to the history what a generation is."""
        cause = group.cause = _alone(record.cause)
        if group.history.length:
            members = tuple(incremental_group.tally.participants)
            group.history.remember(GenerationEntry(record.epoch, cause, wall_ms, "", "", members, position))

    def _note_target(
        self, entry: GenerationEntry, wall_ms: int, record: incremental_pb2.TargetAssigned
    ) -> None:
        """Notes what a target moves; the members' steps say when it has moved.

        Topics after those of which so many moves are listed are not looked at, for there may be a hundred
        thousand partitions. One is named twice at most, by who loses it and by who gets it.
        """
        entry.protocol_name = record.server_assignor
        named = [(change.member_id, change.loses[:], change.gets[:]) for change in record.changes]
        counts = [(one.topic, len(one.partitions)) for _, *both in named for some in both for one in some]
        left, last = 2 * (self._config.history_moves + 1), ""
        for topic, count in sorted(counts):
            if left <= 0:
                break
            left, last = left - count, topic
        before: dict[TopicPartition, tuple[str, Position]] = {}
        after: dict[TopicPartition, tuple[str, Position]] = {}
        for member_id, loses, gets in named:
            of_member = (member_id, NOWHERE)
            before.update(dict.fromkeys(named_in([one for one in loses if one.topic <= last]), of_member))
            after.update(dict.fromkeys(named_in([one for one in gets if one.topic <= last]), of_member))
        entry.assigned_at_ms = wall_ms
        most = self._config.history_moves
        list_moves(entry, moves_between(before, after, most), before, after, most)

    def _group_converted(
        self, position: Position, wall_ms: int, record: incremental_pb2.GroupConverted
    ) -> None:
        """Nobody gets or loses anything: the group is of the other kind (docs/safety.md, INC-70)."""
        group = self._groups[record.group_id]
        if group.incremental is not None and group.incremental.members:
            raise ValueError(f"group {record.group_id!r} is converted and is incremental")
        if record.generation != group.generation:
            raise ValueError(f"group {record.group_id!r} is in generation {group.generation}")
        members = {one.member_id: one for one in group.members.values() if one.recorded}
        made = converted(
            record,
            position,
            group.owners,
            {member_id: member.token for member_id, member in members.items()},
            {member_id: member.commit_seq for member_id, member in members.items()},
        )
        if self.on_converted is not None:
            self.on_converted(group)
        if group.state is not GroupState.PREPARING_REBALANCE:
            group.become(GroupState.PREPARING_REBALANCE, wall_ms)  # as for a generation without members
        for member_id in tuple(group.members):
            group.remove(member_id)
        group.become(GroupState.EMPTY, wall_ms)
        group.incremental, group.owners, group.unfinished, group.reverted = made, {}, None, False
        group.renewed_topics, group.subscribed_topics = frozenset(), frozenset()
        group.protocol_name, group.leader, group.new_member_added = "", "", False
        cause = group.cause = _alone(record.cause)
        present = tuple(made.tally.participants)
        name = record.server_assignor
        group.history.remember(
            GenerationEntry(record.generation, cause, wall_ms, "", name, present, position, wall_ms)
        )
        group.weigh()

    def _group_reverted(self, position: Position, wall_ms: int, record: records_pb2.GroupReverted) -> None:
        group = self._groups[record.group_id]
        check_reversion(group, record)
        if self.on_reverted is not None:
            self.on_reverted(group)
        revert(group, record, position, wall_ms)

    def _member_left(self, _: Position, __: int, record: records_pb2.MemberLeft) -> None:
        group = self._groups[record.group_id]
        group.unfinished = record.cause
        self._remove(group, record.member_id)

    def _member_replaced(self, position: Position, _: int, record: records_pb2.MemberReplaced) -> None:
        group = self._groups[record.group_id]
        member = group.replace(record.old_member_id, record.member.member_id)
        group.set_protocols(member, lambda: member.adopt(record.member))
        member.token = position
        group.assign(member, member.assignment)
        group.weigh()
        member.commit_seq = member.accepted_commit_seq = 0
        group.hand_on(record.old_member_id, member.member_id, position)
        if record.HasField("cause"):
            group.unfinished = record.cause
        elif group.state is GroupState.STABLE:
            group.recompute_subscribed_topics()

    def _group_settings_altered(
        self, _: Position, wall_ms: int, record: records_pb2.GroupSettingsAltered
    ) -> None:
        group = self.group(record.group_id, wall_ms)
        group.stored = True
        group.settings = group_settings_pb2.GroupSettings()
        group.settings.CopyFrom(record.settings)
        group.weigh()

    def _group_tombstone(self, _: Position, wall_ms: int, record: records_pb2.GroupTombstone) -> None:
        group = self._groups.pop(record.group_id, None)
        if group is not None:
            group.become(GroupState.DEAD, wall_ms)
            group.count_out()
            if self.on_ended is not None:
                self.on_ended(group)

    def apply_commits(self, rows: Iterable[CommittedRow]) -> None:
        """Carries out commits one after the other, as `apply` does each; a load consists of little else."""
        groups = self._groups
        of_group: str | None = None
        of_member: str | None = None
        for group_id, member_id, seq, partition, committed in rows:
            if group_id != of_group or member_id != of_member:  # a member commits several times in a row
                of_group, of_member = group_id, member_id
                group = groups.get(group_id) or self.group(group_id, committed[3])
                offsets, table, incremental = group.offsets, group.offsets.table, group.incremental
                member = group.members.get(member_id)
            before = table.get(partition)
            table[partition] = committed
            if committed[3] > offsets.newest_ms:
                offsets.newest_ms = committed[3]
            if before is None or before[2] != committed[2]:  # its metadata: mostly the same text, read anew
                offsets.weigh(partition, before, committed)
            if member is not None and seq > member.commit_seq:
                member.commit_seq = seq
            if incremental is not None:
                incremental.committed(member_id, seq)

    def _offset_committed(self, _: Position, wall_ms: int, record: records_pb2.OffsetCommitted) -> None:
        if not record.offsets:
            return  # only in a damaged log; commits that are decoded together have no row of it
        group = self.group(record.group_id, wall_ms)
        group.stored = True
        held_bytes = group.offsets.held_bytes
        group.offsets.store(record, wall_ms)
        member = group.members.get(record.member_id)
        if member is not None and record.member_seq > member.commit_seq:
            member.commit_seq = record.member_seq
        if group.incremental is not None:
            group.incremental.committed(record.member_id, record.member_seq)
        if group.offsets.held_bytes != held_bytes:
            group.weigh()

    def _offset_tombstone(self, _: Position, __: int, record: records_pb2.OffsetTombstone) -> None:
        group = self._groups.get(record.group_id) or self.held.get(record.group_id)
        if group is not None:
            group.offsets.remove(record.topics)
            group.ends.remove(record.topics)
            group.weigh()

    def _topics_seen(self, position: Position, _: int, record: records_pb2.TopicsSeen) -> None:
        # An owner of an earlier version names no epoch.
        place = Position(record.catalog_epoch or self.catalog_place.epoch, record.catalog_offset)
        self.catalog_place = max(self.catalog_place, place)
        topics = frozenset(record.topics)
        for topic in topics:
            self.incarnations.pop(topic, None)
            self.removed.pop(topic, None)
        for one in record.incarnations:
            self.incarnations[one.name] = one.incarnation
        if topics:
            for group in self._groups.peopled():
                if group.incremental is not None:
                    group.incremental.renew(topics, position)
                else:
                    group.renew(topics)

    def _partitions_removed(self, _: Position, __: int, record: records_pb2.PartitionsRemoved) -> None:
        for entry in record.topics:
            self.removed[entry.topic] = self.removed.get(entry.topic, frozenset()) | {*entry.partitions}

    @staticmethod
    def _adopt(group: Group, known: Member | None, entry: records_pb2.Member) -> Member:
        """A member is as a record says, which is new (None) or is not as it was."""
        member = Member(entry.member_id) if known is None else known
        if known is None:
            member.adopt(entry)
            group.add(member)
        else:
            group.set_protocols(member, lambda: member.adopt(entry))
        member.keep(entry)
        return member

    def _remove(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._on_gone(group, member)
            group.remove(member_id)


def _give(
    owners: dict[TopicPartition, tuple[str, Position]],
    partitions: Sequence[TopicPartition],
    owner: tuple[str, Position],
) -> None:
    if len(partitions) > _FEW:
        owners.update(zip(partitions, repeat(owner)))
    else:
        for partition in partitions:  # half the time: thousands of members have a few each
            owners[partition] = owner


def _alone(cause: common_pb2.RebalanceCause) -> common_pb2.RebalanceCause:
    """A cause that outlives its record: a part of that would keep all of it alive."""
    copied = common_pb2.RebalanceCause()
    copied.CopyFrom(cause)
    return copied


def group_of(record: records_pb2.Record) -> str:
    """The group that a record is about; empty: none."""
    kind = record.WhichOneof("kind")
    return "" if kind is None else str(getattr(getattr(record, kind), "group_id", ""))
