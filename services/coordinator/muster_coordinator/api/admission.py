"""Whether a caller may make a call now: what its quotas, and those of the group's prefix, still have."""

import asyncio
from collections.abc import Callable
from typing import Any

from muster_core.events import GroupRequest, group_of
from muster_core.state.group import Group
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest
from muster_runtime.rpc.quotas import Connection, Quota, Quotas, current_connection

from muster_coordinator.api.named import NAMED_MAX, may_answer_more, named

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


Ended = Callable[[], None]
"""Called once a call was answered, or given up."""

Admit = Callable[[Connection | None, GroupRequest, int], Ended | None]
"""Counts a call of a connection, given its size in bytes; raises `ResourceExhausted`.

It returns what is called at the end of the call; None: nothing is."""


FEW_PARTITIONS = 10
"""A call that names no more takes about as long as one that names none."""

GIVEN_UP_S = 5.0
"""What a call has brought may be on its way to the log for so long after its caller has given it up."""


def end_later(ended: Ended) -> None:
    """Ends a call that was given up, in the running event loop."""
    asyncio.get_running_loop().call_later(GIVEN_UP_S, ended)


def admit_all(_connection: Connection | None, _request: GroupRequest, _size_bytes: int) -> Ended | None:
    """Refuses nothing."""
    return None


class Admission:
    """Counts what calls of the group protocol ask for, before the core sees them.

    Calls and bytes of the caller are counted where they come in.

    Args:
        quotas: of the server.
        is_here: whether the shard of a group is loaded, so that it is known what the group has.
        is_new: whether a group does not exist, as far as this process is the one that knows.
        group_of: a group that is here.
        may: whether the caller of now may make a call: who may not takes nothing from the group's quota.
        begins: called with whoever begins a group, by name, and the group; the call may still be refused.
    """

    def __init__(
        self,
        quotas: Quotas,
        is_here: Callable[[str], bool],
        is_new: Callable[[str], bool],
        group_of: Callable[[str], Group | None],
        may: Callable[[GroupRequest], bool],
        begins: Callable[[str, str], None],
    ) -> None:
        self._quotas = quotas
        self._is_here = is_here
        self._is_new = is_new
        self._group_of = group_of
        self._may = may
        self._begins = begins

    def admit(self, connection: Connection | None, request: GroupRequest, size_bytes: int) -> Ended | None:
        """Counts a call.

        Returns:
            What is called at its end, where it may add to what somebody has in all; None: nothing is.

        Raises:
            ResourceExhausted: it is too much; nothing of it was done.
        """
        partitions = named(request)
        if partitions <= NAMED_MAX:
            return self._admit(connection, request, size_bytes, partitions)
        if connection is not None:
            connection.owe_partitions(partitions)
        return None  # it is refused for that, and took long to decode

    def admit_late(self, request: GroupRequest) -> Ended | None:
        """As `admit`, in the task of a call that has waited for a load: what it begins, or adds."""
        return self._admit(current_connection(), request, None, 0)

    def _admit(
        self, connection: Connection | None, request: GroupRequest, size_bytes: int | None, partitions: int
    ) -> Ended | None:
        """See `admit`.

        Args:
            connection: of the call.
            request: the call.
            size_bytes: of the call; None: it was counted, but for what it begins or adds.
            partitions: what counts as partitions of what it names.
        """
        quotas = self._quotas
        is_commit = isinstance(request, coordinator_pb2.OffsetCommitRequest) and size_bytes is not None
        begins = self._begins_group(request)
        may_begin = begins and self._may(request)
        group_id = group_of(request)
        if begins:
            party = None if connection is None else connection.party
            quotas.may_have_group(party, group_id, counts_for_prefix=may_begin)
        begun_by = connection.party.name if begins and connection is not None else ""
        adds = self._check_totals(request, begun_by)
        if partitions <= FEW_PARTITIONS:
            partitions = 0  # nearly always: it counts as a call
        if connection is not None:
            if partitions or (size_bytes is not None and may_answer_more(request)):
                connection.take_partitions(partitions)
            if is_commit:
                connection.take(Quota.COMMITS)
            if begins:
                connection.take(Quota.NEW_GROUPS)
        if quotas.has_groups and _is_of_a_group(request) and (may_begin or self._may(request)):
            if size_bytes is not None:
                self._take_of_group(group_id, size_bytes, partitions, is_commit=is_commit)
            if begins:
                quotas.take_of_groups(Quota.NEW_GROUPS, group_id, 1)
        if may_begin:
            self._begins("" if connection is None else connection.party.name, group_id)
        return None if adds is None else quotas.expect(*adds)

    def _take_of_group(self, group_id: str, size_bytes: int, partitions: int, *, is_commit: bool) -> None:
        quotas = self._quotas
        quotas.take_of_groups(Quota.CALLS, group_id, 1)
        quotas.take_of_groups(Quota.BYTES, group_id, size_bytes)
        if partitions:
            quotas.take_of_groups(Quota.PARTITIONS, group_id, partitions)
        if is_commit:
            quotas.take_of_groups(Quota.COMMITS, group_id, 1)

    def _check_totals(self, request: GroupRequest, begun_by: str) -> tuple[Quota, str, int, str] | None:
        """Whoever the group counts for has room for the members or partitions that a call would add to it.

        Returns:
            What it may add, for `Quotas.expect`; None: nothing.
        """
        if isinstance(request, coordinator_pb2.OffsetCommitRequest):
            quota, most = Quota.TOTAL_PARTITIONS, sum([len(topic.partitions) for topic in request.topics])
        elif _may_join(request):
            quota, most = Quota.TOTAL_MEMBERS, 1
        else:
            return None
        group_id = group_of(request)
        if not self._is_here(group_id):
            return None  # it is counted when that is loaded
        if self._quotas.full_with(quota, group_id, most, begun_by) is None:
            return quota, group_id, most, begun_by  # nearly always, without a look at each partition
        more = _added(request, self._group_of(group_id))
        full = self._quotas.full_with(quota, group_id, more, begun_by) if more else None
        if full is not None and self._may(request):
            raise full.refusal(quota, full.now_s())
        return (quota, group_id, more, begun_by) if more else None

    def _begins_group(self, request: GroupRequest) -> bool:
        """Whether it may make a group: a first join, a commit of nobody's member, or settings."""
        if isinstance(request, coordinator_pb2.JoinGroupRequest):
            return not request.member_id and self._is_new(request.group_id)
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            return not request.member_epoch and self._is_new(request.group_id)
        if isinstance(request, AlterGroupSettingsRequest):
            return self._is_new(request.group_id)
        if isinstance(request, coordinator_pb2.OffsetCommitRequest):
            named = request.member_epoch if request.HasField("member_epoch") else request.generation
            return named < 0 and self._is_new(request.group_id)
        return False


def _may_join(request: GroupRequest) -> bool:
    """Whether a call may bring a member."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return not request.member_epoch
    return isinstance(request, coordinator_pb2.JoinGroupRequest)


def _added(request: Any, group: Group | None) -> int:
    """How many partitions a commit adds to what is stored of a group, or members a join."""
    if isinstance(request, coordinator_pb2.OffsetCommitRequest):
        named = {(topic.name, entry.partition) for topic in request.topics for entry in topic.partitions}
        return len(named) if group is None else sum([one not in group.offsets.table for one in named])
    if group is None:
        return 1
    member_id, instance_id = request.member_id, getattr(request, "group_instance_id", "")
    incremental = group.incremental
    known = (
        group.member_of(member_id, instance_id) is not None
        or group.holder_of(instance_id)
        or (incremental is not None and member_id in incremental.members)
    )
    return 0 if known else 1


def _is_of_a_group(request: GroupRequest) -> bool:
    """Whether a call counts for its group's prefix; who beats an incremental group joins or leaves by it."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return request.member_epoch <= 0
    return isinstance(request, _OF_A_GROUP)
