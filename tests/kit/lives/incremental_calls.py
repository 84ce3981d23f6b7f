"""Calls that anybody may make on an incremental group, sensible and odd ones, drawn from what the group is.

Callers know what the group knows of them, so that most calls pass; a part names old epochs, numbers, lists,
tokens or streams, which late and doubled calls of real members do.
"""

import random

from kit.lives.incremental_shard import AWAY, GROUP, JOIN, LEAVE
from kit.lives.server_assignors import SERVER_ASSIGNORS
from muster_core.events import StreamPlace
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)

TOPICS = ("t", "u", "tx", "v")
"""What is created, deleted and committed to."""

AdminRequest = (
    coordinator_pb2.DeleteGroupsRequest
    | coordinator_pb2.LeaveGroupRequest
    | coordinator_pb2.DescribeGroupsRequest
    | coordinator_pb2.OffsetFetchRequest
    | AlterGroupSettingsRequest
    | ConsumerGroupDescribeRequest
)

_MEMBER_IDS = ("a", "b", "c", "d")
_INSTANCES = ("i", "j")
_PROCESSES = (b"p1".ljust(16, b"."), b"p2".ljust(16, b"."))
_SUBSCRIPTIONS: tuple[list[str], ...] = (["t"], ["t", "u"], ["u"], ["nope"], [], ["t", "tx", "v"])
_EXPRESSIONS = ("t.*", "zzz.*", "u|v", "", "t")
_ASSIGNORS = tuple(SERVER_ASSIGNORS)
_NOBODYS: frozenset[TopicPartition] = frozenset({("t", 0), ("u", 77), ("nope", 1)})


class DrawnStreams:
    """The streams that are open, and on which of them each join of a member is.

    Args:
        source: of all draws.
    """

    def __init__(self, source: random.Random) -> None:
        self._draw = source
        self._places: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self._next = 1
        self._beats = 0
        self.open: list[int] = []
        self.renew()

    def renew(self) -> None:
        """All are others: the owner is."""
        self.open = [self._opened() for _ in range(4)]

    def one(self) -> int:
        """Any of them."""
        return self._draw.choice(self.open)

    def next_beat(self) -> int:
        """A number for a beat, above all before it."""
        self._beats += 1
        return self._beats

    def close(self, stream_id: int) -> None:
        """One breaks; another one is opened."""
        self.open.remove(stream_id)
        self.open.append(self._opened())

    def place(self, request: ConsumerGroupHeartbeatRequest) -> StreamPlace:
        """Where a call comes from: mostly from where the last one of its join came."""
        key = request.member_id, request.process_id, request.member_seq
        connection, stream_id = self._places.get(key, (0, 0))
        if stream_id not in self.open or self._draw.random() < 0.15:
            connection, stream_id = self._places[key] = connection + 1, self.one()
        if self._draw.random() < 0.05:
            connection = max(1, connection - 1)
        return StreamPlace(stream_id, connection, self._draw.random() < 0.5)

    def _opened(self) -> int:
        self._next += 1
        return self._next - 1


class DrawnCalls:
    """What callers ask.

    Args:
        source: of all draws.
        numbered: how many of the joins have a number.
        streamed: how many of those come by a stream.
    """

    def __init__(self, source: random.Random, numbered: float, streamed: float) -> None:
        self._draw = source
        self._numbered = numbered
        self._streamed = streamed
        self._seqs: dict[tuple[str, bytes], int] = {}

    def _happens(self, chance: float) -> bool:
        return self._draw.random() < chance

    def join(self, group: IncrementalGroup | None) -> tuple[ConsumerGroupHeartbeatRequest, bool]:
        """A join, and whether it comes by a stream."""
        pick = self._draw.choice
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=pick(_MEMBER_IDS),
            member_epoch=JOIN,
            group_instance_id=pick([None, None, *_INSTANCES]),
            rebalance_timeout_ms=pick([500, 20_000]),
        )
        request.owned.SetInParent()
        if self._happens(0.8):
            request.topics.names.extend(pick(_SUBSCRIPTIONS))
        if not request.HasField("topics") or self._happens(0.2):
            request.topic_regex = pick(_EXPRESSIONS)
        if self._happens(0.3):
            request.server_assignor = pick(_ASSIGNORS)
        if self._happens(0.3):
            request.rack_id = "r"
        request.weight, request.rollout_hold_ms = pick([0, 0, 1, 2, 7]), pick([0, 0, 0, 300, 30_000])
        request.client_version = pick(["", "library/1", "library/2"])
        if not self._happens(self._numbered):
            return request, False
        self._number(request, group)
        return request, self._happens(self._streamed)

    def _number(self, request: ConsumerGroupHeartbeatRequest, group: IncrementalGroup | None) -> None:
        """Mostly the next number of its process; some name the holder whose place they take."""
        request.process_id = _PROCESSES[0] if self._happens(0.8) else _PROCESSES[1]
        key = request.member_id, request.process_id
        last = self._seqs.get(key, 0)
        request.member_seq = max(1, last + self._draw.choice([0, 1, 1, 1, -1]))
        self._seqs[key] = max(last, request.member_seq)
        if group is not None and self._happens(0.4):
            holder = group.members.get(group.statics.get(request.group_instance_id, request.member_id))
            if holder is not None:
                request.replaces.CopyFrom(holder.joined.to_proto())

    def join_again(self, member: Member) -> ConsumerGroupHeartbeatRequest:
        """The join of a member without numbers that begins anew, with what it is subscribed to."""
        told = member.told
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member.member_id,
            member_epoch=JOIN,
            group_instance_id=told.group_instance_id or None,
            rebalance_timeout_ms=20_000,
        )
        request.owned.SetInParent()
        request.topics.names.extend(told.topics)
        if told.topic_regex:
            request.topic_regex = told.topic_regex
        return request

    def beat(self, group: IncrementalGroup, member: Member, odd: bool) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat that says and owns what the group thinks; an odd one differs in something."""
        told, owned, version = member.told, member.assigned, member.version
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member.member_id,
            member_epoch=max(1, group.epoch_of(member)),
            member_seq=told.member_seq,
            process_id=told.process_id if told.is_numbered else b"",
        )
        if told.group_instance_id and self._happens(0.8):
            request.group_instance_id = told.group_instance_id
        if odd:
            if self._happens(0.3):
                owned = frozenset(one for one in member.held if self._happens(0.6))
            if self._happens(0.2):
                owned |= _NOBODYS
            if self._happens(0.3):
                before = Position(version.epoch, max(0, version.offset - 1))
                version = self._draw.choice([NOWHERE, member.joined, before, Position(9, 9)])
            self._make_odd(request)
        if not odd or self._happens(0.85):
            request.owned.SetInParent()
            request.owned.topics.extend(by_topic(owned))
        if request.member_seq:
            request.version.CopyFrom(version.to_proto())
        return request

    def _make_odd(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Names another epoch or join, or changes what the member said when it joined."""
        pick = self._draw.choice
        if self._happens(0.3):
            request.member_epoch = max(1, request.member_epoch + pick([-1, 1, 5]))
        if self._happens(0.15) and request.member_seq > 1:
            request.member_seq += pick([1, -1])
        if self._happens(0.15):
            request.topics.names.extend(pick([["t"], ["u"], [], ["t", "u", "v"]]))
        if self._happens(0.15):
            request.topic_regex = pick(["t.*", "u|v", "", "q"])
        if self._happens(0.1):
            request.rebalance_timeout_ms = 700
        if self._happens(0.1):
            request.server_assignor = pick(_ASSIGNORS)
        if self._happens(0.05):
            request.group_instance_id = pick(_INSTANCES)

    def leave(self, member: Member) -> ConsumerGroupHeartbeatRequest:
        """A member leaves, for good or for a while."""
        told, epoch = member.told, self._draw.choice([LEAVE, AWAY])
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member.member_id,
            member_epoch=epoch,
            member_seq=told.member_seq,
            process_id=told.process_id,
            group_instance_id=told.group_instance_id or None,
        )
        if request.member_seq and self._happens(0.1):
            request.member_seq += 1
        if epoch == AWAY and not told.group_instance_id and self._happens(0.5):
            request.group_instance_id = _INSTANCES[0]
        return request

    def commit(
        self, group: IncrementalGroup | None, member: Member | None, offset: int
    ) -> coordinator_pb2.OffsetCommitRequest:
        """A commit of what a member has, and of something else; without a member one from outside."""
        request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP)
        if group is None or member is None:
            request.generation = -1
            held = []
        else:
            self._sign(request, group, member)
            held = list(member.held.items())[:3]
        named = self._happens(0.6)
        for (topic, number), has in held:
            given = request.topics.add(name=topic).partitions.add(partition=number, offset=offset)
            if named and self._happens(0.9):
                given.token.CopyFrom(has.token.to_proto())
        other = self._draw.choice(TOPICS), self._draw.randrange(4)
        if other not in dict(held) and self._happens(0.4):
            given = request.topics.add(name=other[0]).partitions.add(partition=other[1], offset=offset)
            if named and self._happens(0.5):
                given.token.CopyFrom(Position(1, self._draw.randrange(50)).to_proto())
        if held and self._happens(0.2):
            (topic, number), _ = held[0]
            request.ends.add(name=topic).partitions.add(partition=number, end=5)
        return request

    def _sign(
        self, request: coordinator_pb2.OffsetCommitRequest, group: IncrementalGroup, member: Member
    ) -> None:
        request.member_id = member.member_id
        if self._happens(0.8):
            request.member_epoch = max(-1, group.epoch_of(member))
        if self._happens(0.1):
            request.member_epoch = self._draw.choice([-1, 0, 99])
        if member.told.is_numbered and self._happens(0.7):
            request.member_seq = max(1, member.commit_seq + self._draw.choice([0, 1, 1, 1, -1]))
        if member.told.group_instance_id:
            request.group_instance_id = member.told.group_instance_id

    def _alter(self) -> AlterGroupSettingsRequest:
        """Sets something, and takes something else back."""
        draw = self._draw
        wanted = GroupSettings(
            assignor=draw.choice([None, None, "uniform", "range", "other"]),
            hold=draw.choice([None, True, False]),
            session_timeout_ms=draw.choice([None, None, 20_000, 60_000, 1]),
            heartbeat_interval_ms=draw.choice([None, None, 1_000, 19_000]),
            disconnect_grace_ms=draw.choice([None, None, 1_000, 30_000]),
        )
        names = ["assignor", "hold", "session_timeout_ms", "disconnect_grace_ms"]
        is_set = {field.name for field, _ in wanted.ListFields()}
        unset = [name for name in draw.sample(names, draw.randrange(3)) if name not in is_set]
        return AlterGroupSettingsRequest(group_id=GROUP, set=wanted, unset=unset)

    def admin(self) -> AdminRequest:
        """What operators and tools ask."""
        chance = self._draw.random()
        if chance < 0.3:
            return coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP])
        if chance < 0.6:
            out = coordinator_pb2.LeaveGroupRequest(group_id=GROUP)
            for _ in range(self._draw.choice([1, 2])):
                out.members.add(
                    member_id=self._draw.choice([*_MEMBER_IDS, ""]),
                    group_instance_id=self._draw.choice(["", *_INSTANCES]),
                )
            return out
        if chance < 0.8:
            return ConsumerGroupDescribeRequest(group_ids=[GROUP])
        if chance < 0.85:
            return coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP])
        if chance < 0.92:
            return self._alter()
        fetch = coordinator_pb2.OffsetFetchRequest()
        fetch.groups.add(group_id=GROUP).topics.add(topic="t", partitions=[0, 1])
        return fetch
