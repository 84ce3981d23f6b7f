"""A core shard in virtual time with a log that acknowledges at once, or when the test says so."""

from collections import deque
from collections.abc import Callable
from typing import Any

from muster_core import error_code
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import (
    Append,
    AppendDone,
    Cancelled,
    Effects,
    Event,
    GroupRequest,
    GroupResponse,
    Push,
    Request,
    Resume,
    StreamPlace,
    Suspend,
    Tick,
    Work,
)
from muster_core.features import ALL_FEATURES, Feature
from muster_core.position import Position
from muster_core.protocol.room import ALONE, Room
from muster_core.record_bounds import RECORD_MAX_BYTES, in_appends
from muster_core.shard import Shard
from muster_core.state.group_state import GroupState
from muster_core.state.quarantine import NOBODY, Quarantine
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2

WALL_MS = 1_700_000_000_000
STATE_NAMES = {state.proto: state.value for state in GroupState}


class VirtualShard:
    """Drives a shard as a driver would.

    Attributes:
        features: what the cluster has enabled; all, where a test does not say.
        now_ms: virtual boot time.
        wall_trusted: what the edge says of the wall clock.
        log: every acknowledged record, in order, with its place.
        answers: answers that nobody has asked for yet, by call id.
        auto_ack: whether appends are acknowledged at once.
        auto_tick: whether a `Tick` that is due at once follows each event: calls wait for no others.
        waiting: appends that were not acknowledged yet.
        pushes: news for session streams, in order.
        works: what does work aside at once; None: the test does it.
        work: work that was not done yet.
        identity: whose calls are made now; empty: nobody's in particular.
        is_operator: whether that identity may put members of others out; None: nobody says who may.
    """

    def __init__(
        self,
        config: GroupConfig | None = None,
        records: list[tuple[Position, records_pb2.Record]] | None = None,
        features: frozenset[Feature] = ALL_FEATURES,
        quarantine: Quarantine = NOBODY,
        now_ms: int = 10_000,
        room: Room = ALONE,
        through: Callable[[Shard, Position], Shard] | None = None,
    ) -> None:
        self.features = features
        self.config = config or GroupConfig()
        self.now_ms = now_ms
        self.wall_trusted = True
        self.log: list[tuple[Position, records_pb2.Record]] = list(records or [])
        self.answers: dict[int, GroupResponse] = {}
        self.answered: set[int] = set()
        self.auto_ack = True
        self.auto_tick = True
        self.waiting: deque[Append] = deque()
        self.appends: list[Append] = []
        self.pushes: list[Push] = []
        self.works: Callable[[Work], Event] | None = None
        self.work: deque[Work] = deque()
        self.identity = ""
        self.is_operator: bool | None = None
        self.deadline_ms: int | None = None
        self.epoch = (self.log[-1][0].epoch if self.log else 0) + 1
        self.shard = Shard(0, self.config, quarantine)
        self.shard.live_in(room)
        self._last_call_id = 0
        self._stores_more = False
        for position, record in self.log:
            self.shard.replay(position, record)
        if through is not None and self.log:
            self.shard = through(self.shard, self.log[-1][0])
            self.shard.live_in(room)
        self.log.append((self._next_position(), records_pb2.Record(claim=records_pb2.Claim())))
        self._carry_out(self.shard.loaded(self.epoch, self.now, self.features))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms, self.wall_trusted)

    def reloaded(self, upto: int | None = None, quarantine: Quarantine = NOBODY) -> "VirtualShard":
        """Another owner's shard after a load of this log, or of its first `upto` records."""
        return VirtualShard(self.config, self.log[:upto], features=self.features, quarantine=quarantine)

    def feed(self, event: Event) -> None:
        self._carry_out(self._play(event))
        if self.auto_tick and self.deadline_ms is not None and self.deadline_ms <= self.now_ms:
            self._carry_out(self._play(Tick()))

    def send(
        self,
        message: GroupRequest,
        host: str = "10.0.0.1",
        draw: str = "",
        place: StreamPlace | None = None,
    ) -> int:
        """Makes a call; returns its id."""
        self._last_call_id += 1
        draw = draw or f"draw-{self.epoch}-{self._last_call_id}"
        self.feed(Request(self._last_call_id, message, host, draw, self.identity, self.is_operator, place))
        return self._last_call_id

    def ask(self, message: GroupRequest) -> GroupResponse:
        """Makes a call that must be answered at once."""
        call_id = self.send(message)
        assert call_id in self.answers, f"parked: {message}"
        return self.answers.pop(call_id)

    def ask_in_turns(self, message: GroupRequest) -> GroupResponse:
        """Makes a call that is answered after pauses for others."""
        call_id, end_ms = self.send(message), self.now_ms + 10_000
        while call_id not in self.answers:
            assert self.now_ms < end_ms, "parked"
            self.advance(1)
        return self.answers.pop(call_id)

    def answer(self, call_id: int) -> GroupResponse:
        """The answer to a call, which must be there."""
        assert call_id in self.answers, "still parked"
        return self.answers.pop(call_id)

    def is_parked(self, call_id: int) -> bool:
        return call_id not in self.answered

    def cancel(self, call_id: int) -> None:
        self.feed(Cancelled(call_id))

    def advance(self, ms: int) -> None:
        """Lets time pass, waking the shard exactly when it asked for it."""
        end_ms = self.now_ms + ms
        while self.deadline_ms is not None and self.deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.deadline_ms)
            self.feed(Tick())
        self.now_ms = end_ms

    def acknowledge(self) -> None:
        """Acknowledges the oldest append that waits."""
        append = self.waiting.popleft()
        self.feed(AppendDone(append.append_id, self._store(append)))

    def land(self, most: int) -> None:
        """Stores the oldest appends that wait, of which this owner of the shard does not hear any more.

        Args:
            most: how many. What is stored together lands together, also where a part of it is acknowledged.
        """
        landed = 0
        while self.waiting and (landed < most or self._stores_more):
            self._store(self.waiting.popleft())
            landed += 1

    def _store(self, append: Append) -> Position:
        position = self._next_position()
        for index, data in enumerate(append.encoded):
            self.log.append((position.after(index), records_pb2.Record.FromString(data)))
        self._stores_more = append.joined
        return position

    def suspend(self) -> None:
        self.feed(Suspend())

    def resume(self) -> None:
        self.feed(Resume())

    def kinds(self) -> list[str]:
        """Kinds of the acknowledged records, without the claims."""
        names = [record.WhichOneof("kind") or "" for _, record in self.log]
        return [name for name in names if name != "claim"]

    def describe(self, group_id: str = "g") -> coordinator_pb2.DescribeGroupsResponse.Group:
        response = self.ask(coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id]))
        assert isinstance(response, coordinator_pb2.DescribeGroupsResponse)
        return response.groups[0]

    def state(self, group_id: str = "g") -> str:
        return STATE_NAMES[self.describe(group_id).state]

    def _next_position(self) -> Position:
        return Position(self.epoch, (self.log[-1][0].offset if self.log else 1) + 1)

    def _play(self, event: Event) -> Effects:
        return self.shard.handle(event, self.now)

    def _carry_out(self, effects: Effects) -> None:
        self.deadline_ms = effects.next_deadline_ms
        self.pushes.extend(effects.pushes)
        for reply in effects.replies:
            assert reply.call_id not in self.answered, f"call {reply.call_id} was answered twice"
            self.answered.add(reply.call_id)
            self.answers[reply.call_id] = reply.message
        for append in effects.appends:
            assert len(list(in_appends(append.records))) == 1, "the log does not take it at a time"
            assert max(record.ByteSize() for record in append.records) <= RECORD_MAX_BYTES
        self.appends.extend(effects.appends)
        self.waiting.extend(effects.appends)
        self.work.extend(effects.work)
        while self.auto_ack and self.waiting:
            self.acknowledge()
        while self.works is not None and self.work:
            self.feed(self.works(self.work.popleft()))


class VirtualMember:
    """A member that remembers what it was told, as a client does."""

    def __init__(self, cluster: VirtualShard, name: str, group: str = "g", instance: str = "") -> None:
        self.cluster = cluster
        self.name = name
        self.group = group
        self.instance = instance
        self.secret = b""
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []
        self.protocols: list[tuple[str, bytes]] = [("range", b"m")]
        self.session_timeout_ms = 10_000
        self.rebalance_timeout_ms = 30_000
        self.call_id = 0

    def join(self, **changes: object) -> "VirtualMember":
        """Sends a join; one without an id takes the id it is told and joins again at once."""
        self.call_id = self.cluster.send(self.join_request(**changes))
        if not self.cluster.is_parked(self.call_id):
            response = self.cluster.answers[self.call_id]
            if (
                isinstance(response, coordinator_pb2.JoinGroupResponse)
                and response.error_code == error_code.MEMBER_ID_REQUIRED
            ):
                self.member_id = response.member_id
                self.cluster.answers.pop(self.call_id)
                self.call_id = self.cluster.send(self.join_request(**changes))
        return self

    def join_request(self, **changes: object) -> coordinator_pb2.JoinGroupRequest:
        request = coordinator_pb2.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type="consumer",
            protocols=[
                coordinator_pb2.GroupProtocol(name=name, metadata=data) for name, data in self.protocols
            ],
            client_id=self.name,
            member_secret=self.secret,
        )
        for field, value in changes.items():
            setattr(request, field, value)
        return request

    @property
    def is_parked(self) -> bool:
        return self.cluster.is_parked(self.call_id)

    def joined(self) -> coordinator_pb2.JoinGroupResponse:
        """Takes the answer to its join, which must be there."""
        response = self.cluster.answer(self.call_id)
        assert isinstance(response, coordinator_pb2.JoinGroupResponse)
        if response.error_code == 0:
            self.member_id, self.generation = response.member_id, response.generation
            self.members = [member.member_id for member in response.members]
        return response

    def sync(self, plan: dict[str, bytes] | None = None) -> "VirtualMember":
        assignments = [
            coordinator_pb2.SyncGroupRequest.Assignment(member_id=key, assignment=value)
            for key, value in (plan or {}).items()
        ]
        self.call_id = self.cluster.send(
            coordinator_pb2.SyncGroupRequest(
                group_id=self.group,
                member_id=self.member_id,
                group_instance_id=self.instance,
                generation=self.generation,
                member_secret=self.secret,
                assignments=assignments,
            )
        )
        return self

    def synced(self) -> coordinator_pb2.SyncGroupResponse:
        response = self.cluster.answer(self.call_id)
        assert isinstance(response, coordinator_pb2.SyncGroupResponse)
        return response

    def heartbeat(self) -> int:
        response = self.cluster.ask(
            coordinator_pb2.HeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                group_instance_id=self.instance,
                generation=self.generation,
                member_secret=self.secret,
            )
        )
        assert isinstance(response, coordinator_pb2.HeartbeatResponse)
        return response.error_code

    def leave(self, reason: str = "") -> int:
        response = self.cluster.ask(
            coordinator_pb2.LeaveGroupRequest(
                group_id=self.group,
                members=[
                    coordinator_pb2.LeaveGroupRequest.Member(
                        member_id=self.member_id,
                        group_instance_id=self.instance,
                        reason=reason,
                        member_secret=self.secret,
                    )
                ],
            )
        )
        assert isinstance(response, coordinator_pb2.LeaveGroupResponse)
        return response.members[0].error_code if response.members else response.error_code

    def leave_request(self) -> coordinator_pb2.LeaveGroupRequest:
        leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=self.member_id)
        return coordinator_pb2.LeaveGroupRequest(group_id=self.group, members=[leaver])

    def commit_request(
        self, offset: int, *, seq: int = 0, partition: int = 0, metadata: str = ""
    ) -> coordinator_pb2.OffsetCommitRequest:
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance,
            generation=self.generation,
            member_seq=seq,
            member_secret=self.secret,
        )
        request.topics.add(name="t").partitions.add(
            partition=partition, offset=offset, leader_epoch=-1, metadata=metadata
        )
        return request

    def commit(self, offset: int, **options: Any) -> int:
        response = self.cluster.ask(self.commit_request(offset, **options))
        assert isinstance(response, coordinator_pb2.OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code


def fetched(cluster: VirtualShard, partition: int = 0, group: str = "g") -> int:
    """The committed offset of a partition of topic `t`."""
    request = coordinator_pb2.OffsetFetchRequest()
    request.groups.add(group_id=group).topics.add(topic="t", partitions=[partition])
    response = cluster.ask(request)
    assert isinstance(response, coordinator_pb2.OffsetFetchResponse)
    return response.groups[0].topics[0].partitions[0].offset


def settled(cluster: VirtualShard, *names: str, group: str = "g") -> list[VirtualMember]:
    """Members of a Stable group: all joined within the initial delay, all synced, all just heard of."""
    members = [VirtualMember(cluster, name, group).join() for name in names]
    cluster.advance(cluster.config.initial_rebalance_delay_ms * (len(names) + 1))
    for member in members:
        assert member.joined().error_code == 0
    leader = next(member for member in members if member.members)
    for member in members:
        plan = {key: f"for {key}".encode() for key in leader.members} if member is leader else None
        member.sync(plan)
    for member in members:
        assert member.synced().error_code == 0
        assert member.heartbeat() == 0
    return members
