"""A member of a group."""

from collections import Counter
from collections.abc import Collection, Sequence

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2

from muster_core.participant import Participant
from muster_core.position import NOWHERE, Position
from muster_core.record_bounds import utf8_bytes
from muster_core.sharding import java_map_bucket
from muster_core.state.members.member_secret import OPEN, lock_of
from muster_core.state.members.terms import (
    NO_TERMS,
    Terms,
    is_later_join,
    template_of,
    terms_of_record,
)
from muster_core.waiting.timing_wheel import Timer

_RECORD_OVERHEAD_BYTES = 64


class Member:
    """What the coordinator knows of a member.

    Attributes:
        member_id: its id.
        group_instance_id: its static id; empty: dynamic.
        client_id: its client id.
        host: its address.
        identity: name of the identity that alone may act for it; empty: any may.
        terms: what it asked for with its last join.
        lock: what its secret is compared with.
        session_timeout_ms: how long it may be silent, by its terms; each beat of each member reads it.
        process_id: of its last join; empty: it cannot be in an incremental group.
        recorded_process_id: of the join that the log knows.
        join_seq: `member_seq` of its last join.
        recorded_join_seq: number of the join that the log knows.
        recorded_weight: weight that the join said which the log knows.
        commit_seq: `member_seq` of its last acknowledged commit.
        accepted_commit_seq: the highest `member_seq` of its commits that were sent to the log since the load.
        assignment: what it was given; empty: nothing.
        token: position of the record that gave it.
        kept_tokens: partitions of it that have an older token, as in the record.
        recorded: whether the log knows it as a member of the present generation.
        is_new: in its first join phase.
        confirmed: heard of since the shard was loaded.
        join_call: its parked JoinGroup.
        sync_call: its parked SyncGroup.
        heartbeat: its session, as a timer.
        promised_until_ms: boot time until which it may work by its last Heartbeat, which is a session away,
            whatever becomes of a stream; 0: it made none.
        stream_id: the session stream it is on; None: it is on none.
        extended_until_ms: boot time until which it may work because it heard `unsure`; 0: it cannot have, or
            a beat of it named a later acknowledgement.
        sure_beat: number of the first beat on its stream that was acknowledged since; 0: none was.
        suspect: whether its stream broke and it was not heard of since.
        going: its removal, or another process in its place, is on its way to the log: nothing prolongs it.
    """

    __slots__ = (
        "_participant",
        "_record",
        "accepted_commit_seq",
        "assignment",
        "client_id",
        "commit_seq",
        "confirmed",
        "extended_until_ms",
        "going",
        "group_instance_id",
        "heartbeat",
        "host",
        "identity",
        "is_new",
        "join_call",
        "join_seq",
        "kept_tokens",
        "lock",
        "member_id",
        "process_id",
        "promised_until_ms",
        "recorded",
        "recorded_join_seq",
        "recorded_process_id",
        "recorded_weight",
        "session_timeout_ms",
        "stream_id",
        "sure_beat",
        "suspect",
        "sync_call",
        "terms",
        "token",
    )

    def __init__(self, member_id: str, group_instance_id: str = "") -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = ""
        self.host = ""
        self.identity = ""
        self.terms = NO_TERMS
        self.lock = OPEN
        self.session_timeout_ms = 0
        self._record: records_pb2.Member | None = None
        self._participant: Participant | None = None
        self.process_id = b""
        self.recorded_process_id = b""
        self.recorded_weight = 1
        self.join_seq = 0
        self.recorded_join_seq = 0
        self.commit_seq = 0
        self.accepted_commit_seq = 0
        self.assignment = b""
        self.token: Position = NOWHERE
        self.kept_tokens: Sequence[records_pb2.KeptToken] = ()
        self.recorded = False
        self.is_new = False
        self.confirmed = True
        self.join_call: int | None = None
        self.sync_call: int | None = None
        self.heartbeat: Timer | None = None
        self.promised_until_ms = 0
        self.stream_id: int | None = None
        self.extended_until_ms = 0
        self.sure_beat = 0
        self.suspect = False
        self.going = False

    @property
    def is_static(self) -> bool:
        """Whether it keeps its place over restarts (KIP-345)."""
        return self.group_instance_id != ""

    @property
    def is_unheard(self) -> bool:
        """Whether it has not joined since its group became classic again: what it supports is not known."""
        return self.recorded and not self.terms.protocols

    @property
    def is_waiting(self) -> bool:
        """Whether one of its calls is parked: then it is alive by definition."""
        return self.join_call is not None or self.sync_call is not None

    @property
    def size_bytes(self) -> int:
        """About what it takes in a record of its generation."""
        ids = (
            f"{self.member_id}{self.group_instance_id}{self.client_id}{self.host}{self.terms.client_version}"
        )
        own_bytes = _RECORD_OVERHEAD_BYTES + utf8_bytes(self.identity) + len(self.lock.secret_hash)
        own_bytes += len(self.process_id)
        return own_bytes + utf8_bytes(ids) + self.terms.protocols.size_bytes

    @property
    def participant(self) -> Participant:
        """The member as histories show it; one object for as long as it is the same."""
        known = self._participant
        if known is None or known.member_id != self.member_id:
            known = self._participant = Participant.of(self)
        return known

    def may_extend(self, now_ms: int) -> None:
        """From now on it may hear `unsure`, or it may have heard it from an owner before.

        It lives for its session then, from when its last acknowledged beat was sent, which was before. One
        without a grace always does.
        """
        terms = self.terms
        self.extended_until_ms = now_ms + self.session_timeout_ms if terms.disconnect_grace_ms else 0
        self.sure_beat = 0

    def confirm(self, beat: int, acknowledged: int) -> None:
        """Notes a beat. The extension ends when the client has acknowledged one without `unsure`."""
        if not self.sure_beat:
            self.sure_beat = beat
        elif acknowledged >= self.sure_beat:
            self.extended_until_ms = 0

    def metadata_for(self, protocol_name: str) -> bytes:
        """Its metadata for a protocol.

        Raises:
            KeyError: it does not support it.
        """
        for name, metadata in self.terms.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(f"member {self.member_id!r} does not support protocol {protocol_name!r}")

    def vote(self, candidates: set[str]) -> str:
        """The candidate it prefers.

        Raises:
            KeyError: it supports none of them.
        """
        for name, _ in self.terms.protocols:
            if name in candidates:
                return name
        raise KeyError(f"member {self.member_id!r} supports none of {sorted(candidates)}")

    def update_from(
        self,
        request: coordinator_pb2.JoinGroupRequest,
        terms: Terms,
        host: str,
        identity: str = "",
        secret_hash: bytes = b"",
        process_id: bytes = b"",
    ) -> None:
        """Takes over what a join says.

        Args:
            request: the join.
            terms: those of the request.
            host: where it came from.
            identity: whom the member belongs to from now on; empty: nobody.
            secret_hash: what is to be kept of its secret; empty: nothing.
            process_id: which process says that it can be in an incremental group; empty: none does.
        """
        self._record = self._participant = None
        self.identity = identity
        self._lock_with(secret_hash)
        self.client_id = request.client_id
        self.host = host
        self._agree(terms)
        self.process_id = process_id
        self.join_seq = request.member_seq

    def _lock_with(self, secret_hash: bytes) -> None:
        if secret_hash != self.lock.secret_hash:
            self.lock = lock_of(secret_hash)

    def _agree(self, terms: Terms) -> None:
        self.terms = terms
        self.session_timeout_ms = terms.session_timeout_ms

    def adopt(self, recorded: records_pb2.Member) -> None:
        """Takes over what a record says; nothing of the record is kept."""
        self._record = self._participant = None
        self.group_instance_id = recorded.group_instance_id
        self.client_id = recorded.client_id
        self.host = recorded.host
        self.identity = recorded.identity
        self._lock_with(recorded.secret_hash)
        self._agree(terms_of_record(recorded))
        self.process_id = recorded.process_id
        self.join_seq = recorded.member_seq
        self._note_recorded()

    def keep(self, recorded: records_pb2.Member) -> None:
        """Notes the latest record that was made of the member as it is; the one before it can go."""
        self._record = recorded
        self._note_recorded()

    def _note_recorded(self) -> None:
        self.recorded = True
        self.recorded_join_seq, self.recorded_process_id = self.join_seq, self.process_id
        self.recorded_weight = self.terms.weight or 1

    def goes_on_as(self, recorded: records_pb2.Member) -> bool:
        """Takes over a record that says of it what the one before did, but for the number of a later join.

        Returns:
            False: more is new, or that is not known cheaply; nothing was taken over.
        """
        own = self._record
        if own is None:
            return False
        if own is not recorded and own != recorded:
            if not is_later_join(recorded, own):
                return False
            self.join_seq = recorded.member_seq
        self.keep(recorded)
        return True

    def write(self, record: records_pb2.Member) -> None:
        """Fills an empty message of a record in; it must not be changed after that."""
        if self._record is not None and self._record.member_id == self.member_id:
            record.CopyFrom(self._record)
        else:
            record.CopyFrom(template_of(self.terms))
            record.member_id = self.member_id
            record.client_id = self.client_id
            record.host = self.host
            record.member_seq = self.join_seq
            if self.group_instance_id:
                record.group_instance_id = self.group_instance_id
            if self.identity:
                record.identity = self.identity
            if self.lock.secret_hash:
                record.secret_hash = self.lock.secret_hash
            if self.process_id:
                record.process_id = self.process_id
        self._record = record  # the latest: the record before it can go

    def to_record(self) -> records_pb2.Member:
        """The member as a record knows it."""
        record = records_pb2.Member()
        self.write(record)
        return record


def elected_protocol(members: Collection[Member]) -> str:
    """The protocol that most of these members prefer among those all support (JG-38).

    With equal votes Kafka takes the first in the order of its hash map, and so does this (JG-39): any fixed
    rule would do, but with this one a recorded broker can be the judge.

    Raises:
        ValueError: there are no members (conformance JG-40).
    """
    if not members:
        raise ValueError("there are no members to elect a protocol")
    lists = [member.terms.protocols.names for member in members]
    alike, counts = dict(zip(lists, members, strict=True)), Counter(lists)
    candidates = set.intersection(*(set(names) for names in alike))
    votes: Counter[str] = Counter()
    for names, member in alike.items():
        votes[member.vote(candidates)] += counts[names]
    return min(votes, key=lambda name: (-votes[name], java_map_bucket(name)))
