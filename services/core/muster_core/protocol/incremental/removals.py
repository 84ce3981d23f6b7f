"""LeaveGroup in an incremental group: an operator takes members out."""

from functools import partial

from muster_protos.muster.v1.coordinator_pb2 import LeaveGroupRequest, LeaveGroupResponse

from muster_core import cause_kind, error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.upkeep import remove
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.protocol.bindings import may_leave
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.settings import assignors_of
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.incremental.topics import topics_of
from muster_core.record_bounds import is_one_append
from muster_core.state.group import Group

_TOO_MANY = "so many members at a time are more than the log takes; name fewer in a call"


class Removals:
    """Takes members out who did not leave by themselves, which they do with a heartbeat.

    Args:
        context: the shard.
        deadlines: the members' clocks.
        targets: how targets come about.
    """

    def __init__(self, context: ShardContext, deadlines: Deadlines, targets: Targets) -> None:
        self._context = context
        self._deadlines = deadlines
        self._targets = targets

    def leave(self, group: Group, call: Request, request: LeaveGroupRequest) -> None:
        """Answers when the log knows that the members are gone; each leaver has its own outcome.

        Whoever names a member by its instance id alone, and an operator by any id, puts it out. All else is
        answered as Kafka answers a LeaveGroup of a member of the other kind.
        """
        context, incremental = self._context, group.incremental
        assert incremental is not None
        response = LeaveGroupResponse(shard_epoch=context.epoch)
        leaving: dict[str, Member] = {}
        for leaver in request.members:
            member, code = self._find(group, incremental, leaver, call)
            if member is not None and member.member_id in leaving:
                member, code = None, error_code.UNKNOWN_MEMBER_ID
            if member is not None:
                leaving[member.member_id] = member
            response.members.add(
                member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=code
            )
        if not leaving:
            context.reply(call.call_id, response)
            return
        first = next(iter(leaving.values()))
        reason = next((leaver.reason for leaver in request.members if leaver.reason), "")
        left = first.told.classic_session_ms and not call.is_operator and request.members[0].member_id
        kind = cause_kind.LEFT if left else cause_kind.ADMIN
        cause = causes.by_member(kind, first, context.now.wall_ms, reason=reason)
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        assignors = assignors_of(context.room.assignors, group.settings)
        when = partial(self._targets.when, group)
        gone = [(member, cause) for member in leaving.values()]
        remove(decision, gone, topics_of(context.catalog), assignors, when)
        if not is_one_append(decision.records):  # a part of it would leave what is free to nobody
            context.refuse(call.call_id, error_code.INVALID_REQUEST, _TOO_MANY)
            return
        done = partial(self._gone, call, group, tuple(leaving), response)
        context.append(decision.records, done, holds=group, calls=[call.call_id])

    def _find(
        self, group: Group, incremental: IncrementalGroup, leaver: LeaveGroupRequest.Member, call: Request
    ) -> tuple[Member | None, ErrorCode]:
        member_id = leaver.member_id or incremental.statics.get(leaver.group_instance_id, "")
        member = incremental.members.get(member_id)
        if member is None:
            return None, error_code.UNKNOWN_MEMBER_ID
        if leaver.member_id and not call.is_operator:
            # only until it is heard of as an incremental member, which leaves by a heartbeat (INC-76)
            is_proven = self._context.proven_id(group, leaver, call) == member_id
            if not is_proven or not member.told.classic_session_ms:
                return None, error_code.UNKNOWN_MEMBER_ID
        if not may_leave(group, member_id, leaver, call):
            self._context.room.foreign(group.group_id, member_id, call.identity, call.host)
            return None, error_code.UNKNOWN_MEMBER_ID
        if leaver.group_instance_id and member.told.group_instance_id != leaver.group_instance_id:
            return None, error_code.FENCED_INSTANCE_ID
        return member, error_code.NONE

    def _gone(
        self, call: Request, group: Group, member_ids: tuple[str, ...], response: LeaveGroupResponse
    ) -> None:
        for member_id in member_ids:
            self._deadlines.follow(group, member_id)
        self._context.reply(call.call_id, response)
