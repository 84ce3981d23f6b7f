"""A member of an incremental group, as the log has it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core.incremental.candidate import Candidate
from muster_core.incremental.partitions import NONE, Partitions, TopicPartition
from muster_core.position import NOWHERE, Position

AWAY = -2
"""Epoch of a static member that left for a while."""

NO_EPOCH = -1
"""Previous epoch of a member that no step was made for."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a member said of itself.

    Attributes:
        member_id: its id.
        group_instance_id: its static id; empty: dynamic.
        rack_id: where it runs; empty: not known.
        client_id: its client id.
        host: its address.
        rebalance_timeout_ms: how long it may take to give partitions back.
        topics: what it subscribes to by name.
        topic_regex: what it subscribes to by an expression; empty: nothing.
        server_assignor: what it prefers; empty: nothing.
        member_seq: number of its join; 0: none.
        process_id: process that joined; empty: not known.
        secret_hash: of its secret; empty: it has none, or secrets do not count.
        identity: whom it belongs to; empty: nobody.
        on_session: it came by a session stream under this join, and is a stream member since, on one or not.
        classic_session_ms: session of its join of the classic group, while it was not heard of as a member of
            the incremental one; 0: it was, or it joined that.
        can_be_classic: whether it said so.
        session_timeout_ms: how long it asked to live in silence when it joined; 0: as the shard says.
        disconnect_grace_ms: the same, when its stream broke.
        weight: how much it can do beside the others, from 1.
        client_version: library that it uses, with its version, for people; empty: it did not say.
        classic_protocols: what it can use in a classic group, by name; nothing: it did not say.
    """

    member_id: str
    group_instance_id: str = ""
    rack_id: str = ""
    client_id: str = ""
    host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()
    topic_regex: str = ""
    server_assignor: str = ""
    member_seq: int = 0
    process_id: bytes = b""
    secret_hash: bytes = b""
    identity: str = ""
    on_session: bool = False
    classic_session_ms: int = 0
    can_be_classic: bool = False
    session_timeout_ms: int = 0
    disconnect_grace_ms: int = 0
    weight: int = 1
    client_version: str = ""
    classic_protocols: frozenset[str] = frozenset()

    @property
    def is_numbered(self) -> bool:
        """Whether it names its joins and what it has heard (docs/safety.md, INC-05)."""
        return self.member_seq > 0

    def is_same_join(self, other: "Told") -> bool:
        """Whether both are of one join of one process."""
        return (self.member_seq, self.process_id) == (other.member_seq, other.process_id)

    def is_join(self, member_seq: int, process_id: bytes) -> bool:
        """Whether a request of this process and number belongs to this join.

        The log may not know the last number of one that was converted: until it is heard of, a higher one is
        that of a classic join which was not stored any more (docs/safety.md, INC-74).
        """
        follows = self.classic_session_ms > 0 and member_seq > self.member_seq
        return process_id == self.process_id and (member_seq == self.member_seq or follows)

    def to_record(self) -> incremental_pb2.IncrementalMember:
        """This as a part of a record."""
        return incremental_pb2.IncrementalMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            host=self.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=sorted(self.topics),
            topic_regex=self.topic_regex,
            server_assignor=self.server_assignor,
            member_seq=self.member_seq,
            process_id=self.process_id,
            secret_hash=self.secret_hash,
            identity=self.identity,
            on_session=self.on_session,
            classic_session_ms=self.classic_session_ms,
            can_be_classic=self.can_be_classic,
            session_timeout_ms=self.session_timeout_ms,
            disconnect_grace_ms=self.disconnect_grace_ms,
            weight=self.weight if self.weight > 1 else 0,
            client_version=self.client_version,
            classic_protocols=sorted(self.classic_protocols),
        )

    @classmethod
    def of_record(cls, record: incremental_pb2.IncrementalMember) -> "Told":
        """What a record says."""
        return cls(
            record.member_id,
            record.group_instance_id,
            record.rack_id,
            record.client_id,
            record.host,
            record.rebalance_timeout_ms,
            frozenset(record.topics),
            record.topic_regex,
            record.server_assignor,
            record.member_seq,
            record.process_id,
            record.secret_hash,
            record.identity,
            record.on_session,
            record.classic_session_ms,
            record.can_be_classic,
            record.session_timeout_ms,
            record.disconnect_grace_ms,
            record.weight or 1,
            record.client_version,
            frozenset(record.classic_protocols),
        )


class Held(NamedTuple):
    """How a member has a partition.

    Attributes:
        token: record that gave it.
        taken: record that took it away; nowhere: none did, and the member may work on it.
    """

    token: Position
    taken: Position = NOWHERE


@dataclass(frozen=True)
class Member:
    """One member. Never changed: a record puts another one in its place.

    Attributes:
        told: what it said of itself.
        epoch: to which a record brought it; `AWAY`: it left for a while. `IncrementalGroup.epoch_of` is where
            it is.
        previous_epoch: that before the last step; Kafka's rules accept it where an answer may have been lost.
        waits: others still have something of its target.
        joined: record of its join.
        version: record that last changed what it was told.
        held: what it has, given back or not.
        target: what it should have.
        commit_seq: number of its last acknowledged commit; 0: none.
    """

    told: Told
    epoch: int = 0
    previous_epoch: int = NO_EPOCH
    waits: bool = False
    joined: Position = NOWHERE
    version: Position = NOWHERE
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    target: Partitions = NONE
    commit_seq: int = 0

    @property
    def member_id(self) -> str:
        """Its id."""
        return self.told.member_id

    @property
    def is_away(self) -> bool:
        """Whether it left for a while."""
        return self.epoch == AWAY

    @cached_property
    def candidate(self) -> Candidate:
        """It as an assignor sees it, but for what its expression matches; steps of a member share it."""
        told = self.told
        return Candidate(
            told.member_id, told.group_instance_id, told.rack_id, told.topics, self.target, told.weight
        )

    @cached_property
    def pending(self) -> Partitions:
        """What was taken from it and is not given back."""
        if not self._owes:
            return NONE
        return frozenset([partition for partition, held in self.held.items() if held.taken != NOWHERE])

    @cached_property
    def assigned(self) -> Partitions:
        """What it may work on."""
        if not self._owes:
            return frozenset(self.held)
        return frozenset([partition for partition, held in self.held.items() if held.taken == NOWHERE])

    @cached_property
    def _owes(self) -> bool:
        """Whether something was taken from it."""
        return any(held.taken != NOWHERE for held in self.held_alike)

    @cached_property
    def is_within_target(self) -> bool:
        """Whether it has nothing to give back: nothing was taken from it, and its target takes nothing."""
        return not self.pending and self.assigned <= self.target

    @property
    def held_alike(self) -> Collection[Held]:
        """How it has its partitions, without most repeats: what one record gave has the same `Held`."""
        every = self.held.values()
        return dict(zip(map(id, every), every, strict=True)).values()

    @property
    def has_all(self) -> bool:
        """Whether it may work on just what it should have."""
        return len(self.assigned) == len(self.target) and self.is_within_target

    @property
    def last_taken(self) -> Position:
        """Newest record that took something that it has not given back; nowhere: it owes nothing."""
        return max((held.taken for held in self.held_alike), default=NOWHERE)

    @property
    def on_stream(self) -> bool:
        """Whether it is a stream member, on one now or not."""
        return self.told.on_session

    def is_stale(self, partition: TopicPartition, renewed: Mapping[str, Position]) -> bool:
        """Whether it has a partition of a topic that was deleted since (docs/safety.md, INC-50)."""
        return self.held[partition].token < renewed.get(partition[0], NOWHERE)

    def stale(self, renewed: Mapping[str, Position]) -> Partitions:
        """What it may work on, but for a topic that was deleted since."""
        return frozenset(p for p in self.assigned if self.is_stale(p, renewed)) if renewed else NONE

    def with_told(self, told: Told) -> "Member":
        """This member, after it said something else."""
        made = self._copied()
        made.pop("candidate", None)
        made.update(told=told)
        return _member_of(made)

    def with_commit(self, seq: int) -> "Member":
        """This member after a commit with a number."""
        made = self._copied()
        made.update(commit_seq=seq)
        return _member_of(made)

    def aimed_at(self, target: Partitions, epoch: int) -> "Member":
        """This member with another target, and the epoch that it keeps until a step brings it on."""
        made = self._copied()
        for derived in ("candidate", "is_within_target"):
            made.pop(derived, None)
        made.update(target=target, epoch=epoch)
        return _member_of(made)

    def stepped(
        self, epoch: int, held: Mapping[TopicPartition, Held], version: Position, *, waits: bool
    ) -> "Member":
        """This member after a step towards its target."""
        made = self._copied()
        for derived in ("pending", "assigned", "_owes", "is_within_target"):
            made.pop(derived, None)
        made.update(epoch=epoch, previous_epoch=self.epoch, held=held, version=version, waits=waits)
        return _member_of(made)

    def _copied(self) -> dict[str, object]:
        """All values, with those derived from them.

        `replace` calls the constructor, which takes longer than all else of a step of a large group.
        """
        return dict(self.__dict__)


def _member_of(values: dict[str, object]) -> Member:
    made = object.__new__(Member)
    made.__dict__.update(values)
    return made
