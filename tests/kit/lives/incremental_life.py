"""Random lives of an incremental group on a core shard, drawn from a seed.

Audits, tables and damages are tried on their logs.

Members that name their joins and such that do not, static ones and dynamic, come, go, leave for a while,
take places over, give back in parts or too late, and commit; topics grow; classic members meet the group
when it is empty; owners are suspended, die and load. The log breaks no promise, whatever the seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kit.lives.incremental_shard import (
    AWAY,
    GROUP,
    JOIN,
    LEAVE,
    NumberedMember,
    held_in,
    incremental_shard,
    tell_partitions,
)
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.log_builder import LogBuilder
from kit.logs.log_nodes import empty
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

CONFIG = GroupConfig(
    min_session_timeout_ms=50,
    initial_rebalance_delay_ms=50,
    max_size=6,
    offsets_retention_ms=200_000,
    retention_check_interval_ms=60_000,
    history_length=4,
    history_moves=2,
)
LENGTH = 250
_MOST_PARTITIONS = 9
_ASSIGNMENT = common_pb2.Assignment(
    version=1, partitions=[common_pb2.TopicPartitions(topic="t", partitions=[0, 1, 2])]
).SerializeToString()
_SUBSCRIPTION = common_pb2.Subscription(version=1, topics=["t"]).SerializeToString()


@dataclass
class _PlainMember:
    """A member that names no join: it is judged by its epochs."""

    member_id: str
    instance: str = ""
    epoch: int = 0
    owned: set[TopicPartition] = field(default_factory=set)

    def request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            group_instance_id=self.instance or None,
        )

    def joining(self, topics: list[str]) -> ConsumerGroupHeartbeatRequest:
        request = self.request(JOIN)
        request.topics.names.extend(topics)
        request.rebalance_timeout_ms = 20_000
        request.owned.SetInParent()
        return request

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if not answer.error_code:
            self.epoch = max(answer.member_epoch, 0)
            if answer.HasField("assignment"):
                self.owned = set(held_in(answer))


class IncrementalLife:
    """A shard with one group and its callers.

    Args:
        seed: of all draws.

    Attributes:
        cluster: the shard, with its log.
        steps: what happened, for people.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.steps: list[str] = []
        self._partitions = 3
        self.cluster = incremental_shard(self._partitions, config=CONFIG)
        self._numbered = [
            NumberedMember(self.cluster, f"m{n}", instance=f"s{n}" if n % 2 else "") for n in range(4)
        ]
        self._numbered.append(NumberedMember(self.cluster, "m4", instance="s1"))  # for the place of another
        self._plain = [_PlainMember(f"k{n}", f"p{n % 2}" if n else "") for n in range(4)]
        self._seqs: dict[str, int] = {}
        self._actions: tuple[tuple[int, Callable[[], None]], ...] = (
            (8, self._join),
            (40, self._beat),
            (8, self._beat_in_part),
            (4, self._leave),
            (4, self._go_away),
            (6, self._plain_join),
            (20, self._plain_beat),
            (4, self._plain_leave),
            (12, self._commit),
            (2, self._commit_from_outside),
            (10, self._time_passes),
            (1, self._long_time_passes),
            (2, self._topic_grows),
            (2, self._another_owner),
            (1, self._outage),
            (2, self._classic),
            (1, self._all_leave),
        )

    def play(self, length: int = LENGTH) -> "IncrementalLife":
        """Lets so many things happen."""
        weights = [weight for weight, _ in self._actions]
        for _ in range(length):
            (_, act) = self._draw.choices(self._actions, weights)[0]
            self.steps.append(act.__name__)
            act()
            self.cluster.advance(self._draw.choice([0, 10, 100, 1_000]))
        return self

    def _ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        answer = self.cluster.ask(request)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def _of_group(self) -> IncrementalGroup | None:
        group = self.cluster.shard.groups.get(GROUP)
        return None if group is None else group.incremental

    # --- members that name their joins

    def _join(self) -> None:
        member = self._draw.choice(self._numbered)
        answer = member.join(again=member.seq > 0 and self._draw.random() < 0.2)
        if answer.error_code == error_code.UNRELEASED_INSTANCE_ID and self._draw.random() < 0.7:
            member.join(again=True, replaces=Position.from_proto(answer.holder))

    def _beat(self) -> None:
        """Says what it works on; drops its place where it is refused."""
        member = self._draw.choice(self._numbered)
        if member.seq:
            answer = member.beat(self._draw.choice([member.owned, member.owned, None]))
            if answer.error_code and self._draw.random() < 0.5:
                member.join()

    def _beat_in_part(self) -> None:
        """It has not stopped all of what was taken yet, or its list is from before."""
        group, member = self._of_group(), self._draw.choice(self._numbered)
        held = None if group is None else group.members.get(member.member_id)
        if held is not None and member.seq:
            version = member.version
            if self._draw.random() < 0.2:
                member.version = NOWHERE
            member.beat(sorted(held.held)[:: self._draw.choice([1, 2, 3])])
            member.version = max(member.version, version)

    def _leave(self) -> None:
        self._draw.choice(self._numbered).leave(LEAVE)

    def _go_away(self) -> None:
        if self._draw.random() < 0.5:
            self._draw.choice([member for member in self._numbered if member.instance]).leave(AWAY)
        else:
            self._ask(self._draw.choice(self._plain[1:]).request(AWAY))

    # --- members that do not

    def _plain_join(self) -> None:
        member = self._draw.choice(self._plain)
        answer = self._ask(member.joining(self._draw.choice([["t"], ["t"], ["t", "unknown"], []])))
        member.hear(answer)

    def _plain_beat(self) -> None:
        member = self._draw.choice(self._plain)
        request = member.request(max(member.epoch, 1))
        if self._draw.random() < 0.8:
            request.owned.SetInParent()
            kept = {p for p in member.owned if self._draw.random() < 0.9}
            request.owned.topics.extend(by_topic(kept))
        if self._draw.random() < 0.1:
            request.topics.names.extend(["t"])
        member.hear(self._ask(request))

    def _plain_leave(self) -> None:
        member = self._draw.choice(self._plain)
        self._ask(member.request(LEAVE))

    # --- offsets

    def _commit(self) -> None:
        group = self._of_group()
        if group is None or not group.members:
            return
        member = group.members[self._draw.choice(sorted(group.members))]
        if member.is_away:
            return
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=GROUP, member_id=member.member_id, member_epoch=member.epoch
        )
        if member.told.is_numbered:
            request.member_seq = member.commit_seq + 1
        if member.told.group_instance_id:
            request.group_instance_id = member.told.group_instance_id
        for _, number in sorted(member.assigned)[:2] or [("t", 0)]:
            request.topics.add(name="t").partitions.add(partition=number, offset=self.cluster.now_ms)
        self.cluster.ask(request)

    def _commit_from_outside(self) -> None:
        request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=-1)
        request.topics.add(name="t").partitions.add(partition=0, offset=1)
        self.cluster.ask(request)

    # --- the world

    def _time_passes(self) -> None:
        self.cluster.advance(self._draw.choice([3_000, 10_000, 21_000]))

    def _long_time_passes(self) -> None:
        self.cluster.advance(self._draw.choice([46_000, 300_000]))

    def _topic_grows(self) -> None:
        if self._partitions < _MOST_PARTITIONS:
            self._partitions += 1
            tell_partitions(self.cluster, self._partitions)

    def _another_owner(self) -> None:
        before = self.cluster
        self.cluster = incremental_shard(self._partitions, before.log, CONFIG, now_ms=before.now_ms)
        for member in self._numbered:
            member.cluster = self.cluster

    def _outage(self) -> None:
        self.cluster.suspend()
        self.cluster.advance(self._draw.choice([1_000, 60_000]))
        self.cluster.resume()

    def _classic(self) -> None:
        """A classic member comes; it is refused unless the group is empty. It goes after a while."""
        member = VirtualMember(self.cluster, "classic")
        member.protocols = [("range", _SUBSCRIPTION)]
        member.join()
        self.cluster.advance(CONFIG.initial_rebalance_delay_ms)
        if member.joined().error_code:
            return
        member.sync({member.member_id: _ASSIGNMENT}).synced()
        member.commit(self.cluster.now_ms)
        if self._draw.random() < 0.7:
            member.leave()
        else:
            self.cluster.advance(11_000)
        if self._draw.random() < 0.3:
            self.cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP]))

    def _all_leave(self) -> None:
        for member in self._numbered:
            member.leave(LEAVE)
        for plain in self._plain:
            self._ask(plain.request(LEAVE))
        if self._draw.random() < 0.5:
            self.cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP]))
        else:
            self._classic()


def as_log(cluster: VirtualShard, shard: int = 0, shard_count: int = 1) -> LogBuilder:
    """The log of a shard that lived alone, with its Genesis and whole claims."""
    built = empty(shard, shard_count)
    built.genesis()
    for position, record in cluster.log:
        stored = records_pb2.Record()
        stored.CopyFrom(record)
        if record.HasField("claim"):
            stored.claim.node_id, stored.claim.session = f"coordinator-{position.epoch}", "session"
            stored.claim.previous.CopyFrom(built.end.to_proto())
        built.now_ms = (record.written_at_ms or built.now_ms) - 100
        built.add(stored, epoch=position.epoch)
        assert built.end == position
    return built
