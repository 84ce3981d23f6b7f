"""A process with one member that is of the kind that its group is, as the library's members are."""

import random
from collections import deque
from collections.abc import Callable

from kit.lives.incremental_shard import GROUP, JOIN, NumberedMember
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.events import Attach, GroupRequest, GroupResponse, StreamPlace
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse


class Changer:
    """A process with one member that is of the kind that its group is.

    Args:
        cluster: the shard that it calls.
        name: of the process.
        instance: its static id; empty: it has none.
        stream_id: its session stream; 0: it makes calls alone.
        source: of what it wishes for when it joins.
        sent: takes its calls, for whoever makes them again later.
        keeps: whether it keeps what it works on while the group rebalances.
        kinds: of which kinds its group can be.

    Attributes:
        instance: its static id; empty: it has none.
        acted_ms: when it did something last.
    """

    def __init__(
        self,
        cluster: VirtualShard,
        name: str,
        instance: str,
        stream_id: int,
        *,
        source: random.Random,
        sent: deque[GroupRequest],
        keeps: bool,
        kinds: str = "both",
    ) -> None:
        self._draw = source
        self._sent = sent
        self._joins = self._commits = 0
        self._classic = VirtualMember(cluster, name, GROUP, instance)
        self._classic.session_timeout_ms = 10_000
        self._keeps = keeps
        self._turned: NumberedMember | None = None
        self._process_id = b"" if kinds == "classic" else name.encode().ljust(16, b".")
        self._can_be_classic = kinds != "incremental"
        self._seq = 0
        self._call_id = 0
        self._version = NOWHERE
        self._begins = True
        self._stream_id, self._connection = stream_id, 1
        self._owned: dict[TopicPartition, Position] = {}
        self.instance = instance
        self.acted_ms = 0

    @property
    def owned(self) -> dict[TopicPartition, Position]:
        """What it works on, with tokens."""
        return self._owned if self._turned is None else self._turned.owned

    @property
    def cluster(self) -> VirtualShard:
        """The shard that it calls."""
        return self._classic.cluster

    @property
    def member_id(self) -> str:
        """Its id; empty: it has none yet."""
        return self._classic.member_id if self._turned is None else self._turned.member_id

    @property
    def stream_id(self) -> int:
        """Its session stream."""
        return self._stream_id

    def move(self, cluster: VirtualShard, stream_id: int) -> None:
        """Turns to another owner; calls are lost."""
        self._classic.cluster, self._call_id = cluster, 0
        if self._turned is not None:
            self._turned.cluster = cluster
        if self._stream_id:
            self.connect(stream_id)

    def connect(self, stream_id: int) -> None:
        """Has another stream."""
        self._stream_id, self._connection = stream_id, self._connection + 1
        if self._turned is None and self._classic.generation > 0 and not self._begins:
            self._attach()

    def act(self, plans: Callable[[list[str]], dict[str, bytes]]) -> None:
        """Reads the answer to its last call, or makes the next one."""
        self.acted_ms = self.cluster.now_ms
        if self._call_id:
            if (answer := self.cluster.answers.pop(self._call_id, None)) is None:
                return
            self._call_id = 0
            self._read(answer, plans)
        elif self._turned is not None:
            self._ask_turned(self._turned)
        elif self._begins:
            self._enter()
        else:
            classic = self._classic
            beat = coordinator_pb2.HeartbeatRequest(
                group_id=GROUP,
                member_id=classic.member_id,
                group_instance_id=classic.instance,
                generation=classic.generation,
            )
            self._call(beat)

    def end(self) -> None:
        """Leaves, and works on nothing any more; nobody reads the answer."""
        if self._turned is not None:
            self._send(self._turned.request(-1), self._place)
        elif self._classic.member_id:
            leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=self._classic.member_id)
            self._send(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]))

    def _call(self, request: GroupRequest, place: StreamPlace | None = None) -> None:
        """Makes a call, whose answer it reads."""
        self._call_id = self._send(request, place)

    def _send(self, request: GroupRequest, place: StreamPlace | None = None) -> int:
        self._sent.append(request)
        return self.cluster.send(request, place=place)

    def commit(self, offset: int) -> coordinator_pb2.OffsetCommitRequest | None:
        """A commit of something that it works on; None: there is nothing."""
        if not self.owned:
            return None
        request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=self.member_id)
        request.group_instance_id = self._classic.instance
        self._commits += 1
        request.member_seq = self._commits
        (topic, number), token = sorted(self.owned.items())[offset % len(self.owned)]
        entry = request.topics.add(name=topic).partitions.add(partition=number, offset=offset)
        if self._turned is None:
            request.generation = self._classic.generation
        else:
            entry.token.CopyFrom(token.to_proto())
        return request

    def told(self, message: object) -> None:
        """News about it came by its stream."""
        turned = self._turned
        match message:
            case session_pb2.GroupChanged(error_code=error_code.GROUP_CONVERTED) if turned is None:
                self._turn()
            case session_pb2.GroupChanged(error_code=error_code.GROUP_CLASSIC) if turned is not None:
                self._return(turned)
            case session_pb2.Fenced(member_seq=seq) if turned is not None and seq in (0, turned.seq):
                self._begin_anew(turned)
            case session_pb2.Fenced() if turned is None:
                self._drop(forget=True)
            case session_pb2.RebalanceStarted() if turned is None and not self._call_id:
                self._drop()
            case session_pb2.MemberNews(response=response) if turned is not None:
                if (
                    message.member_seq == turned.seq
                    and Position.from_proto(response.version) > turned.version
                ):
                    turned.hear(response)

    # --- classic

    def _enter(self) -> None:
        self._seq += 1
        if not self._keeps:
            self._owned = {}
        self._classic.protocols = [(self._assignor, self._metadata())]
        self._joins += 1
        wishes = {
            "member_seq": self._seq,
            "process_id": self._process_id,
            "request_id": f"{self._classic.name}-{self._joins}",
            "weight": self._draw.choice([0, 0, 3]),
            "client_version": self._draw.choice(["", "library/1"]),
        }
        self._call(self._classic.join_request(**wishes))

    @property
    def _assignor(self) -> str:
        return "cooperative-sticky" if self._keeps else "range"

    def _metadata(self) -> bytes:
        subscription = common_pb2.Subscription(version=1, topics=["t", "u"])
        if self._keeps:
            subscription.keeps_owned, subscription.generation = True, self._classic.generation
            subscription.owned_partitions.extend(by_topic(self._owned))
        return subscription.SerializeToString()

    def _drop(self, *, forget: bool = False) -> None:
        """Joins next; who does not keep what it works on, or is a member no more, stops."""
        self._begins = True
        if forget or not self._keeps:
            self._owned = {}
        if forget:
            self._classic.member_id, self._version = "", NOWHERE

    def _attach(self) -> None:
        if not self._stream_id:
            return
        classic = self._classic
        request = session_pb2.Attach(
            group_id=GROUP,
            member_id=classic.member_id,
            group_instance_id=classic.instance,
            generation=classic.generation,
        )
        self.cluster.feed(Attach(self._stream_id, request))

    def _turn(self) -> None:
        """Goes on as an incremental member, with what it works on."""
        classic = self._classic
        turned = NumberedMember(self.cluster, classic.member_id or classic.name, instance=classic.instance)
        turned.process_id, turned.seq = self._process_id, max(self._seq, 1)
        turned.epoch = max(classic.generation, 0) if classic.member_id else 0
        if self._owned:
            turned.version, turned.owned = self._version, self._owned
        self._turned, self._owned, self._begins = turned, {}, True
        self._call_id = 0

    def _read(self, answer: GroupResponse, plans: Callable[[list[str]], dict[str, bytes]]) -> None:
        classic, code = self._classic, getattr(answer, "error_code", 0)
        if isinstance(answer, ConsumerGroupHeartbeatResponse):
            self._read_turned(answer)
        elif code == error_code.GROUP_CONVERTED:
            self._turn()
        elif code in (error_code.COORDINATOR_NOT_AVAILABLE, error_code.NOT_COORDINATOR):
            pass
        elif isinstance(answer, coordinator_pb2.JoinGroupResponse):
            if code == error_code.MEMBER_ID_REQUIRED:
                classic.member_id = answer.member_id
            elif code:
                self._drop(forget=True)
            else:
                classic.member_id, classic.generation = answer.member_id, answer.generation
                members = [member.member_id for member in answer.members]
                classic.sync(plans(members) if members else None)
                self._call_id = classic.call_id
        elif isinstance(answer, coordinator_pb2.SyncGroupResponse):
            if code:
                self._drop(forget=code == error_code.UNKNOWN_MEMBER_ID)
            else:
                self._take(answer)
        elif code:
            self._drop(forget=code in (error_code.UNKNOWN_MEMBER_ID, error_code.FENCED_INSTANCE_ID))

    def _take(self, answer: coordinator_pb2.SyncGroupResponse) -> None:
        self._version = Position.from_proto(answer.version)
        self._owned = {}
        kept = {(one.topic, one.partition): one.token for one in answer.kept_tokens}
        for entry in common_pb2.Assignment.FromString(answer.assignment).partitions:
            for number in entry.partitions:
                token = kept.get((entry.topic, number), answer.token)
                self._owned[entry.topic, number] = Position(*map(int, token.split("-")))
        self._begins = False
        self._attach()

    # --- incremental

    @property
    def _place(self) -> StreamPlace | None:
        return StreamPlace(self._stream_id, self._connection) if self._stream_id else None

    def _ask_turned(self, turned: NumberedMember) -> None:
        request = turned.request(turned.epoch)
        request.owned.SetInParent()
        request.owned.topics.extend(by_topic(turned.owned))
        if turned.epoch == JOIN:
            request.topics.names.extend(["t", "u"])
            request.rebalance_timeout_ms = 20_000
            if self._can_be_classic:
                request.can_be_classic = True
                request.classic_protocols.append(self._assignor)
            request.weight = self._draw.choice([0, 0, 2, 7])
            request.rollout_hold_ms = self._draw.choice([0, 0, 300, 15_000])
            request.client_version = self._draw.choice(["", "library/1", "library/2"])
        self._call(request, self._place)

    def _return(self, turned: NumberedMember) -> None:
        """Goes on as a classic member, which stops what it does not keep and joins."""
        classic = self._classic
        classic.member_id, classic.generation, self._seq = turned.member_id, turned.epoch, turned.seq
        self._owned = turned.owned if self._keeps else {}
        self._turned, self._begins, self._call_id = None, True, 0

    def _begin_anew(self, turned: NumberedMember) -> None:
        turned.seq, turned.epoch, turned.version, turned.owned = turned.seq + 1, JOIN, NOWHERE, {}
        self._call_id = 0

    def _read_turned(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        turned, code = self._turned, answer.error_code
        if turned is None or answer.member_id not in ("", turned.member_id):
            return
        if code == error_code.GROUP_CLASSIC:
            self._return(turned)
        elif code == error_code.GROUP_ID_NOT_FOUND:
            self._turned, self._seq = None, turned.seq
            self._drop(forget=True)
        elif code == error_code.UNRELEASED_INSTANCE_ID:
            turned.owned = {}
        elif code in (error_code.UNKNOWN_MEMBER_ID, error_code.FENCED_MEMBER_EPOCH):
            self._begin_anew(turned)
        elif not code and Position.from_proto(answer.version) >= turned.version:
            turned.hear(answer)
