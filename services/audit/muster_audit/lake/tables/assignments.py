"""Who had which partition, from when to when, by which token."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from muster_core.position import Position
from muster_core.state.published import TopicPartition, partitions_in, partitions_of, read_subscription
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2

from muster_audit.lake.row import Interval, Place, day_of
from muster_audit.lake.tables.moves import Moves, fewest
from muster_audit.lake.tracker import Take, Tracker
from muster_audit.reading.timeline import cause_in_words


@dataclass(slots=True, kw_only=True)
class Assignment(Interval):
    """A member had a partition of a group under one token.

    It begins with the assignment that gave it. It ends with the first record that shows that the member does
    not have it any more: the next generation where the member did not say that it still holds the partition
    (`given up`) or is not part of (`not rejoined`), the next assignment (`reassigned`), the removal of the
    member (its cause), its new process (`static replaced`), `topic deleted` or `group gone`. One that has
    ended stays `open` until the next assignment, or until its topic or group goes: then it is settled that
    somebody else has the partition or that nobody is to have it, and until then it has no owner.

    In an incremental group it begins with the step that gave the partition. It ends with the step by which
    the member gave it back (`given up`), when the member left for a while before it had (`went away`), with a
    new life of the member (`rejoined`), and else as above. It is settled when the partition is given again.
    """

    table: ClassVar[str] = "assignments"

    group_id: Annotated[str, "The group."]
    topic: Annotated[str, "Topic of the partition."]
    partition: Annotated[int, "Number of the partition."]
    member_id: Annotated[str, "Who had it."]
    token: Annotated[str, "Fencing token: place of the record that gave it. Later ones are greater as text."]
    generation: Annotated[
        int,
        "Generation whose assignment gave it, or epoch of the step that did; of a new process the one that "
        "it came in, or of the ownership before.",
    ]
    settled_ms: Annotated[int | None, "When it was settled what comes after it; null: it is not yet."] = None
    taken_ms: Annotated[
        int | None,
        "When the coordinator took it from a member of an incremental group, to give it back; null: never, "
        "or the group was classic again before the member had.",
    ] = None

    @property
    def day(self) -> str:
        """The UTC day on which it was settled: a gap after it lies in that day or before."""
        assert self.settled_ms is not None
        return day_of(self.settled_ms)

    def settle(self, at: Place, by: str) -> Self:
        """Ends it, unless it has ended, and settles it; returns it."""
        self.settled_ms = at.at_ms
        return self.end(at, by)


class Assignments(Tracker[Assignment]):
    """Follows who has what.

    Attributes:
        moves: what the last assignment changed.
        claimed: how many partitions the members of the last generation said that they still held.
    """

    row = Assignment

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, Assignment]] = {}
        self.moves = Moves(0, 0, 0)
        self.claimed = 0

    @property
    def takes(self) -> Mapping[str, Take[Assignment]]:
        """What it does with which kind of record."""
        return {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_tombstone": self._group_tombstone,
            "topics_seen": self._topics_seen,
            "group_converted": self._converted,
            "group_reverted": self._reverted,
            "member_subscribed": self._subscribed,
            "member_stepped": self._stepped,
            "member_went_away": self._went_away,
            "instance_moved": self._instance_moved,
            "member_removed": self._member_left,
        }

    def resume(self, row: Assignment) -> None:
        """Takes back a row that was not final."""
        self._groups.setdefault(row.group_id, {})[row.topic, row.partition] = row

    def running(self) -> Iterator[Assignment]:
        """The rows that have not ended, and those that have and are not settled."""
        for held in self._groups.values():
            yield from held.values()

    def _generation_started(self, at: Place, message: records_pb2.GenerationStarted) -> Iterator[Assignment]:
        held = self._groups.get(message.group_id, {})
        claimed = {one.member_id: claimed_partitions(one, message.protocol_name) for one in message.members}
        self.claimed = sum(map(len, claimed.values()))
        for partition, row in held.items():
            if row.member_id not in claimed:
                row.end(at, "not rejoined")
            elif partition not in claimed[row.member_id]:
                row.end(at, "given up")
        yield from ()

    def _assignment_committed(
        self, at: Place, message: records_pb2.AssignmentCommitted
    ) -> Iterator[Assignment]:
        before = self._groups.get(message.group_id, {})
        given = _given(at.position, message)
        self.moves = _moves(before, given)
        after: dict[TopicPartition, Assignment] = {}
        for partition, (member_id, token) in given.items():
            row = before.get(partition)
            if row is not None and (row.member_id, row.token) == (member_id, token.token):
                row.to_ms = row.ended_by = None
            else:
                row = _row(at, message.group_id, partition, member_id, token, message.generation)
            after[partition] = row
        for partition, row in before.items():
            if after.get(partition) is not row:
                yield row.settle(at, "reassigned")
        self._groups[message.group_id] = after

    def _member_left(
        self, at: Place, message: records_pb2.MemberLeft | incremental_pb2.MemberRemoved
    ) -> Iterator[Assignment]:
        for row in self._groups.get(message.group_id, {}).values():
            if row.member_id == message.member_id:
                row.end(at, cause_in_words(message.cause.kind))
        yield from ()

    def _member_replaced(self, at: Place, message: records_pb2.MemberReplaced) -> Iterator[Assignment]:
        held, member_id = self._groups.get(message.group_id, {}), message.member.member_id
        for partition, row in held.items():
            if row.member_id == message.old_member_id and row.to_ms is None:
                yield row.settle(at, "static replaced")
                held[partition] = _row(
                    at, message.group_id, partition, member_id, at.position, message.generation
                )

    def _converted(self, _: Place, message: incremental_pb2.GroupConverted) -> Iterator[Assignment]:
        """Members have what the last assignment gave them, a join phase that was begun or not."""
        members = {member.member_id for member in message.members}
        for row in self._groups.get(message.group_id, {}).values():
            if row.member_id in members:
                row.to_ms = row.ended_by = None
        yield from ()

    def _reverted(self, _: Place, message: records_pb2.GroupReverted) -> Iterator[Assignment]:
        """What was on its way stays with whoever has it until everybody has joined."""
        for row in self._groups.get(message.group_id, {}).values():
            if row.to_ms is None:
                row.taken_ms = None
        yield from ()

    def _subscribed(self, at: Place, message: incremental_pb2.MemberSubscribed) -> Iterator[Assignment]:
        if message.joined:
            member_id = message.member.member_id
            yield from self._anew(at, message.group_id, member_id, member_id, "rejoined")

    def _instance_moved(self, at: Place, message: incremental_pb2.InstanceMoved) -> Iterator[Assignment]:
        new = message.member.member_id
        if new != message.old_member_id:
            for row in self._held_by(message.group_id, new):
                row.end(at, "static replaced")
        yield from self._anew(at, message.group_id, message.old_member_id, new, "static replaced")

    def _anew(self, at: Place, group_id: str, old: str, new: str, by: str) -> Iterator[Assignment]:
        """What a member may work on is given anew; what it was to give back is free."""
        for row in self._held_by(group_id, old):
            if row.taken_ms is not None:
                row.end(at, by)
                continue
            yield row.settle(at, by)
            partition = row.topic, row.partition
            again = _row(at, group_id, partition, new, at.position, row.generation)
            self._groups[group_id][partition] = again

    def _stepped(self, at: Place, message: incremental_pb2.MemberStepped) -> Iterator[Assignment]:
        held = self._groups.setdefault(message.group_id, {})
        for partition in partitions_of(message.released):
            row = held.get(partition)
            if row is not None and row.member_id == message.member_id:
                row.end(at, "given up")
        for partition in partitions_of(message.taken):
            if partition in held:
                held[partition].taken_ms = at.at_ms
        for partition in partitions_of(message.given):
            if partition in held:
                yield held[partition].settle(at, "reassigned")
            held[partition] = _row(
                at, message.group_id, partition, message.member_id, at.position, message.epoch
            )

    def _went_away(self, at: Place, message: incremental_pb2.MemberWentAway) -> Iterator[Assignment]:
        for row in self._held_by(message.group_id, message.member_id):
            if row.taken_ms is not None:
                row.end(at, "went away")
        yield from ()

    def counts(self, group_id: str) -> dict[str, int]:
        """How many partitions each member of a group was given."""
        counts: dict[str, int] = {}
        for row in self._groups.get(group_id, {}).values():
            counts[row.member_id] = counts.get(row.member_id, 0) + 1
        return counts

    def _held_by(self, group_id: str, member_id: str) -> list[Assignment]:
        rows = self._groups.get(group_id, {}).values()
        return [row for row in rows if row.member_id == member_id and row.to_ms is None]

    def _group_tombstone(self, at: Place, message: records_pb2.GroupTombstone) -> Iterator[Assignment]:
        for row in self._groups.pop(message.group_id, {}).values():
            yield row.settle(at, "group gone")

    def _topics_seen(self, at: Place, message: records_pb2.TopicsSeen) -> Iterator[Assignment]:
        topics = frozenset(message.topics)
        for held in self._groups.values():
            for partition in [partition for partition in held if partition[0] in topics]:
                yield held.pop(partition).settle(at, "topic deleted")


def _row(
    at: Place, group_id: str, partition: TopicPartition, member_id: str, token: Position, generation: int
) -> Assignment:
    return Assignment(
        shard=at.shard,
        epoch=at.position.epoch,
        offset=at.position.offset,
        from_ms=at.at_ms,
        group_id=group_id,
        topic=partition[0],
        partition=partition[1],
        member_id=member_id,
        token=token.token,
        generation=generation,
    )


def claimed_partitions(member: records_pb2.Member, protocol_name: str) -> frozenset[TopicPartition]:
    """The partitions that a member said it never gave up when it joined."""
    for protocol in member.protocols:
        if protocol.name == protocol_name:
            subscription = read_subscription(protocol.metadata)
            if subscription is not None and subscription.keeps_owned:
                return frozenset(partitions_of(subscription.owned_partitions))
    return frozenset()


def _given(
    position: Position, message: records_pb2.AssignmentCommitted
) -> dict[TopicPartition, tuple[str, Position]]:
    """Partition → its owner and its token."""
    given: dict[TopicPartition, tuple[str, Position]] = {}
    for row in message.members:
        kept = {(one.topic, one.partition): Position.from_proto(one.position) for one in row.kept_tokens}
        for partition in partitions_in(row.assignment):
            given[partition] = row.member_id, kept.get(partition, position)
    return given


def _moves(
    before: Mapping[TopicPartition, Assignment], given: Mapping[TopicPartition, tuple[str, Position]]
) -> Moves:
    """How many partitions moved, and the fewest that could have."""
    shares, had, kept = dict[str, int](), dict[str, int](), 0
    for member_id, _ in given.values():
        shares[member_id] = shares.get(member_id, 0) + 1
    for partition, (member_id, _) in given.items():
        row = before.get(partition)
        if row is not None:
            kept += row.member_id == member_id
            if row.member_id in shares:
                had[row.member_id] = had.get(row.member_id, 0) + 1
    return Moves(len(given), len(given) - kept, fewest(shares, had))
