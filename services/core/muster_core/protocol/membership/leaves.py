"""LeaveGroup: members that go of their own accord, or are put out by an operator."""

from muster_protos.muster.v1.coordinator_pb2 import LeaveGroupRequest, LeaveGroupResponse

from muster_core import cause_kind, error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.protocol.bindings import may_leave
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.removals import Removals
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member


class Leaves:
    """Handles LeaveGroup: several members, one check for a rebalance at the end (conformance LG-17).

    Args:
        context: the shard.
        rebalancer: takes members out.
        removals: takes members of incremental groups out.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer, removals: Removals) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._removals = removals

    def handle(self, call: Request, request: LeaveGroupRequest) -> None:
        """Answers when the log knows that the members are gone."""
        if not request.group_id:
            self._context.refuse(call.call_id, error_code.INVALID_GROUP_ID, "group_id is empty")
            return
        response = LeaveGroupResponse(shard_epoch=self._context.epoch)
        group = self._context.groups.get(request.group_id)
        if group is None:
            for leaver in request.members:
                _note(response, leaver, error_code.UNKNOWN_MEMBER_ID)
            self._context.reply(call.call_id, response)
        elif self._context.lines.call_in_line(group, call):
            return
        elif group.incremental is not None and group.incremental.members:
            self._removals.leave(group, call, request)
        else:
            self._leave(group, call, request, response)

    def _leave(
        self, group: Group, call: Request, request: LeaveGroupRequest, response: LeaveGroupResponse
    ) -> None:
        leaving: dict[str, tuple[Member, LeaveGroupRequest.Member]] = {}
        unused: LeaveGroupRequest.Member | None = None
        for leaver in request.members:
            member_id = leaver.member_id
            if not member_id and leaver.group_instance_id:
                member_id = group.static_members.get(
                    leaver.group_instance_id, ""
                )  # removal by instance (LG-09)
            elif member_id and not call.is_operator:
                member_id = self._context.proven_id(group, leaver, call)
            if not may_leave(group, member_id, leaver, call):
                self._context.room.foreign(group.group_id, member_id, call.identity, call.host)
                _note(response, leaver, error_code.UNKNOWN_MEMBER_ID)
                continue
            timer = group.take_back(member_id) if not leaver.group_instance_id else None
            if timer is not None:
                self._context.purgatory.wheel.cancel(timer)
                unused = unused or leaver
                _note(response, leaver, error_code.NONE)
                continue
            fault = group.identity_fault(member_id, leaver.group_instance_id)
            if fault is None and member_id in leaving:
                fault = error_code.UNKNOWN_MEMBER_ID
            if fault is None:
                leaving[member_id] = (group.members[member_id], leaver)
            _note(response, leaver, error_code.NONE if fault is None else fault)
        if leaving:
            first, leaver = next(iter(leaving.values()))
            kind = cause_kind.LEFT if leaver.member_id else cause_kind.ADMIN
            cause = causes.by_member(kind, first, self._context.now.wall_ms, leaver.reason, len(leaving) - 1)
            members = [member for member, _ in leaving.values()]
            self._rebalancer.remove_members(
                group, members, cause, [call.call_id], lambda: self._context.reply(call.call_id, response)
            )
            return
        self._context.reply(call.call_id, response)
        if unused is not None and group.state is not GroupState.EMPTY:
            # as Kafka 4.1 does: also the leaving of one that never came starts a rebalance
            cause = causes.by_member(
                cause_kind.LEFT, Member(unused.member_id), self._context.now.wall_ms, unused.reason
            )
            self._rebalancer.prepare(group, cause)


def _note(response: LeaveGroupResponse, leaver: LeaveGroupRequest.Member, code: ErrorCode) -> None:
    response.members.add(
        member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=code
    )
