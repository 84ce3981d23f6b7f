"""Snapshots: what a log had made of its groups at one position, as bytes in parts.

Made from a state that was only ever replayed, and read back into the same state: a replay of the snapshot and
the records after it equals a replay of all records (invariant G12).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import coordinator_pb2, group_settings_pb2

from muster_core.log.chain import BEFORE_GENESIS
from muster_core.log.incremental_items import items_of, member_of, state_of
from muster_core.position import NOWHERE, Position
from muster_core.record_bounds import utf8_bytes
from muster_core.state.group import Group
from muster_core.state.group_settings import is_any_set
from muster_core.state.group_state import GroupState
from muster_core.state.history import GenerationEntry
from muster_core.state.members.member import Member
from muster_core.state.offsets.offset_store import CommittedOffset
from muster_core.state.published import TopicPartition

FORMAT = 1
SNAPSHOT_PART_BYTES = 256 << 10
"""A part ends with the item that reaches this size."""

_ENTRIES_PER_ITEM = 500
_METADATA_PER_ITEM_BYTES = 64 << 10
"""An item of offsets ends with the metadata string that reaches this size: a part is made at a stretch."""

_MILESTONES_MAX = 512
_STATES = {state.proto: state for state in GroupState}


class SnapshotUnusable(Exception):
    """The bytes are no snapshot that this version can start from; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A place in the log of which it is known when it was written (wall clock)."""

    position: Position
    written_at_ms: int


@dataclass(frozen=True, slots=True)
class Covered:
    """What a snapshot is of.

    Attributes:
        shard: the shard.
        upto: last position it covers.
        hash: chain hash of the entry there.
        milestones: places that it and snapshots before it covered, oldest first.
        previous_upto: what the snapshot before covers, which is kept beside this one; nowhere: there is none.
        catalog_place: up to where in the catalog's log deletions were carried out; nowhere: not known.
        incarnations: of the topics that offsets and assignments belong to, by name, in order.
        removed: numbers of partitions that were removed, in order, by topic, in order.
    """

    shard: int
    upto: Position
    hash: bytes
    milestones: tuple[Milestone, ...] = ()
    previous_upto: Position = NOWHERE
    catalog_place: Position = NOWHERE
    incarnations: tuple[tuple[str, int], ...] = ()
    removed: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def following(self, before: "Covered", written_at_ms: int) -> "Covered":
        """What this covers as the successor of another snapshot; of too many milestones every second goes.

        Args:
            before: what the snapshot before covers.
            written_at_ms: when the last record that this one covers was written.
        """
        kept = list(before.milestones)
        if len(kept) >= _MILESTONES_MAX:
            del kept[1::2]
        mine = Milestone(self.upto, written_at_ms)
        return replace(self, milestones=(*kept, mine), previous_upto=before.upto)


def nothing_of(shard: int) -> Covered:
    """What is covered where there is no snapshot."""
    return Covered(shard, NOWHERE, BEFORE_GENESIS)


def digest_of(part_hashes: Iterable[bytes]) -> bytes:
    """What a marker in the log says about a snapshot: SHA-256 over the SHA-256 of each part, in order."""
    return sha256(b"".join(part_hashes)).digest()


def part_hash(part: bytes) -> bytes:
    """SHA-256 of a part."""
    return sha256(part).digest()


# --- writing


def parts(
    groups: Iterable[Group],
    covered: Covered,
    part_bytes: int = SNAPSHOT_PART_BYTES,
    catalog: Iterable[snapshot_pb2.CatalogState] = (),
) -> Iterator[bytes]:
    """The parts of a snapshot, one at a time, so that a large shard can be written in small steps.

    Equal states give equal bytes. The groups must not change before the last part was taken.

    Args:
        groups: of a state that was replayed and never served.
        covered: what the state is of.
        part_bytes: a part ends with the item that reaches this size.
        catalog: of the catalog's log: its state, in pieces; there are no groups then.
    """
    part, size = snapshot_pb2.SnapshotPart(), 0
    for item in _items(groups, covered, catalog):
        part.items.append(item)
        size += item.ByteSize()
        if size >= part_bytes:
            yield part.SerializeToString(deterministic=True)
            part, size = snapshot_pb2.SnapshotPart(), 0
    yield part.SerializeToString(deterministic=True)


def _items(
    groups: Iterable[Group], covered: Covered, catalog: Iterable[snapshot_pb2.CatalogState]
) -> Iterator[snapshot_pb2.SnapshotItem]:
    header = snapshot_pb2.SnapshotHeader(
        format=FORMAT,
        shard=covered.shard,
        upto=covered.upto.to_proto(),
        hash=covered.hash,
        previous_upto=covered.previous_upto.to_proto(),
        catalog_offset=covered.catalog_place.offset,
        catalog_epoch=covered.catalog_place.epoch,
    )
    for name, incarnation in covered.incarnations:
        header.incarnations.add(name=name, incarnation=incarnation)
    for topic, numbers in covered.removed:
        header.removed.add(topic=topic, partitions=numbers)
    for milestone in covered.milestones:
        header.milestones.add(position=milestone.position.to_proto(), written_at_ms=milestone.written_at_ms)
    yield snapshot_pb2.SnapshotItem(header=header)
    count = 0
    for group in groups:
        count += 1
        yield from _items_of(group)
    for state in catalog:
        yield snapshot_pb2.SnapshotItem(catalog=state)
    yield snapshot_pb2.SnapshotItem(end=snapshot_pb2.SnapshotEnd(groups=count))


def _items_of(group: Group) -> Iterator[snapshot_pb2.SnapshotItem]:
    yield snapshot_pb2.SnapshotItem(
        group=snapshot_pb2.GroupHead(
            group_id=group.group_id,
            state=group.state.proto,
            state_since_ms=group.state_since_ms,
            generation=group.generation,
            assigned_generation=group.assigned_generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader,
            cause=group.cause,
            unfinished=group.unfinished,
            topics_known=group.subscribed_topics is not None,
            topics=sorted(group.subscribed_topics or ()),
            renewed_topics=sorted(group.renewed_topics),
            settings=group.settings if is_any_set(group.settings) else None,
            reverted=group.reverted,
        )
    )
    for member in group.members.values():
        yield snapshot_pb2.SnapshotItem(
            member=snapshot_pb2.MemberState(
                member=member.to_record(),
                commit_seq=member.commit_seq,
                assignment=member.assignment,
                token=member.token.to_proto(),
                kept_tokens=member.kept_tokens,
            )
        )
    owners = iter(group.owners.items())
    while owned_by := list(islice(owners, _ENTRIES_PER_ITEM)):
        owned = snapshot_pb2.OwnedPartitions()
        for (topic, partition), (member_id, since) in owned_by:
            owned.partitions.add(
                topic=topic, partition=partition, member_id=member_id, since=since.to_proto()
            )
        yield snapshot_pb2.SnapshotItem(owned=owned)
    if group.incremental is not None:
        yield from items_of(group.incremental)
    for entry in group.history:
        yield snapshot_pb2.SnapshotItem(generation=entry.to_proto())
    yield from _offset_items(group.offsets)


def _offset_items(
    offsets: Iterable[tuple[TopicPartition, CommittedOffset]],
) -> Iterator[snapshot_pb2.SnapshotItem]:
    states, metadata_bytes = snapshot_pb2.OffsetStates(), 0
    for (topic, partition), found in offsets:
        states.offsets.add(
            offset=records_pb2.CommittedOffset(
                topic=topic,
                partition=partition,
                offset=found.offset,
                leader_epoch=found.leader_epoch,
                metadata=found.metadata,
            ),
            committed_at_ms=found.committed_at_ms,
            expire_at_ms=found.expire_at_ms,
        )
        metadata_bytes += utf8_bytes(found.metadata)
        if len(states.offsets) == _ENTRIES_PER_ITEM or metadata_bytes >= _METADATA_PER_ITEM_BYTES:
            yield snapshot_pb2.SnapshotItem(offsets=states)
            states, metadata_bytes = snapshot_pb2.OffsetStates(), 0
    if states.offsets:
        yield snapshot_pb2.SnapshotItem(offsets=states)


# --- reading


def _nothing(_: Covered) -> None:
    """Nobody is called when a snapshot begins."""


@dataclass(slots=True)
class _OpenGroup:
    """The group whose items come."""

    group: Group
    head: snapshot_pb2.GroupHead


@dataclass(slots=True)
class SnapshotReader:
    """Puts a snapshot back into a state, part by part.

    Args:
        shard: the shard that it must be of.
        groups: the state's groups; empty.
        history_length: generations that a group remembers.
        begun: called with what the snapshot is of.
        catalog: takes the pieces of the catalog's state; None: the snapshot is of a shard and has none.

    Attributes:
        covered: what the snapshot is of; None before its first part.
        part_hashes: SHA-256 of each part that was taken.
        complete: whether its last item was taken.
    """

    shard: int
    groups: dict[str, Group]
    history_length: int
    begun: Callable[[Covered], None] = _nothing
    catalog: Callable[[snapshot_pb2.CatalogState], None] | None = None
    covered: Covered | None = None
    part_hashes: list[bytes] = field(default_factory=list)
    complete: bool = False
    _open: _OpenGroup | None = None

    @property
    def digest(self) -> bytes:
        """The digest of the parts that were taken."""
        return digest_of(self.part_hashes)

    def take(self, part: bytes) -> None:
        """Takes the next part.

        Raises:
            SnapshotUnusable: it is damaged, of another shard, or made by a version that this one cannot read.
        """
        message = snapshot_pb2.SnapshotPart()
        try:
            message.ParseFromString(part)
        except DecodeError:
            raise SnapshotUnusable(f"part {len(self.part_hashes)} of the snapshot is no snapshot") from None
        self.part_hashes.append(part_hash(part))
        for item in message.items:
            try:
                self._take(item)
            except (KeyError, ValueError) as error:
                text = f"the snapshot contradicts itself, or is of another version: {error!r}"
                raise SnapshotUnusable(text) from error

    def _take(self, item: snapshot_pb2.SnapshotItem) -> None:
        kind = item.WhichOneof("kind")
        if self.complete:
            raise SnapshotUnusable("something follows the end of the snapshot")
        if (kind == "header") != (self.covered is None):
            raise SnapshotUnusable("the snapshot does not begin with its header, or has two")
        if kind == "header":
            self._begin(item.header)
        elif kind == "catalog" and self.catalog is not None:
            self.catalog(item.catalog)
        elif kind == "group" and self.catalog is None:
            self._close_group()
            self._open_group(item.group)
        elif kind == "end":
            self._close_group()
            self.complete = True
            if item.end.groups != len(self.groups):
                raise SnapshotUnusable(f"{item.end.groups} groups were written, {len(self.groups)} are there")
        elif self._open is None or kind is None:
            raise SnapshotUnusable(f"the snapshot has an item of kind {kind or 'unknown'} in no group")
        else:
            self._take_of_group(self._open.group, kind, item)

    def _take_of_group(self, group: Group, kind: str, item: snapshot_pb2.SnapshotItem) -> None:
        if kind == "member":
            self._member(group, item.member)
        elif kind == "owned":
            for owned in item.owned.partitions:
                since = Position.from_proto(owned.since)
                group.owners[owned.topic, owned.partition] = (owned.member_id, since)
        elif kind == "incremental":
            group.incremental = state_of(item.incremental)
        elif kind == "incremental_member" and group.incremental is not None:
            group.incremental.put(member_of(item.incremental_member))
        elif kind == "expression" and group.incremental is not None:
            group.incremental.resolve(item.expression.expression, frozenset(item.expression.topics))
        elif kind == "generation":
            # A copy: what is kept must not keep the whole part alive.
            generation = coordinator_pb2.GroupHistoryResponse.Generation()
            generation.CopyFrom(item.generation)
            group.history.remember(GenerationEntry.from_proto(generation))
        elif kind == "offsets":
            self._offsets(group, item.offsets)
        else:
            raise SnapshotUnusable(f"the snapshot has an item of kind {kind} inside a group")

    def _begin(self, header: snapshot_pb2.SnapshotHeader) -> None:
        if header.format != FORMAT:
            raise SnapshotUnusable(f"the snapshot has format {header.format}; this version reads {FORMAT}")
        if header.shard != self.shard:
            raise SnapshotUnusable(f"the snapshot is of shard {header.shard}, not of {self.shard}")
        self.covered = Covered(
            header.shard,
            Position.from_proto(header.upto),
            header.hash,
            tuple(
                Milestone(Position.from_proto(row.position), row.written_at_ms) for row in header.milestones
            ),
            Position.from_proto(header.previous_upto),
            Position(header.catalog_epoch, header.catalog_offset),
            tuple((one.name, one.incarnation) for one in header.incarnations),
            tuple((entry.topic, tuple(entry.partitions)) for entry in header.removed),
        )
        self.begun(self.covered)

    def _open_group(self, head: snapshot_pb2.GroupHead) -> None:
        if head.group_id in self.groups:
            raise SnapshotUnusable(f"the snapshot has group {head.group_id!r} twice")
        group = Group(head.group_id, head.state_since_ms, self.history_length)
        group.state = _STATES[head.state]
        group.generation = head.generation
        group.assigned_generation = head.assigned_generation
        group.protocol_type = head.protocol_type
        group.protocol_name = head.protocol_name
        kept = snapshot_pb2.GroupHead(cause=head.cause, unfinished=head.unfinished)
        group.cause = kept.cause if head.HasField("cause") else None
        group.unfinished = kept.unfinished if head.HasField("unfinished") else None
        group.subscribed_topics = frozenset(head.topics) if head.topics_known else None
        group.renewed_topics = frozenset(head.renewed_topics)
        group.reverted = head.reverted
        if head.HasField("settings"):
            group.settings = group_settings_pb2.GroupSettings()
            group.settings.CopyFrom(head.settings)
        self.groups[head.group_id] = group
        self._open = _OpenGroup(group, head)

    def _close_group(self) -> None:
        if self._open is not None:
            self._open.group.leader = self._open.head.leader
            self._open.group.weigh()
            self._open = None

    @staticmethod
    def _member(group: Group, state: snapshot_pb2.MemberState) -> None:
        if state.member.member_id in group.members:
            raise SnapshotUnusable(f"the snapshot has a member of group {group.group_id!r} twice")
        member = Member(state.member.member_id)
        member.adopt(state.member)
        member.commit_seq = state.commit_seq
        member.assignment = state.assignment
        member.token = Position.from_proto(state.token)
        member.kept_tokens = tuple(
            records_pb2.KeptToken(topic=kept.topic, partition=kept.partition, position=kept.position)
            for kept in state.kept_tokens
        )
        group.add(member)

    @staticmethod
    def _offsets(group: Group, states: snapshot_pb2.OffsetStates) -> None:
        for state in states.offsets:
            entry = state.offset
            group.offsets.put(
                (entry.topic, entry.partition),
                CommittedOffset(
                    entry.offset,
                    entry.leader_epoch,
                    entry.metadata,
                    state.committed_at_ms,
                    state.expire_at_ms,
                ),
            )
