"""Logs made by hand, healthy or damaged."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, product
from typing import Any

from muster_core import cause_kind
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.log.page import Page
from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position
from muster_core.protocol.generations import causes
from muster_core.sharding import shard_of
from muster_core.state.members.member import Member
from muster_core.state.members.terms import Terms
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

_LETTERS = "".join(map(chr, range(64, 96)))  # a full round of 31, by which Java multiplies


@dataclass
class LogBuilder:
    """Writes a log as an owner does; `change` entries afterwards to damage it.

    Each record is written 100 ms after the one before; members have a session of 6 s.
    """

    entries: list[Entry] = field(default_factory=list)
    epoch: int = 0
    shard: int = 3
    shard_count: int = 50
    cluster_id: str = "c"
    now_ms: int = 1_700_000_000_000
    metadata: bytes = common_pb2.Subscription(version=1, topics=["t"]).SerializeToString()

    @property
    def end(self) -> Position:
        return self.entries[-1].position if self.entries else NOWHERE

    @cached_property
    def group(self) -> str:
        """The group that the records are of: `g`, or a longer name, so that it belongs to the shard."""
        return self.named("g")

    def named(self, name: str) -> str:
        """A group id of the shard that begins with a name."""
        endings = ("".join(letters) for length in count() for letters in product(_LETTERS, repeat=length))
        names = (name + ending for ending in endings)
        return next(one for one in names if shard_of(one, self.shard_count) == self.shard)

    def add(
        self,
        record: records_pb2.Record | bytes,
        *,
        epoch: int | None = None,
        skip: int = 0,
        nonce: int = 0,
        nonce_bytes: int = 16,
    ) -> None:
        position = Position(self.epoch if epoch is None else epoch, self.end.offset + 1 + skip)
        self.now_ms += 100
        if isinstance(record, records_pb2.Record):
            record.written_at_ms = self.now_ms
        data = record if isinstance(record, bytes) else record.SerializeToString()
        word = (nonce or position.offset + 1000).to_bytes(nonce_bytes, "big")
        before = self.entries[-1].hash if self.entries else BEFORE_GENESIS
        self.entries.append(Entry(position, data, word, chain_hash(before, position, word, data)))

    def genesis(self) -> None:
        genesis = records_pb2.Genesis(
            cluster_id=self.cluster_id, shard_count=self.shard_count, shard=self.shard
        )
        self.add(records_pb2.Record(genesis=genesis))

    def claim(
        self, node: str = "coordinator-1", previous: Position | None = None, epoch: int | None = None
    ) -> None:
        before = self.end if previous is None else previous
        self.epoch = self.epoch + 1 if epoch is None else epoch
        claim = records_pb2.Claim(node_id=node, session=f"session of {node}", previous=before.to_proto())
        self.add(records_pb2.Record(claim=claim))

    def generation(
        self,
        number: int,
        *members: str,
        leader: str = "",
        protocol: str = "range",
        cause: common_pb2.RebalanceCause | None = None,
        metadata: dict[str, bytes] | None = None,
    ) -> None:
        record = records_pb2.Record()
        started = record.generation_started
        started.group_id, started.generation, started.protocol_type = self.group, number, "consumer"
        started.leader = leader or (members[0] if members else "")
        started.protocol_name = protocol if members else ""
        for member in members:
            name, _, static = member.partition("=")
            row = started.members.add(
                member_id=name, group_instance_id=static, session_timeout_ms=6_000, disconnect_grace_ms=3_000
            )
            row.protocols.add(name="range", metadata=(metadata or {}).get(name, self.metadata))
        if members:
            started.leader = leader or members[0].partition("=")[0]
        joined = common_pb2.RebalanceCause(kind=cause_kind.JOINED, member_id=started.leader)
        started.cause.CopyFrom(joined if cause is None else cause)
        self.add(record)

    def assignment(self, number: int, leader: str = "a", **partitions: list[int]) -> None:
        record = records_pb2.Record()
        committed = record.assignment_committed
        committed.group_id, committed.generation, committed.leader = self.group, number, leader
        for member, owned in partitions.items():
            message = common_pb2.Assignment(version=1)
            message.partitions.add(topic="t", partitions=owned)
            committed.members.add(member_id=member, assignment=message.SerializeToString())
        self.add(record)

    def keep(self, number: int, member: str, partition: int, since: Position, leader: str = "a") -> None:
        record = records_pb2.Record()
        committed = record.assignment_committed
        committed.group_id, committed.generation, committed.leader = self.group, number, leader
        message = common_pb2.Assignment(version=1)
        message.partitions.add(topic="t", partitions=[partition])
        row = committed.members.add(member_id=member, assignment=message.SerializeToString())
        row.kept_tokens.add(topic="t", partition=partition, position=since.to_proto())
        self.add(record)

    def left(
        self,
        number: int,
        member: str,
        kind: common_pb2.RebalanceCauseKind.ValueType = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT,
        session_timeout_ms: int = 6_000,
    ) -> None:
        left = records_pb2.MemberLeft(group_id=self.group, generation=number, member_id=member)
        known = Member(member)
        known.terms = Terms(session_timeout_ms=session_timeout_ms)
        cause = causes.by_member(kind, known, self.now_ms)
        left.cause.CopyFrom(cause)
        self.add(records_pb2.Record(member_left=left))

    def replaced(self, number: int, old: str, new: str, static: str, protocol: str = "range") -> None:
        member = records_pb2.Member(member_id=new, group_instance_id=static, session_timeout_ms=6_000)
        if protocol:
            member.protocols.add(name=protocol, metadata=self.metadata)
        message = records_pb2.MemberReplaced(
            group_id=self.group, generation=number, old_member_id=old, member=member
        )
        self.add(records_pb2.Record(member_replaced=message))

    def commit(self, number: int, member: str, seq: int = 0, metadata: str = "") -> None:
        message = records_pb2.OffsetCommitted(
            group_id=self.group, generation=number, member_id=member, member_seq=seq
        )
        message.offsets.add(topic="t", partition=0, offset=seq, leader_epoch=-1, metadata=metadata)
        self.add(records_pb2.Record(offset_committed=message))

    def tombstone(self, last_generation: int) -> None:
        gone = records_pb2.GroupTombstone(
            group_id=self.group, reason="deleted", last_generation=last_generation
        )
        self.add(records_pb2.Record(group_tombstone=gone))

    def expire(self, topic: str = "t") -> None:
        gone = records_pb2.OffsetTombstone(group_id=self.group, reason="expired")
        gone.topics.add(topic=topic, partitions=[0])
        self.add(records_pb2.Record(offset_tombstone=gone))

    def snapshot(self, upto: Position) -> None:
        entry = next(entry for entry in self.entries if entry.position == upto)
        marker = records_pb2.Snapshot(upto=upto.to_proto(), hash=entry.hash)
        self.add(records_pb2.Record(snapshot=marker))

    def handoff(self, node: str = "coordinator-1") -> None:
        self.add(records_pb2.Record(handoff=records_pb2.Handoff(node_id=node)))

    def change(self, index: int, **values: Any) -> None:
        self.entries[index] = self.entries[index]._replace(**values)


def healthy(built: LogBuilder | None = None) -> LogBuilder:
    """Two owners, a static take-over, a silent member, kept partitions, commits, expiry, a deletion.

    Args:
        built: an empty log to write to; absent: a new one.
    """
    built = LogBuilder() if built is None else built
    built.genesis()
    built.claim()
    built.commit(-1, "")
    built.generation(1, "a", "b=static")
    built.assignment(1, a=[0, 1], b=[2])
    built.commit(1, "a", 1)
    built.commit(1, "b", 1)
    given = Position(1, 5)
    built.replaced(1, "b", "c", "static")
    built.commit(1, "c", 1)
    built.handoff()
    built.claim("coordinator-2")
    built.commit(1, "a", 2)
    built.commit(1, "c", 2)
    built.now_ms += 10_000
    built.left(1, "c", common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED)
    built.generation(2, "a")
    built.keep(2, "a", 0, given)
    built.expire("another topic")
    built.left(2, "a")
    built.generation(3)
    built.expire()
    built.tombstone(3)
    built.generation(1, "z")
    return built


def with_a_nonce_twice(built: LogBuilder) -> LogBuilder:
    """Makes an empty log one of 902 entries; returns another one, whose last entry has an earlier nonce."""
    built.genesis()
    built.claim()
    for _ in range(900):
        built.commit(-1, "")
    repeated = replace(built, entries=built.entries[:-1])
    repeated.add(built.entries[-1].record, nonce=1_500)
    return repeated


def page_of(entries: Iterable[Entry]) -> Page:
    """A page of entries, which need not follow each other."""
    listed = list(entries)
    return Page(
        listed[0].position if listed else NOWHERE,
        [entry.record for entry in listed],
        [entry.nonce for entry in listed],
        [entry.hash for entry in listed],
        [entry.position for entry in listed],
    )
