"""Whose commits and fetches count in an incremental group (conformance OV-01 to OV-25)."""

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.state.group import Group


def fault_of_commit(group: Group, member_id: str, epoch: int) -> ErrorCode | None:
    """Why a commit is not accepted; None: it is."""
    if group.incremental is None:
        return error_code.GROUP_ID_NOT_FOUND if epoch >= 0 else error_code.UNKNOWN_MEMBER_ID
    if epoch < 0 and not group.incremental.members:
        return None  # from outside
    return _fault_of_member(group, member_id, epoch)


def fault_of_fetch(group: Group, member_id: str | None, epoch: int) -> ErrorCode | None:
    """Why a fetch is not answered; None: it is."""
    if group.incremental is None or (member_id is None and epoch < 0):
        return None
    return _fault_of_member(group, member_id or "", epoch)


def _fault_of_member(group: Group, member_id: str, epoch: int) -> ErrorCode | None:
    assert group.incremental is not None
    member = group.incremental.members.get(member_id)
    if member is None:
        return error_code.UNKNOWN_MEMBER_ID
    return None if member.epoch == epoch else error_code.STALE_MEMBER_EPOCH
