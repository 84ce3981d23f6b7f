"""A process of the model of groups of two kinds (`model.incremental.kinds`), as a caller of a core shard."""

from collections.abc import Mapping

from kit.lives.incremental_shard import GROUP, JOIN, LEAVE, held_in
from kit.lives.virtual_shard import VirtualShard
from model.incremental.kinds_state import Call
from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Attach, GroupRequest, GroupResponse, StreamPlace
from muster_core.incremental.partitions import by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2, session_pb2

SORTS = ("eager", "keeps", "mute", "raw", "old")
"""What processes there are. Those that can be of either kind stop everything before they join again, or keep
it, or do not say with what they can be classic (INC-150); others can only be incremental, or only classic."""

LONG_MS = 1_800_000
"""Nobody is removed for silence."""

_PROTOCOLS = ("range", "x")
_NAMES: Mapping[ErrorCode, str] = {
    error_code.MEMBER_ID_REQUIRED: "id",
    error_code.UNKNOWN_MEMBER_ID: "unknown",
    error_code.FENCED_INSTANCE_ID: "unknown",
    error_code.UNRELEASED_INSTANCE_ID: "unknown",
    error_code.GROUP_ID_NOT_FOUND: "classic",
    error_code.INCONSISTENT_GROUP_PROTOCOL: "refused",
    error_code.GROUP_CONVERTED: "converted",
    error_code.GROUP_CLASSIC: "back",
    error_code.REBALANCE_IN_PROGRESS: "rejoin",
    error_code.ILLEGAL_GENERATION: "rejoin",
}
"""What the model calls a refusal."""

_WELL: Mapping[type[object], str] = {
    coordinator_pb2.JoinGroupResponse: "joined",
    coordinator_pb2.SyncGroupResponse: "synced",
    coordinator_pb2.HeartbeatResponse: "ok",
    incremental_pb2.ConsumerGroupHeartbeatResponse: "list",
}
"""What it calls an answer without an error."""


class KindsProcess:
    """A process. It asks what the model's worker asks, and hears what that hears.

    Args:
        cluster: the shard.
        number: of the process in the model.
        sort: one of `SORTS`.
        instance: its static id; empty: it has none.
        stream: the first of the streams on which it is, one after the other; 0: it makes unary calls alone.

    Attributes:
        cluster: the shard; replaced when another one owns the group.
        instance: see above.
        life: how often it has begun.
        member_id: its id; empty: it has none yet.
        seq: number of its last join.
        leads: whether it assigns in the generation that it heard of last.
        names_tokens: whether its commits name tokens, as those of an incremental member.
        went_on: whether its last call was made again as another join: that of before had been answered with a
            generation that was over.
        version: newest record that it has heard of.
        owned: what it works on, with tokens.
        waits: the call that is parked, as the model has it; None: none is.
        offset: of its last commit.
    """

    def __init__(
        self, cluster: VirtualShard, number: int, sort: str, *, instance: str = "", stream: int = 0
    ) -> None:
        self.cluster = cluster
        self.instance = instance
        self._name = str(number)
        self._sort = sort
        self._stream, self._connection = stream, 1
        self.life = self.seq = self.offset = 0
        self.begin()

    def begin(self) -> None:
        """Is another process from now on, which nobody knows."""
        self.life += 1
        self.seq = self._epoch = 0
        self.member_id = ""
        self.leads = self.names_tokens = self.went_on = self._joins_again = False
        self.version, self.owned = NOWHERE, dict[int, Position]()
        self.waits: Call | None = None
        self._call_id = 0
        self._answer: GroupResponse | None = None
        self._process_id = f"{self._name}.{self.life}".encode().ljust(16, b".")

    def move(self, cluster: VirtualShard, *, is_known: bool) -> None:
        """Another coordinator owns the group: calls are lost, and ids that are in no record."""
        self.cluster = cluster
        if self.waits is not None and self.waits.kind == "join":
            self._joins_again = True
        self.waits = None
        if not is_known:
            self.member_id = ""
        self.reconnect()

    def reconnect(self) -> None:
        """Is on its next stream, if it is on any."""
        self._stream += 100 if self._stream else 0
        self._connection += 1

    @property
    def stream(self) -> int:
        """Its present stream; 0: it is on none."""
        return self._stream

    @property
    def place(self) -> StreamPlace | None:
        """Where its incremental calls come from; None: from no stream."""
        return StreamPlace(self._stream, self._connection) if self._stream else None

    # --- what it asks

    def ask(self, call: Call, plan: Mapping[str, bytes]) -> str:
        """Makes a call of the model's; gives the model's name of the answer, or `wait`.

        Args:
            call: what the model's worker asks.
            plan: what a leader assigns, by member id.
        """
        if call.kind == "join" and not self._joins_again:
            self.seq += 1
        if call.kind == "enter" and not self._joins_again:
            self.seq += 1
        if call.kind in {"enter", "beat"}:  # an incremental member chooses its id
            self.member_id = self.member_id or f"{self._name}-{self.life}"
        if call.kind == "heartbeat" and self._stream:
            self._attach()
        self.went_on = False
        name = self._send(call, self.request(call, plan))
        if name == "id":
            name = self._send(call, self.request(call, plan))
        if call.kind == "join" and self._joins_again and name == "rejoin":  # that generation is over
            self.seq += 1
            self.went_on = True
            name = self._send(call, self.request(call, plan))
        if call.kind in {"join", "enter"}:
            self._joins_again = False
        return name

    @property
    def is_answered(self) -> bool:
        """Whether the call that was parked has been answered."""
        return not self.cluster.is_parked(self._call_id)

    def heard_at_last(self) -> tuple[Call, str]:
        """The call that was parked, and the name of its answer, which must be there."""
        call, self.waits = self.waits, None
        assert call is not None
        return call, self._name_of(call, self.cluster.answer(self._call_id))

    def lose(self, call: Call) -> None:
        """The answer is lost: what it asked it asks again."""
        self._joins_again = call.kind in {"join", "enter"}

    def request(self, call: Call, plan: Mapping[str, bytes]) -> GroupRequest:
        """A call of the model's as a message."""
        match call.kind:
            case "join":
                return self._join(call)
            case "sync":
                assignments = [
                    coordinator_pb2.SyncGroupRequest.Assignment(member_id=one, assignment=share)
                    for one, share in plan.items()
                ]
                return coordinator_pb2.SyncGroupRequest(
                    group_id=GROUP,
                    member_id=self.member_id,
                    group_instance_id=self.instance,
                    generation=self._epoch,
                    assignments=assignments,
                )
            case "heartbeat":
                return coordinator_pb2.HeartbeatRequest(
                    group_id=GROUP,
                    member_id=self.member_id,
                    group_instance_id=self.instance,
                    generation=self._epoch,
                )
            case "commit":
                return self._commit(call)
            case "leave" if not self.names_tokens:
                leaver = coordinator_pb2.LeaveGroupRequest.Member(
                    member_id=self.member_id, group_instance_id=self.instance
                )
                return coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver])
        return self._heartbeat(call)

    def _join(self, call: Call) -> coordinator_pb2.JoinGroupRequest:
        keeps = self._sort == "keeps"
        subscription = common_pb2.Subscription(
            version=1, topics=["t"], keeps_owned=keeps, generation=self._epoch, rack_id=self._name
        )
        if keeps:
            subscription.owned_partitions.extend(
                by_topic(("t", p) for p in range(len(call.data)) if call.data[p])
            )
        protocols = [
            coordinator_pb2.GroupProtocol(name=_PROTOCOLS[0], metadata=subscription.SerializeToString()),
            coordinator_pb2.GroupProtocol(name=_PROTOCOLS[1], metadata=f"{self.life}.{self.seq}".encode()),
        ]
        return coordinator_pb2.JoinGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            protocol_type="consumer",
            protocols=protocols,
            client_id=self._name,
            member_seq=self.seq,
            process_id=b"" if self._sort == "old" else self._process_id,
            request_id=f"{self._name}.{self.life}.{self.seq}",
        )

    def _heartbeat(self, call: Call) -> incremental_pb2.ConsumerGroupHeartbeatRequest:
        request = incremental_pb2.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance or None,
            member_epoch={"enter": JOIN, "leave": LEAVE}.get(call.kind, self._epoch),
            member_seq=self.seq,
            process_id=self._process_id,
            client_id=self._name,
        )
        if call.kind == "leave":
            return request
        request.owned.SetInParent()
        if call.kind == "beat" and self._epoch:
            request.version.CopyFrom(self.version.to_proto())
            request.owned.topics.extend(by_topic(("t", p) for p in range(len(call.data)) if call.data[p]))
            return request
        request.topics.names.append("t")
        request.rebalance_timeout_ms, request.rack_id = LONG_MS, self._name
        request.can_be_classic = self._sort != "raw"
        if self._sort not in {"raw", "mute"}:
            request.classic_protocols.extend(_PROTOCOLS)
        return request

    def _commit(self, call: Call) -> coordinator_pb2.OffsetCommitRequest:
        """A commit; the offset says which one it is."""
        partition, token, _ = call.data
        self.offset += 1
        request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, member_id=self.member_id)
        entry = request.topics.add(name="t").partitions.add(partition=partition, offset=self.offset)
        request.group_instance_id = self.instance
        if token:
            request.member_epoch = self._epoch
            entry.token.CopyFrom(self.owned[partition].to_proto())
        else:
            request.generation = self._epoch
        return request

    def _attach(self) -> None:
        attach = session_pb2.Attach(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance,
            generation=self._epoch,
        )
        self.cluster.feed(Attach(self._stream, attach))

    def _send(self, call: Call, request: GroupRequest) -> str:
        is_incremental = isinstance(request, incremental_pb2.ConsumerGroupHeartbeatRequest)
        call_id = self.cluster.send(request, place=self.place if is_incremental else None)
        if self.cluster.is_parked(call_id):
            self.waits, self._call_id = call, call_id
            return "wait"
        return self._name_of(call, self.cluster.answer(call_id))

    def _name_of(self, call: Call, answer: GroupResponse) -> str:
        code: ErrorCode = getattr(answer, "error_code", error_code.NONE)
        if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
            return "rejected" if answer.topics[0].partitions[0].error_code else "stored"
        self._answer = answer
        if call.kind == "leave":
            return "left"
        if isinstance(answer, coordinator_pb2.JoinGroupResponse) and answer.member_id:
            self.member_id = answer.member_id
        if not code:
            return _WELL[type(answer)]
        if code == error_code.GROUP_ID_NOT_FOUND and call.kind != "enter":
            return "unknown"
        return _NAMES.get(code, f"error {code}")

    # --- what it hears

    def stop(self) -> None:
        """Works on nothing any more, unless it keeps that while it joins again."""
        if self._sort != "keeps":
            self.owned = {}

    def hear(self, name: str) -> None:
        """Does what the answer to its last call says."""
        answer = self._answer
        match answer:
            case coordinator_pb2.JoinGroupResponse() if name == "joined":
                self._epoch = answer.generation
                self.leads, self.names_tokens = bool(answer.members), False
                self.stop()
            case coordinator_pb2.SyncGroupResponse() if name == "synced":
                self.version = Position.from_proto(answer.version)
                self.owned = _owned_in(answer)
                if self._stream:
                    self._attach()
            case incremental_pb2.ConsumerGroupHeartbeatResponse() if name == "list":
                self._epoch = answer.member_epoch
                self.names_tokens = True
                if answer.HasField("assignment"):
                    self.version = Position.from_proto(answer.version)
                    self.owned = {number: token for (_, number), token in held_in(answer).items()}
        if name == "converted":
            self.names_tokens = True
            if not self.owned:
                self.version = NOWHERE
        elif name == "rejoin":
            self.stop()
        elif name in {"unknown", "refused"}:
            self.owned = {}


def _owned_in(answer: coordinator_pb2.SyncGroupResponse) -> dict[int, Position]:
    """What an answer to a SyncGroup gives, with tokens."""
    kept = {one.partition: one.token for one in answer.kept_tokens}
    owned: dict[int, Position] = {}
    for entry in common_pb2.Assignment.FromString(answer.assignment).partitions:
        for number in entry.partitions:
            owned[number] = Position(*map(int, kept.get(number, answer.token).split("-")))
    return owned
