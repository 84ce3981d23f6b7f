"""Whom a member belongs to: nobody else acts for it (docs/safety.md, "Who may do what")."""

from collections.abc import Mapping
from typing import Any

from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import JoinGroupRequest, LeaveGroupRequest
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.state.group import Group
from muster_core.state.members.member import Member

NOT_YOURS = "the member, or the instance id, belongs to another identity than the caller's"

_OF_A_MEMBER = {
    coordinator_pb2.HeartbeatRequest: False,
    coordinator_pb2.OffsetCommitRequest: False,
    coordinator_pb2.SyncGroupRequest: False,
    JoinGroupRequest: True,
    ConsumerGroupHeartbeatRequest: True,
}
"""Calls of a member, and whether one with an instance id may get the place of the member that has it."""


def belongs_to(group: Group, member_id: str, identity: str) -> bool:
    """Whether an identity may act for a member, or use an id that was given out.

    So it is with one that belongs to nobody, because no identity was known when it joined; and with one that
    does not exist.
    """
    owner = group.identity_of(member_id)
    return not owner or owner == identity


def fault_of_identity(groups: Mapping[str, Group], call: Request) -> ErrorCode | None:
    """Why a call is refused because it is made for a member of another identity; None: it is not.

    An id of another is answered as one that nobody has. Who wants the place of another's static member is
    told that it is taken.
    """
    request: Any = call.message
    joins = _OF_A_MEMBER.get(type(request))
    if joins is None:
        return None
    group = groups.get(request.group_id)
    if group is None:
        return None
    if not belongs_to(group, request.member_id, call.identity):
        return error_code.UNKNOWN_MEMBER_ID
    if joins and request.group_instance_id:
        present = group.holder_of(request.group_instance_id)
        if not belongs_to(group, present, call.identity):
            return error_code.FENCED_INSTANCE_ID
    return None


def may_leave(group: Group, member_id: str, leaver: LeaveGroupRequest.Member, call: Request) -> bool:
    """Whether a caller may take a member out of its group.

    Its own identity may, and an operator. Where nobody says who is one, whoever names the member by its
    instance id alone counts as one (conformance LG-09).
    """
    if call.is_operator or (call.is_operator is None and not leaver.member_id):
        return True
    return belongs_to(group, member_id, call.identity)


def identity_of_join(call: Request, features: frozenset[Feature], before: Member | None) -> str:
    """Whom a member belongs to after a join; one that belongs to somebody keeps to that.

    Args:
        call: the join, of an identity that may act for the member.
        features: what the cluster has enabled.
        before: the member, or the one whose place it takes; None: it is new.
    """
    if before is not None and before.identity:
        return before.identity
    return call.identity if Feature.MEMBER_IDENTITY in features else ""
