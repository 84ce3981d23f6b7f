"""Members of incremental groups on a core shard in virtual time."""

from collections.abc import Iterable, Mapping

from kit.lives.server_assignors import SERVER_ASSIGNORS
from kit.lives.virtual_shard import VirtualShard
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import TopicsChanged
from muster_core.features import ALL_FEATURES
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import Partitions, TopicPartition, by_topic
from muster_core.incremental.targets.target import ServerAssignor
from muster_core.position import NOWHERE, Position
from muster_core.protocol.room import Room
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

FEATURES = ALL_FEATURES
JOIN, LEAVE, AWAY = 0, -1, -2
GROUP = "g"


def incremental_shard(
    partitions: int = 4,
    records: list[tuple[Position, records_pb2.Record]] | None = None,
    config: GroupConfig | None = None,
    assignors: Mapping[str, ServerAssignor] = SERVER_ASSIGNORS,
    now_ms: int = 10_000,
) -> VirtualShard:
    """A shard that serves incremental groups, with topic `t`; they never pause, unless `config` says so."""
    config = config or GroupConfig(incremental_assignment_interval_ms=0)
    cluster = VirtualShard(config, records, FEATURES, now_ms=now_ms, room=Room(assignors=assignors))
    tell_partitions(cluster, partitions, frozenset())
    return cluster


def tell_partitions(
    cluster: VirtualShard, partitions: int, changed: frozenset[str] = frozenset({"t"})
) -> None:
    """Topic `t` has so many partitions from now on; after a load nobody says what changed."""
    catalog = Catalog(2 + partitions, {"t": partitions}, {}, {"t": 2})
    cluster.feed(TopicsChanged(changed, catalog=catalog))


def incremental_of(cluster: VirtualShard, group_id: str = GROUP) -> IncrementalGroup:
    """The group as the shard has it."""
    group = cluster.shard.groups[group_id].incremental
    assert group is not None
    return group


def held_in(answer: ConsumerGroupHeartbeatResponse) -> dict[TopicPartition, Position]:
    """The list of an answer, with its tokens."""
    return {
        (given.topic, number): Position.from_proto(given.token)
        for given in answer.assignment.given
        for number in given.partitions
    }


class NumberedMember:
    """A member whose requests name its join and what it has heard.

    Attributes:
        owned: what it works on, with tokens.
        version: newest record that it has heard of.
        epoch: as it was told last.
        seq: number of its join.
        session_ms: session time-out that it asks for when it joins; 0: none.
        grace_ms: disconnect grace, likewise.
        classic_protocols: what it says then that it can use in a classic group; nothing: it cannot be in one.
        weight: weight that it says when it joins; 0: none.
        client_version: library that it says it is when it joins.
        rollout_hold_ms: for how long its joins hold moves back; 0: not.
        rack_id: where it runs; empty: it does not say.
        topics: what it subscribes to.
    """

    def __init__(
        self, cluster: VirtualShard, member_id: str, *, instance: str = "", process: str = ""
    ) -> None:
        self.cluster = cluster
        self.member_id = member_id
        self.instance = instance
        self.process_id = (process or member_id).encode().ljust(16, b".")
        self.seq = 0
        self.epoch = 0
        self.version = NOWHERE
        self.owned: dict[TopicPartition, Position] = {}
        self.session_ms = self.grace_ms = self.weight = self.rollout_hold_ms = 0
        self.classic_protocols: list[str] = []
        self.rack_id = self.client_version = ""
        self.topics = ["t"]

    def request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        """A request with what it must have; version and list are the caller's."""
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            group_instance_id=self.instance or None,
            member_seq=self.seq,
            process_id=self.process_id,
            version=self.version.to_proto(),
        )

    def join(self, *, again: bool = False, replaces: Position = NOWHERE) -> ConsumerGroupHeartbeatResponse:
        """Joins under a new number, or makes its last join again."""
        if not again:
            self.seq, self.version, self.owned = self.seq + 1, NOWHERE, {}
        request = self.request(JOIN)
        request.topics.names.extend(self.topics)
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
        request.replaces.CopyFrom(replaces.to_proto())
        request.session_timeout_ms, request.disconnect_grace_ms = self.session_ms, self.grace_ms
        request.can_be_classic = bool(self.classic_protocols)
        request.classic_protocols.extend(self.classic_protocols)
        request.weight, request.rollout_hold_ms = self.weight, self.rollout_hold_ms
        request.client_version = self.client_version
        if self.rack_id:
            request.rack_id = self.rack_id
        return self.hear(self.ask(request))

    def beat(self, owned: Iterable[TopicPartition] | None = None) -> ConsumerGroupHeartbeatResponse:
        """Says that it lives, and which partitions it works on; None: it does not say."""
        request = self.request(self.epoch)
        if owned is not None:
            request.owned.SetInParent()
            request.owned.topics.extend(by_topic(owned))
        return self.hear(self.ask(request))

    def leave(self, epoch: int = LEAVE, reason: str = "") -> ConsumerGroupHeartbeatResponse:
        """Leaves, for good or for a while."""
        request = self.request(epoch)
        request.leave_reason = reason
        return self.ask(request)

    def ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Makes a call."""
        answer = self.cluster.ask(request)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        """Does what an answer says: stops what is not in its list, and works on what is."""
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.HasField("assignment"):
                self.version, self.owned = Position.from_proto(answer.version), held_in(answer)
        return answer

    @property
    def has(self) -> Partitions:
        """What it works on."""
        return frozenset(self.owned)


def joined(cluster: VirtualShard, *names: str) -> list[NumberedMember]:
    """Members that have all their shares."""
    members = [NumberedMember(cluster, name) for name in names]
    for member in members:
        assert not member.join().error_code
        settle(*members)
    return members


def settle(*members: NumberedMember) -> None:
    """Lets members send heartbeats until nothing moves any more."""
    for _ in range(3 * len(members) + 3):
        for member in members:
            if member.seq:
                member.beat(member.owned)
