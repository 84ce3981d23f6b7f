"""Logs of any length in which groups do all that records can say, drawn from a seed.

Eager and cooperative groups rebalance for all causes, keep tokens, lose members in the middle of a join
phase, replace static ones, become empty, are deleted; commits are of several partitions; owners hand over or
die. A core replays such a log without a complaint.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

from kit.logs.log_builder import LogBuilder
from kit.logs.log_nodes import empty
from muster_core import cause_kind
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

TOPICS = ("orders", "clicks")
_GONE = (cause_kind.LEFT, cause_kind.SESSION_EXPIRED, cause_kind.DISCONNECTED, cause_kind.ADMIN)
_BEGAN_MS = 1_700_000_000_000

_Partition = tuple[str, int]


@dataclass(slots=True)
class _Group:
    group_id: str
    eager: bool
    generation: int = 0
    members: dict[str, str] = field(default_factory=dict)  # id → static id
    owners: dict[_Partition, tuple[str, Position]] = field(default_factory=dict)
    stable: bool = False


class Pace(NamedTuple):
    """How a log goes on.

    Attributes:
        step_ms: longest time between two records.
        commits: commits that are drawn for each other event.
        groups: groups of a shard.
        partitions: of each topic.
    """

    step_ms: int = 3_600_000
    commits: int = 1
    groups: int = 3
    partitions: int = 3


class DrawnLog:
    """A log that goes on for ever.

    Args:
        seed: of everything that is drawn.
        pace: how it goes on.
    """

    def __init__(self, seed: int, pace: Pace | None = None) -> None:
        self._draw, self._pace = random.Random(seed), pace or Pace()
        self._last, self._now_ms, self._ids = Position(0, 1), _BEGAN_MS, 0
        self._owner = 0
        self._groups = [_Group(f"group-{n}", bool(n % 2)) for n in range(self._pace.groups)]
        self._partitions = [(topic, n) for topic in TOPICS for n in range(self._pace.partitions)]

    def records(self) -> Iterator[tuple[Position, records_pb2.Record]]:
        """What follows the Genesis, each with its place and time."""
        yield from self._claim()
        events = (
            (self._rebalance, 10), (self._leave_in_the_middle, 2), (self._replace, 4), (self._empty, 1),
            (self._delete, 1), (self._expire, 2), (self._change_owner, 1), (self._delete_topic, 1),
            (self._alter_settings, 1),
        )  # fmt: skip
        actions, weights = [action for action, _ in events], [weight for _, weight in events]
        while True:
            for _ in range(self._pace.commits):
                yield from self._commit(self._draw.choice(self._groups))
            (action,) = self._draw.choices(actions, weights)
            yield from action(self._draw.choice(self._groups))

    def _put(self, **kind: Any) -> Iterator[tuple[Position, records_pb2.Record]]:
        self._now_ms += self._draw.randint(1, self._pace.step_ms)
        self._last = self._last.after(1)
        yield self._last, records_pb2.Record(written_at_ms=self._now_ms, **kind)

    def _claim(self) -> Iterator[tuple[Position, records_pb2.Record]]:
        self._owner += 1
        name = f"coordinator-{self._owner % 3}"
        claim = records_pb2.Claim(node_id=name, session=str(self._owner), previous=self._last.to_proto())
        self._last = Position(self._last.epoch + 1, self._last.offset)
        yield from self._put(claim=claim)

    def _change_owner(self, _: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        if self._draw.random() < 0.5:
            name = f"coordinator-{self._owner % 3}"
            yield from self._put(handoff=records_pb2.Handoff(node_id=name))
        yield from self._claim()

    def _generation(
        self, group: _Group, kind: cause_kind.Kind, who: str = ""
    ) -> Iterator[tuple[Position, records_pb2.Record]]:
        group.generation += 1
        group.stable = False
        cause = common_pb2.RebalanceCause(kind=kind, member_id=who, at_ms=self._now_ms)
        started = records_pb2.GenerationStarted(
            group_id=group.group_id, generation=group.generation, protocol_type="consumer", cause=cause
        )
        for member_id, instance in group.members.items():
            member = started.members.add(
                member_id=member_id, group_instance_id=instance, session_timeout_ms=6_000, host="10.0.0.1"
            )
            self._bind(member, group)
            held = [] if group.eager else [p for p, (owner, _) in group.owners.items() if owner == member_id]
            metadata = common_pb2.Subscription(version=1, topics=TOPICS, keeps_owned=not group.eager)
            for topic, number in held:
                metadata.owned_partitions.add(topic=topic, partitions=[number])
            member.protocols.add(name="sticky", metadata=metadata.SerializeToString())
        if group.members:
            started.leader, started.protocol_name = next(iter(group.members)), "sticky"
        else:
            group.owners.clear()
        yield from self._put(generation_started=started)

    def _bind(self, member: records_pb2.Member, group: _Group) -> None:
        """Says whom a member belongs to, by which secret it is known, and which library it uses by now.

        Half of the members belong to somebody.
        """
        name = member.group_instance_id or member.member_id
        if int(name.rpartition("-")[2]) % 2:
            member.secret_hash = sha256(member.member_id.encode()).digest()[:16]
            member.identity = f"team of {name}"
        member.client_version = f"library {group.generation % 3}"

    def _assignment(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        if not group.members:
            return
        position, ids = self._last.after(1), list(group.members)
        before = {} if self._draw.random() < 0.1 else group.owners
        after: dict[_Partition, tuple[str, Position]] = {}
        for partition in self._draw.sample(self._partitions, len(self._partitions)):
            had = before.get(partition)
            if had is not None and had[0] in group.members and self._draw.random() < 0.8:
                after[partition] = had[0], position if group.eager else had[1]
            elif not group.eager and had is not None and had[0] in group.members:
                continue  # given up first, and given to another one by the next assignment
            else:
                after[partition] = self._draw.choice(ids), position
        group.owners, group.stable = after, True
        committed = records_pb2.AssignmentCommitted(
            group_id=group.group_id, generation=group.generation, leader=ids[0]
        )
        for member_id in ids:
            assignment = common_pb2.Assignment(version=1)
            row = committed.members.add(member_id=member_id)
            for (topic, number), (owner, token) in after.items():
                if owner == member_id:
                    assignment.partitions.add(topic=topic, partitions=[number])
                    if token != position:
                        row.kept_tokens.add(topic=topic, partition=number, position=token.to_proto())
            row.assignment = assignment.SerializeToString()
        yield from self._put(assignment_committed=committed)

    def _gone(self, group: _Group, member_id: str) -> Iterator[tuple[Position, records_pb2.Record]]:
        kind = self._draw.choice(_GONE)
        del group.members[member_id]
        cause = common_pb2.RebalanceCause(kind=kind, member_id=member_id, reason="enough", at_ms=self._now_ms)
        left = records_pb2.MemberLeft(
            group_id=group.group_id, generation=group.generation, member_id=member_id, cause=cause
        )
        yield from self._put(member_left=left)

    def _rebalance(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        kind, who = cause_kind.TOPIC_CHANGED, ""
        if group.members and self._draw.random() < 0.4:
            kind, who = cause_kind.LEFT, self._draw.choice(list(group.members))
            yield from self._gone(group, who)
        elif group.members and self._draw.random() < 0.2:
            group.members.pop(self._draw.choice(list(group.members)))  # did not join again
            kind = cause_kind.REBALANCE_TIMEOUT
        if len(group.members) < 4 and self._draw.random() < 0.7:
            self._ids += 1
            kind, who = cause_kind.JOINED, f"member-{self._ids}"
            group.members[who] = f"static-{self._ids}" if self._draw.random() < 0.5 else ""
        yield from self._generation(group, kind, who)
        if self._draw.random() < 0.9:
            yield from self._assignment(group)

    def _leave_in_the_middle(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        if len(group.members) > 1:
            yield from self._generation(group, cause_kind.ADMIN)
            yield from self._gone(group, next(iter(group.members)))
            yield from self._generation(group, cause_kind.LEFT)
            yield from self._assignment(group)

    def _replace(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        static = [member_id for member_id, instance in group.members.items() if instance]
        if not static:
            return
        old = self._draw.choice(static)
        self._ids += 1
        new = f"member-{self._ids}"
        group.members = {new if name == old else name: value for name, value in group.members.items()}
        position = self._last.after(1)
        if group.stable:
            group.owners = {
                partition: (new, position) if owner == old else (owner, token)
                for partition, (owner, token) in group.owners.items()
            }
        else:
            group.owners = {p: had for p, had in group.owners.items() if had[0] != old}
        member = records_pb2.Member(
            member_id=new, group_instance_id=group.members[new], session_timeout_ms=45_000
        )
        member.protocols.add(name="sticky", metadata=common_pb2.Subscription(version=1).SerializeToString())
        self._bind(member, group)
        replaced = records_pb2.MemberReplaced(
            group_id=group.group_id, generation=group.generation, old_member_id=old, member=member
        )
        yield from self._put(member_replaced=replaced)

    def _empty(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        for member_id in list(group.members):
            yield from self._gone(group, member_id)
        yield from self._generation(group, cause_kind.LEFT)

    def _delete(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        if group.generation:
            yield from self._empty(group)
            gone = records_pb2.GroupTombstone(
                group_id=group.group_id, last_generation=group.generation, reason="deleted"
            )
            group.generation, group.stable = 0, False
            yield from self._put(group_tombstone=gone)

    def _alter_settings(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        altered = records_pb2.GroupSettingsAltered(group_id=group.group_id)
        if self._draw.random() < 0.7:  # else nothing is set any more
            altered.settings.convert = self._draw.choice(["never", "auto"])
            altered.settings.hold = self._draw.random() < 0.5
            altered.settings.session_timeout_ms = self._draw.randint(6_000, 60_000)
        yield from self._put(group_settings_altered=altered, critical=True)

    def _expire(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        gone = records_pb2.OffsetTombstone(group_id=group.group_id, reason="expired")
        gone.topics.add(topic=TOPICS[0], partitions=[0, 2])
        yield from self._put(offset_tombstone=gone)

    def _delete_topic(self, _: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        for group in self._groups:
            group.owners = {p: had for p, had in group.owners.items() if p[0] != TOPICS[1]}
        seen = records_pb2.TopicsSeen(catalog_offset=self._last.offset, topics=[TOPICS[1]])
        yield from self._put(topics_seen=seen)

    def _commit(self, group: _Group) -> Iterator[tuple[Position, records_pb2.Record]]:
        member_id = next(iter(group.members), "")
        commit = records_pb2.OffsetCommitted(
            group_id=group.group_id,
            generation=group.generation if member_id else -1,
            member_id=member_id,
            member_seq=self._last.offset,
        )
        for topic, number in self._partitions[: self._draw.choice((1, 1, 1, 3))]:
            commit.offsets.add(
                topic=topic, partition=number, offset=self._last.offset, leader_epoch=-1, metadata=""
            )
        yield from self._put(offset_committed=commit)


def drawn(seed: int, count: int, shard: int = 0, shard_count: int = 1) -> LogBuilder:
    """The first entries of such a log."""
    built = empty(shard, shard_count)
    built.genesis()
    for position, record in islice(DrawnLog(seed).records(), count):
        built.now_ms = record.written_at_ms - 100  # which it adds
        built.add(record, epoch=position.epoch)
    return built


def parts(built: LogBuilder, cuts: Sequence[int]) -> Iterator[LogBuilder]:
    """A log in parts that follow each other: up to each place, then to the end."""
    for begin, end in zip((0, *cuts), (*cuts, len(built.entries)), strict=True):
        part = LogBuilder(built.entries[begin:end], shard=built.shard, shard_count=built.shard_count)
        yield part
