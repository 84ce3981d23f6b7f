"""One JoinGroup while it is played: its terms, its size in a record, and the ids that it may be given."""

from hashlib import sha256
from uuid import UUID

from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.v1.coordinator_pb2 import JoinGroupRequest

from muster_core.events import Request
from muster_core.record_bounds import cut_to_bytes, utf8_bytes
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_core.state.members.member_secret import hash_of
from muster_core.state.members.terms import Terms, terms_of_join

_NAME_MAX_BYTES = ID_MAX_BYTES - 1 - 36
"""What a member id has before its UUID."""

_ID_BYTES = 192  # a generated id, an address and the framing of the member in a record


class JoinCall:
    """A JoinGroup whose often used fields are read from the wire once.

    Args:
        call: the call.
        request: its message.

    Attributes:
        member_id: the id that it counts for: at first the one that it names.
        group_instance_id: static id; empty: a dynamic member.
        protocol_type: see the request.
        terms: what it says of the member.
        process_id: which process says that the member can be in an incremental group; empty: none does.
        secret_hash: of the secret that it brings; empty: it brings none.
        size_bytes: about what it makes a member take in a record.
    """

    __slots__ = (
        "call",
        "group_instance_id",
        "member_id",
        "process_id",
        "protocol_type",
        "request",
        "secret_hash",
        "size_bytes",
        "terms",
    )

    def __init__(self, call: Request, request: JoinGroupRequest) -> None:
        self.call = call
        self.request = request
        self.member_id: str = request.member_id
        self.group_instance_id: str = request.group_instance_id
        self.protocol_type: str = request.protocol_type
        self.terms: Terms = terms_of_join(request)
        self.process_id = request.process_id if request.member_seq else b""
        self.secret_hash = hash_of(request.member_secret)
        ids_bytes = 2 * utf8_bytes(self.group_instance_id + request.client_id + request.client_version)
        ids_bytes += utf8_bytes(call.identity)
        self.size_bytes = (
            _ID_BYTES
            + ids_bytes
            + len(self.secret_hash)
            + len(self.process_id)
            + self.terms.protocols.size_bytes
        )

    def is_retry(self, member: Member) -> bool:
        """Whether the log already has the outcome of this very join of a member."""
        member_seq = self.request.member_seq
        return member_seq != 0 and member_seq == member.recorded_join_seq

    def knows(self, group: Group, member_id: str) -> bool:
        """Whether it brings the secret of a member, or of who was given the id."""
        return group.lock_of(member_id).is_opened_by(self.request.member_secret)

    def made_id(self, name: str, group: Group) -> str:
        """A member id that begins with a name, or with as much of it as an id has room for."""
        return f"{cut_to_bytes(name, _NAME_MAX_BYTES)}-{self._uuid(group)}"

    def _uuid(self, group: Group) -> UUID:
        """A UUID of two halves: made from the join's own id, by which a retry is known; and drawn.

        So an id is never made a second time, not even for a retry that comes when the member is gone.
        """
        own = self.request.request_id or self.call.draw
        halves = (f"{group.group_id}\0{own}", f"{group.group_id}\0{own}\0{self.call.draw}")
        return UUID(bytes=b"".join(sha256(half.encode()).digest()[:8] for half in halves), version=4)
