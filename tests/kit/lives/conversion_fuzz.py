"""Random lives of a group that becomes incremental, and classic again, in any phase, while its members work.

Members join, sync, commit, come to streams, are told that the group is of the other kind, and go on as
members of that; clients come that can only be classic, and operators want either kind; owners follow each
other, the log is slow, topics grow and are deleted meanwhile. What two members work on is never the same; the
rest is checked as in `kit.lives.incremental_fuzz`.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from kit.lives.incremental_fuzz import CONFIG, IncrementalShardLife, Rests, check_settled
from kit.lives.incremental_shard import GROUP, JOIN, NumberedMember
from kit.lives.played import Differs, played
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.events import Attach, Beat, GroupResponse, StreamBroken, StreamPlace
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.group_conversion_pb2 import (
    GROUP_KIND_CLASSIC,
    GROUP_KIND_INCREMENTAL,
    ConvertGroupRequest,
)
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

LENGTH = 150
_SILENCE_MS = 1_000
"""A member does something more often: shorter than the grace after a stream."""
_KINDS = ("both",) * 12 + ("classic", "incremental")
"""Of what kinds a member's group can be, as often as it is drawn."""
_ROUNDS = 200
"""Half seconds in which a group settles: longer than two rebalance time-outs of members that died."""
_QUIET_ROUNDS = 12
"""As in `kit.lives.incremental_fuzz`; longer than a group waits for its conversion."""


def life(seed: int, length: int = LENGTH) -> "ConversionLife":
    """Plays the life of a seed to its end.

    Raises:
        Differs: see there.
        Exception: whatever the core raises.
    """
    return played(ConversionLife(random.Random(seed)), length)


class Changer:
    """A process with one member that is of the kind that its group is.

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
        keeps: bool,
        kinds: str = "both",
    ) -> None:
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
            self._call_id = self.cluster.send(beat)

    def end(self) -> None:
        """Leaves, and works on nothing any more; nobody reads the answer."""
        if self._turned is not None:
            request = self._turned.request(-1)
            self.cluster.send(request, place=self._place)
        elif self._classic.member_id:
            leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=self._classic.member_id)
            self.cluster.send(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]))

    def commit(self, offset: int) -> coordinator_pb2.OffsetCommitRequest | None:
        """A commit of something that it works on; None: there is nothing."""
        if not self.owned:
            return None
        request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=self.member_id)
        request.group_instance_id = self._classic.instance
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
        self._classic.protocols = [("cooperative-sticky" if self._keeps else "range", self._metadata())]
        request = self._classic.join_request(member_seq=self._seq, process_id=self._process_id)
        self._call_id = self.cluster.send(request)

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
    def _place(self) -> StreamPlace:
        return StreamPlace(self._stream_id, self._connection)

    def _ask_turned(self, turned: NumberedMember) -> None:
        request = turned.request(turned.epoch)
        request.owned.SetInParent()
        request.owned.topics.extend(by_topic(turned.owned))
        if turned.epoch == JOIN:
            request.topics.names.extend(["t", "u"])
            request.rebalance_timeout_ms = 20_000
            request.can_be_classic = self._can_be_classic
        self._call_id = self.cluster.send(request, place=self._place)

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


class ConversionLife(IncrementalShardLife):
    """A shard with one group whose members can be of either kind.

    Args:
        source: of all draws.
    """

    def __init__(self, source: random.Random) -> None:
        super().__init__(source)
        after_ms = source.choice([200, 1_500, 3_000])
        self._config = replace(
            CONFIG, convert="auto", convert_after_ms=after_ms, incremental_session_timeout_ms=20_000
        )
        self._catalog = replace(self._catalog, partitions={"t": 3, "u": 2}, incarnations={"t": 2, "u": 3})
        self._load([], 10_000)
        self._count = self._heard = 0
        self._pace = source.choice([0.8, 0.2])
        self._keep = source.random() < 0.5
        self._members: list[Changer] = []
        self._actions = (
            (4, self._begin),
            (60, self._go_on),
            (2, self._end),
            (1, self._all_end),
            (8, self._commit_work),
            (3, self._topic),
            (10, self._some_time_passes),
            (4, self._break_stream),
            (6 if self._slow else 1, self._log),
            (3, self._another_owner),
            (1, self._outage),
            (3, self._together),
            (2, self._operator),
        )

    @property
    def conversions(self) -> int:
        """How many the log has."""
        return self.cluster.kinds().count("group_converted")

    @property
    def reversions(self) -> int:
        """How often it became classic again, as the log has it."""
        return self.cluster.kinds().count("group_reverted")

    def step(self) -> None:
        """Lets something happen."""
        super().step()
        self._hear()
        self._no_two()

    def _plan(self, members: list[str]) -> dict[str, bytes]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        everything = [(n, i) for n in ("t", "u") for i in range(self._catalog.partitions.get(n, 0))]
        for at, partition in enumerate(everything):
            shares[members[at % len(members)]].append(partition)
        return {
            who: common_pb2.Assignment(version=1, partitions=by_topic(share)).SerializeToString()
            for who, share in shares.items()
        }

    def _begin(self) -> None:
        if len(self._members) < 4:
            self._count += 1
            taken = {member.instance for member in self._members}
            instance = self._draw.choice(["", "i", "j"])
            instance = "" if instance in taken else instance
            stream_id, kinds = self._streams.one(), self._draw.choice(_KINDS)
            name = f"m{self._count}"
            self._members.append(
                Changer(self.cluster, name, instance, stream_id, keeps=self._keep, kinds=kinds)
            )

    def _go_on(self) -> None:
        for member in self._draw.sample(self._members, len(self._members)):
            if self._draw.random() < self._pace or self.cluster.now_ms - member.acted_ms > _SILENCE_MS:
                member.act(self._plan)
                self._hear()
                self._no_two()
        for stream_id in self._streams.open:
            self.cluster.feed(Beat(stream_id, self._streams.next_beat()))

    def _together(self) -> None:
        cluster, was_quick = self.cluster, self.cluster.auto_ack
        cluster.auto_ack = False
        for _ in range(3):
            self._go_on()
        cluster.auto_ack = was_quick
        while was_quick and cluster.waiting:
            cluster.acknowledge()

    def _end(self) -> None:
        if self._members:
            member = self._members.pop(self._draw.randrange(len(self._members)))
            if self._draw.random() < 0.6:  # else it dies
                member.end()

    def _operator(self) -> None:
        """Wants a kind, whichever the group is of."""
        kind = self._draw.choice([GROUP_KIND_CLASSIC, GROUP_KIND_CLASSIC, GROUP_KIND_INCREMENTAL])
        self._send(ConvertGroupRequest(group_id=GROUP, kind=kind))

    def _all_end(self) -> None:
        """The group empties: who comes next is classic again."""
        while self._members and self._draw.random() < 0.97:
            self._members.pop().end()

    def _commit_work(self) -> None:
        if self._members:
            request = self._draw.choice(self._members).commit(self.cluster.now_ms)
            if request is not None:
                self._send(request)

    def _some_time_passes(self) -> None:
        for _ in range(self._draw.choice([1, 3, 6])):
            self.cluster.advance(500)
            self._hear()
            self._go_on()

    def _break_stream(self) -> None:
        stream_id = self._streams.one()
        self._streams.close(stream_id)
        self.cluster.feed(StreamBroken(stream_id, True))
        for member in self._members:
            if member.stream_id == stream_id:
                member.connect(self._streams.one())

    def _another_owner(self) -> None:
        super()._another_owner()
        self._heard = 0
        for member in self._members:
            member.move(self.cluster, self._streams.one())

    def _outage(self) -> None:
        self.cluster.suspend()
        self.cluster.advance(2_000)
        if self.cluster.waiting and self._draw.random() < 0.5:
            self.cluster.acknowledge()
        self.cluster.resume()

    def _hear(self) -> None:
        pushes, self._heard = self.cluster.pushes[self._heard :], len(self.cluster.pushes)
        for push in pushes:
            message = push.message
            who = (
                message.response.member_id
                if isinstance(message, session_pb2.MemberNews)
                else message.member_id
            )
            for member in self._members:
                if (member.stream_id, member.member_id) == (push.stream_id, who):
                    member.told(message)

    def _no_two(self) -> None:
        works: dict[TopicPartition, str] = {}
        for member in self._members:
            for partition in member.owned:
                if partition in works:
                    raise Differs(f"{works[partition]} and {member.member_id} work on {partition}")
                works[partition] = member.member_id

    @property
    def rests(self) -> bool:
        """As in `IncrementalShardLife`; a classic group is at rest, too, and who died is gone."""
        group = self.cluster.shard.groups.get(GROUP)
        if group is None or not {*group.members} <= {member.member_id for member in self._members}:
            return False
        if group.incremental is not None and group.incremental.members:
            there = {*group.incremental.members}
            return super().rests and there == {member.member_id for member in self._members}
        is_quiet = not (self._parked or self.cluster.work or group.pending_members)
        return is_quiet and group.state is GroupState.STABLE and len(group.members) == len(self._members)

    def finish(self) -> None:
        """Lets everybody work until nothing moves; looks at the whole log.

        Raises:
            Differs: see there.
        """
        self.steps.append("finish")
        self.cluster.auto_ack = True
        while self.cluster.waiting:
            self.cluster.acknowledge()
        self._begin()
        rests = Rests(self, _QUIET_ROUNDS)
        for _ in range(_ROUNDS):
            for _ in range(3):
                self._hear()
                for member in self._members:
                    member.act(self._plan)
            self._do_all_work()
            self._hear()
            self._no_two()
            for stream_id in self._streams.open:
                self.cluster.feed(Beat(stream_id, self._streams.next_beat()))
            self.cluster.advance(500)
            self.check()
            self._take_answers()
            if rests.long_enough():
                break
        if self._group is not None:
            check_settled(self._group, self._catalog)
        if self._parked:
            raise Differs(f"calls without an answer: {self._parked}")
        if broken := broken_promises(self.cluster):
            raise Differs(f"the log breaks a promise: {broken}")
