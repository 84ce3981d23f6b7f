"""Members on session streams: one beat for all of them, news pushed, grace when a stream breaks."""

from muster_protos.muster.v1 import session_pb2

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Attach, Beat, Detach, Push, StreamBroken
from muster_core.protocol.bindings import belongs_to
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member


class Streams:
    """Which member is on which stream (docs/safety.md, "Session and disconnect grace").

    Args:
        context: the shard.
        rebalancer: prolongs sessions.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer

    def attach(self, event: Attach) -> None:
        """Puts a member on a stream; the answer is that of a heartbeat."""
        request = event.request
        result = session_pb2.AttachResult(
            group_id=request.group_id,
            member_id=request.member_id,
            error_code=self._attached(event),
            shard_epoch=self._context.epoch,
        )
        self._context.effects.pushes.append(Push(event.stream_id, result))

    def _attached(self, event: Attach) -> ErrorCode:
        stream_id, request = event.stream_id, event.request
        group = self._context.groups.get(request.group_id)
        if request.group_id in self._context.quarantine.groups:
            return error_code.GROUP_QUARANTINED
        if group is None:
            return error_code.UNKNOWN_MEMBER_ID
        if not belongs_to(group, request.member_id, event.identity):
            self._context.room.foreign(request.group_id, request.member_id, event.identity, event.host)
            return error_code.UNKNOWN_MEMBER_ID
        member_id = self._context.proven_id(group, request, event)
        fault = self._rebalancer.beat_fault(group, member_id, request.group_instance_id, request.generation)
        if fault is not None:
            return fault
        member = group.members[member_id]
        if member.stream_id != stream_id:
            # Beats there do not count any more. A client that came here from there does not hear it.
            self._context.fence(group, member, error_code.UNKNOWN_MEMBER_ID)
        self._context.detach(member)
        member.stream_id = stream_id
        member.sure_beat = 0
        if not event.knows_unsure:
            member.extended_until_ms = 0
        self._context.streams.setdefault(stream_id, {})[member] = group
        self._rebalancer.touch(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return error_code.REBALANCE_IN_PROGRESS
        return error_code.NONE

    def detach(self, event: Detach) -> None:
        """Takes a member off its stream, if it is on this one."""
        group = self._context.groups.get(event.request.group_id)
        member = group.members.get(event.request.member_id) if group is not None else None
        if member is not None and member.stream_id == event.stream_id:
            self._context.detach(member)

    def beat(self, event: Beat) -> None:
        """Everybody on the stream is alive: about a microsecond for each, and nothing is allocated."""
        context = self._context
        now_ms = context.now.boot_ms
        for member, group in context.streams.get(event.stream_id, {}).items():
            if member.extended_until_ms:
                member.confirm(event.number, event.acknowledged)
            timer = member.heartbeat
            deadline_ms = now_ms + member.session_timeout_ms
            if timer is not None and timer.armed and timer.deadline_ms <= deadline_ms:
                timer.deadline_ms = deadline_ms  # nearly always: what `touch` would do, without its calls
                member.confirmed = True
            else:
                context.working_on = group
                self._rebalancer.touch(group, member)

    def broken(self, event: StreamBroken) -> None:
        """The stream is gone: its members expire after their grace unless they are heard of again."""
        for member, group in self._context.streams.pop(event.stream_id, {}).items():
            self._context.working_on = group
            member.stream_id = None
            if event.suspect and 0 < member.terms.disconnect_grace_ms < member.session_timeout_ms:
                self._suspect(member, self._context.now.boot_ms - event.ago_ms)

    def _suspect(self, member: Member, broke_ms: int) -> None:
        """The session ends with the grace, if it did not end before (SES-07, SES-08, SES-23)."""
        timer = member.heartbeat
        if timer is None or not timer.armed:
            return  # a call of it is parked, so it is alive; or its session ended, and that waits in line
        grace_ends_ms = broke_ms + member.terms.disconnect_grace_ms
        promised_ms = max(member.promised_until_ms, member.extended_until_ms)
        ends_ms = min(timer.deadline_ms, max(grace_ends_ms, promised_ms))
        self._context.purgatory.wheel.arm(timer, ends_ms)
        member.suspect = True
