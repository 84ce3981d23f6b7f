"""Who a member is to its coordinator: seat, caller, and the news of a membership."""

import secrets
from dataclasses import dataclass, field
from typing import TypedDict

from muster_protos.limits import MEMBER_SECRET_MIN_BYTES
from muster_protos.muster.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class Seat:
    """A member id and a generation. Answers to calls made from another seat are dropped (KAFKA-9823).

    Attributes:
        member_id: empty until the coordinator has assigned one.
        generation: -1 until a join has been answered; of a member of an incremental group its epoch.
        join: number of the join of such a member; 0: it is no such member.
    """

    member_id: str = ""
    generation: int = -1
    join: int = 0


class CallerFields(TypedDict):
    """The fields by which a member's JoinGroup says who calls."""

    group_id: str
    group_instance_id: str
    member_secret: bytes


class MemberFields(CallerFields):
    """The fields by which a call, or an Attach, from a seat says who calls."""

    generation: int
    member_id: str


def _drawn() -> bytes:
    return secrets.token_bytes(MEMBER_SECRET_MIN_BYTES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a member is, whatever its seat. Its requests take these fields from here, all of them.

    Attributes:
        group_id: the group.
        group_instance_id: static id of the member; empty: dynamic.
        secret: what the member proves with that a call is its own, drawn when the member is made (SES-39).
    """

    group_id: str
    group_instance_id: str = ""
    secret: bytes = field(default_factory=_drawn, repr=False)

    @property
    def fields(self) -> CallerFields:
        """What a JoinGroup carries."""
        return {
            "group_id": self.group_id,
            "group_instance_id": self.group_instance_id,
            "member_secret": self.secret,
        }

    def fields_at(self, seat: Seat) -> MemberFields:
        """What a call from a seat carries."""
        return {**self.fields, "generation": seat.generation, "member_id": seat.member_id}


@dataclass(frozen=True, slots=True)
class Pulse:
    """News of a membership: the answer to a beat, or what the server pushed.

    Attributes:
        seat: the membership.
        code: an error code; NONE: all is well.
        sent_ms: boot time at which the answered beat was sent; 0: no beat was answered.
        cause: why the group rebalances, if the server said so.
        message: explanation for people.
        repeat: the beat did not count and is to be repeated.
        hurry: it may be repeated at once.
        on_stream: the membership is kept alive on a session stream; False: by calls of its own.
        unsure: the coordinator is unsure of its lease; nobody else gets the partitions while the session
            lasts.
    """

    seat: Seat
    code: int
    sent_ms: int
    cause: common_pb2.RebalanceCause | None = None
    message: str = ""
    repeat: bool = False
    hurry: bool = False
    on_stream: bool = False
    unsure: bool = False
