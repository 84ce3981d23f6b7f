"""Members on session streams: one beat for all of them, news pushed, grace when a stream breaks."""

from muster_protos.muster.v1 import session_pb2

from muster_core import error_code
from muster_core.context import ShardContext
from muster_core.events import Attach, Beat, Detach, Push, StreamBroken
from muster_core.group import Group
from muster_core.group_state import GroupState
from muster_core.member import Member
from muster_core.rebalance import Rebalancer


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
            group_id=request.group_id, member_id=request.member_id, shard_epoch=self._context.epoch
        )
        group = self._context.groups.get(request.group_id)
        fault = (
            error_code.UNKNOWN_MEMBER_ID
            if group is None
            else group.fault_of(request.member_id, request.group_instance_id, request.generation)
        )
        if group is None or fault is not None:
            result.error_code = fault if fault is not None else error_code.UNKNOWN_MEMBER_ID
        else:
            member = group.members[request.member_id]
            self._context.detach(member)
            member.stream_id = event.stream_id
            self._context.streams.setdefault(event.stream_id, {})[member] = group
            self._rebalancer.touch(group, member)
            if group.state is GroupState.PREPARING_REBALANCE:
                result.error_code = error_code.REBALANCE_IN_PROGRESS
        self._context.effects.pushes.append(Push(event.stream_id, result))

    def detach(self, event: Detach) -> None:
        """Takes a member off its stream, if it is on this one."""
        group = self._context.groups.get(event.request.group_id)
        member = group.members.get(event.request.member_id) if group is not None else None
        if member is not None and member.stream_id == event.stream_id:
            self._context.detach(member)

    def beat(self, event: Beat) -> None:
        """Everybody on the stream is alive: about a microsecond for each, and nothing is allocated."""
        now_ms = self._context.now.boot_ms
        for member, group in self._context.streams.get(event.stream_id, {}).items():
            timer = member.heartbeat
            deadline_ms = now_ms + member.session_timeout_ms
            if timer is None or member.suspect or not timer.armed or deadline_ms < timer.deadline_ms:
                self._rebalancer.touch(group, member)
            else:
                timer.deadline_ms = deadline_ms
                member.confirmed = True

    def broken(self, event: StreamBroken) -> None:
        """The stream is gone: its members expire after their grace unless they are heard of again."""
        for member, group in self._context.streams.pop(event.stream_id, {}).items():
            member.stream_id = None
            if event.suspect and member.disconnect_grace_ms:
                self._suspect(group, member)

    def _suspect(self, group: Group, member: Member) -> None:
        remaining_ms = self._rebalancer.remaining_ms(member)
        if remaining_ms is None or member.disconnect_grace_ms < remaining_ms:
            self._rebalancer.touch(group, member, member.disconnect_grace_ms)
        member.suspect = True
