"""Whether a caller may make a call now: what its quotas, and those of the group's prefix, still have."""

from collections.abc import Callable

from muster_core.events import GroupRequest, group_of
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest
from muster_runtime.rpc.quotas import Connection, Quota, Quotas

_OF_A_GROUP = (  # no heartbeats: one that others have used up is a member that is put out
    coordinator_pb2.JoinGroupRequest,
    coordinator_pb2.SyncGroupRequest,
    coordinator_pb2.LeaveGroupRequest,
    coordinator_pb2.OffsetCommitRequest,
    coordinator_pb2.OffsetDeleteRequest,
    coordinator_pb2.GroupHistoryRequest,
    AlterGroupSettingsRequest,
    ConvertGroupRequest,
)


Admit = Callable[[Connection | None, GroupRequest, int], None]
"""Counts a call of a connection, given its size in bytes; raises `ResourceExhausted`."""


def admit_all(_connection: Connection | None, _request: GroupRequest, _size_bytes: int) -> None:
    """Refuses nothing."""


class Admission:
    """Counts what calls of the group protocol ask for, before the core sees them.

    Calls and bytes of the caller are counted where they come in.

    Args:
        quotas: of the server.
        is_new: whether a group does not exist, as far as this process is the one that knows.
        may: whether the caller of now may make a call: who may not takes nothing from the group's quota.
    """

    def __init__(
        self,
        quotas: Quotas,
        is_new: Callable[[str], bool],
        may: Callable[[GroupRequest], bool] = lambda _: True,
    ) -> None:
        self._quotas = quotas
        self._is_new = is_new
        self._may = may

    def admit(self, connection: Connection | None, request: GroupRequest, size_bytes: int) -> None:
        """Counts a call.

        Raises:
            ResourceExhausted: it is too much; nothing of it was done.
        """
        quotas = self._quotas
        is_commit = isinstance(request, coordinator_pb2.OffsetCommitRequest)
        begins = self._begins_group(request)
        may_begin = begins and self._may(request)
        group_id = group_of(request)
        if begins:
            party = None if connection is None else connection.party
            quotas.may_have_group(party, group_id, counts_for_prefix=may_begin)
        if connection is not None:
            if is_commit:
                connection.take(Quota.COMMITS)
            if begins:
                connection.take(Quota.NEW_GROUPS)
        if quotas.has_groups and _is_of_a_group(request) and (may_begin or self._may(request)):
            quotas.take_of_groups(Quota.CALLS, group_id, 1)
            quotas.take_of_groups(Quota.BYTES, group_id, size_bytes)
            if is_commit:
                quotas.take_of_groups(Quota.COMMITS, group_id, 1)
            if begins:
                quotas.take_of_groups(Quota.NEW_GROUPS, group_id, 1)
        if may_begin:
            quotas.has_group("" if connection is None else connection.party.name, group_id)

    def _begins_group(self, request: GroupRequest) -> bool:
        """Whether it may make a group: a first join, a commit of nobody's member, or settings."""
        if isinstance(request, coordinator_pb2.JoinGroupRequest):
            return not request.member_id and self._is_new(request.group_id)
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            return not request.member_epoch and self._is_new(request.group_id)
        if isinstance(request, AlterGroupSettingsRequest):
            return self._is_new(request.group_id)
        if isinstance(request, coordinator_pb2.OffsetCommitRequest):
            return request.generation < 0 and self._is_new(request.group_id)
        return False


def _is_of_a_group(request: GroupRequest) -> bool:
    """Whether a call counts for its group's prefix; who beats an incremental group joins or leaves by it."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return request.member_epoch <= 0
    return isinstance(request, _OF_A_GROUP)
