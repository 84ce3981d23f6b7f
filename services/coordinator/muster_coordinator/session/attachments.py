"""How members come onto a session stream, stay on it by its beats, and go off it."""

from collections.abc import Callable

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Attach, Detach, StreamPlace
from muster_protos.limits import ID_MAX_BYTES, MEMBER_SECRET_MAX_BYTES
from muster_protos.muster.v1 import common_pb2, session_pb2
from muster_runtime.rpc.identity import current_identity

from muster_coordinator.session.calls import CallWatch, ProtocolBroken
from muster_coordinator.session.dependencies import OpenStream, StreamDependencies
from muster_coordinator.session.members import MemberKey, Unheard
from muster_coordinator.shard.owned_shard import OwnedShard

MAX_MEMBERS = "session_max_members"
"""The limit of members on a stream, by the name of its setting."""

_SMALL_BYTES = 64


class Attachments:
    """Puts members on one stream and takes them off, as its client and their shards say.

    Args:
        stream: the stream.
        host: address of the client.
        around: what all streams share.
        watch: counts the beats.
        frame: gives a frame of about so many bytes to write an answer into.

    Attributes:
        knows_unsure: whether the client lives on when it hears that its coordinator is unsure of its lease.
    """

    def __init__(
        self,
        stream: OpenStream,
        host: str,
        around: StreamDependencies,
        watch: CallWatch,
        frame: Callable[[int], session_pb2.ServerFrame],
    ) -> None:
        self.knows_unsure = False
        self._stream = stream
        self._members = stream.members
        self._host = host
        self._around = around
        self._watch = watch
        self._frame = frame
        self._beat_number = 0
        self._rights_version = around.calls.rights.version

    # --- what the client says

    def attach(self, request: session_pb2.Attach) -> None:
        """Asks the shard of a member to put it on the stream; answers if it cannot be asked."""
        key = (request.group_id, request.member_id)
        if not request.group_id:
            self._not_attached(request, error_code.INVALID_GROUP_ID)
        elif (
            not all(map(is_id, (*key, request.group_instance_id)))
            or len(request.member_secret) > MEMBER_SECRET_MAX_BYTES
        ):
            self._not_attached(request, error_code.INVALID_REQUEST)
        elif not self._around.calls.rights.may_join(request.group_id, self._host):
            self._not_attached(request, error_code.GROUP_AUTHORIZATION_FAILED)
        elif not self.has_room_for(key):
            self._not_attached(request, error_code.INVALID_REQUEST)
        else:
            shard = self._around.calls.locate(request.group_id)
            if shard is None:
                self._not_attached(request, error_code.COORDINATOR_NOT_AVAILABLE)
            elif isinstance(shard, common_pb2.Coordinator):
                self._not_attached(request, error_code.NOT_COORDINATOR, shard.shard_epoch, shard)
            else:
                who = current_identity().name
                code = shard.attach(
                    Attach(self._stream.stream_id, request, self.knows_unsure, who, self._host)
                )
                if code != error_code.NONE:
                    unsure = self._is_unsure(shard)
                    self._not_attached(request, code, shard.epoch, shard.successor, unsure=unsure)

    def _is_unsure(self, shard: OwnedShard) -> bool:
        """Whether to say `unsure` to members of a shard.

        Its core is suspended, so it counts that from now on they may live for their sessions (SES-24).
        """
        return self.knows_unsure and shard.suspended and self._around.says_unsure()

    def _not_attached(
        self,
        request: session_pb2.Attach,
        code: ErrorCode,
        shard_epoch: int = 0,
        owner: common_pb2.Coordinator | None = None,
        *,
        unsure: bool = False,
    ) -> None:
        result = self._frame(_SMALL_BYTES + request.ByteSize()).attach_result
        result.unsure = unsure
        result.group_id = request.group_id
        result.member_id = request.member_id
        result.error_code = code
        result.shard_epoch = shard_epoch
        if owner is not None and code == error_code.NOT_COORDINATOR:
            result.coordinator.CopyFrom(owner)

    def detach(self, request: session_pb2.Detach) -> None:
        """Takes a member off that the client makes no beats for any more."""
        shard = self._members.remove((request.group_id, request.member_id))
        if shard is not None:
            self._around.places.pop((request.group_id, request.member_id), None)
            shard.notify(Detach(self._stream.stream_id, request))

    def beat(self, beat: session_pb2.Beat) -> None:
        """Prolongs the sessions of all members, and answers with those that it does not count for.

        Raises:
            ProtocolBroken: its number does not follow.
        """
        if beat.number <= self._beat_number:
            raise ProtocolBroken("beat.number: must grow with each beat, from 1")
        self._beat_number = beat.number
        self._watch.beat()
        unheard = self._revoked()
        unheard += self._members.beat(beat.number, beat.acknowledged)
        if not self._around.may_answer(self._around.boot_ms()):
            unheard = self._members.suspend()
        names = sum(len(group_id) + len(member_id) for (group_id, member_id), _, _ in unheard)
        ack = self._frame(_SMALL_BYTES * (1 + len(unheard)) + names).beat_ack
        ack.number = beat.number
        for (group_id, member_id), code, shard in unheard:
            missed = ack.unheard.add(group_id=group_id, member_id=member_id, error_code=code)
            if self._is_unsure(shard):
                missed.unsure = True
                missed.shard_epoch = shard.epoch

    def _revoked(self) -> list[Unheard]:
        """Members that lost the right to be in their groups since the last beat; they are off the stream."""
        rights = self._around.calls.rights
        if self._rights_version == rights.version:
            return []
        self._rights_version = rights.version
        lost = self._members.revoked(lambda key: rights.may_stay(*key, self._host))
        for unheard in lost:
            self._around.places.pop(unheard.key, None)
        return lost

    # --- what its calls, its shards and its end say

    def place(self, connection: int) -> StreamPlace:
        """Where a member of an incremental group is that makes a call on the stream."""
        return StreamPlace(self._stream.stream_id, connection, self.knows_unsure)

    def has_room_for(self, key: MemberKey) -> bool:
        """Whether one more member may be on the stream, or this one is; counts it if not."""
        has_room = len(self._members) < self._around.settings.max_members or key in self._members
        if not has_room:
            self._around.refused(MAX_MEMBERS)
        return has_room

    def forget(self, key: MemberKey) -> None:
        """A member is not on the stream any more."""
        self._members.remove(key)
        if self._around.places.get(key) is self._stream:
            del self._around.places[key]

    def attached(self, shard: OwnedShard, key: MemberKey) -> None:
        """A shard has put a member on the stream; on another one it is no more."""
        before = self._around.places.get(key)
        if before is not None and before is not self._stream:
            before.members.remove(key)
        self._around.places[key] = self._stream
        self._members.add(shard, key)

    def broken(self, *, suspect: bool, ago_ms: int) -> None:
        """Takes all members off: the stream is over; see `StreamMembers.broken`."""
        for key in self._members:
            if self._around.places.get(key) is self._stream:
                del self._around.places[key]
        self._members.broken(suspect=suspect, ago_ms=ago_ms)


def is_id(text: str) -> bool:
    """Whether a text is short enough for an id."""
    return len(text) <= ID_MAX_BYTES and len(text.encode("utf-8", "surrogatepass")) <= ID_MAX_BYTES
