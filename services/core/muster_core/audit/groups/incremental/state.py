"""What the records so far say of one incremental group."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.rollout import Hold
from muster_core.position import NOWHERE, Position


class Since(NamedTuple):
    """Since when a member has a partition.

    Attributes:
        token: record that gave it.
        taken: record that took it; nowhere: none did.
    """

    token: Position
    taken: Position = NOWHERE


@dataclass(slots=True)
class MemberState:
    """What is known of one member.

    Attributes:
        told: what it said last.
        epoch: to which it was brought; `AWAY`: it left for a while.
        held: what it has, given back or not.
        target: what it should have.
        commit_seq: number of its last commit in this join.
        heard_ms: when it was last heard of; None: not known.
        taken_ms: when something was taken from it last; None: not known.
        shortest_ms: its shortest rebalance time-out since then.
    """

    told: incremental_pb2.IncrementalMember
    epoch: int = 0
    held: dict[TopicPartition, Since] = field(default_factory=dict)
    target: set[TopicPartition] = field(default_factory=set)
    commit_seq: int = 0
    heard_ms: int | None = None
    taken_ms: int | None = None
    shortest_ms: int = 0

    @property
    def is_away(self) -> bool:
        """Whether it left for a while."""
        return self.epoch == AWAY

    @property
    def assigned(self) -> set[TopicPartition]:
        """What it may work on."""
        return {partition for partition, since in self.held.items() if since.taken == NOWHERE}

    @property
    def owes(self) -> bool:
        """Whether it has something to give back."""
        return any(since.taken != NOWHERE for since in self.held.values())


@dataclass(slots=True)
class GroupState:
    """What is known of one group.

    Attributes:
        epoch: its epoch.
        target_epoch: that of its target.
        members: by id.
        owners: who has a partition, given back or not.
        wanted: who should have a partition.
        converted: the record by which it became incremental with members; nowhere: it had none.
        converted_generation: its generation by then.
        renewed: topics that were deleted, with the record of that; what was given before is gone.
        hold: what holds its moves back, or did.
        expressions: expressions of topics → what each matches.
    """

    epoch: int
    target_epoch: int = 0
    members: dict[str, MemberState] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    wanted: dict[TopicPartition, str] = field(default_factory=dict)
    renewed: dict[str, Position] = field(default_factory=dict)
    converted: Position = NOWHERE
    converted_generation: int = 0
    hold: Hold | None = None
    expressions: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, group: IncrementalGroup) -> "GroupState":
        """What a snapshot says of a group."""
        state = cls(group.epoch, group.target_epoch, renewed=dict(group.renewed))
        state.converted, state.converted_generation = group.converted, group.converted_generation
        state.hold, state.expressions = group.hold, dict(group.expressions)
        for member_id, member in group.members.items():
            state.members[member_id] = MemberState(
                member.told.to_record(),
                member.epoch,
                {partition: Since(*held) for partition, held in member.held.items()},
                set(member.target),
                member.commit_seq,
            )
            state.owners.update(dict.fromkeys(member.held, member_id))
            state.wanted.update(dict.fromkeys(member.target, member_id))
        return state

    def derived_epoch(self, member: MemberState) -> int:
        """The epoch of a member on a session: the target's while it has nothing to give back (INC-19)."""
        if not member.told.on_session or member.is_away or member.owes:
            return member.epoch
        has_more = not member.held.keys() <= member.target
        if has_more or any(self.is_stale(member, partition) for partition in member.held):
            return member.epoch
        return self.target_epoch

    def wants(self, member: MemberState, topic: str) -> bool:
        """Whether a member subscribes to a topic, by its name or by an expression."""
        told = member.told
        return topic in told.topics or topic in self.expressions.get(told.topic_regex, ())

    def renew(self, topics: Collection[str], position: Position) -> None:
        """Topics were deleted: who has something of them keeps the epoch that it has had (INC-19, INC-50)."""
        for member in self.members.values():
            if any(topic in topics for topic, _ in member.held):
                member.epoch = self.derived_epoch(member)
        self.renewed.update(dict.fromkeys(topics, position))

    def is_stale(self, member: MemberState, partition: TopicPartition) -> bool:
        """Whether a member has a partition of a topic that was deleted since (INC-50)."""
        since = member.held.get(partition)
        return since is not None and since.token < self.renewed.get(partition[0], NOWHERE)

    def give(self, member_id: str, partition: TopicPartition, position: Position) -> None:
        """A member has a partition from this record on, whoever had it."""
        self.free(partition)
        self.owners[partition] = member_id
        self.members[member_id].held[partition] = Since(position)

    def free(self, partition: TopicPartition) -> None:
        """Nobody has a partition any more."""
        owner = self.owners.pop(partition, None)
        if owner is not None:
            del self.members[owner].held[partition]

    def free_what_was_taken(self, member: MemberState) -> None:
        """What a member was to give back is free."""
        for partition in member.held.keys() - member.assigned:
            self.free(partition)

    def remove(self, member_id: str) -> MemberState | None:
        """Takes a member out, with all that it has; None: there is none."""
        member = self.members.get(member_id)
        if member is not None:
            for partition in [*member.held]:
                self.free(partition)
            for partition in member.target:
                self.wanted.pop(partition, None)
            del self.members[member_id]
        return member

    def difference(self, group: IncrementalGroup) -> str:
        """Who has other partitions or tokens in a snapshot than by the records; empty: nobody."""
        held = {
            member_id: {partition: Since(*since) for partition, since in member.held.items()}
            for member_id, member in group.members.items()
        }
        mine = {member_id: member.held for member_id, member in self.members.items()}
        return min(
            (name for name in held.keys() | mine.keys() if held.get(name) != mine.get(name)), default=""
        )
