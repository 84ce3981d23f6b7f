"""An owner's tenure of a shard: how it begins to serve, what a suspension stops, and how it ends."""

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Push, Unload
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.heartbeats import IncrementalHeartbeats
from muster_core.protocol.incremental.kinds.conversions import Conversions
from muster_core.protocol.incremental.stream_members import StreamMembers
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.responses import Owner
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.claims import Claims

SUSPENDED = "the coordinator cannot reach the log, so it is not sure that it still owns the group; try again"
MOVED = "another coordinator owns the group now"


class Tenure:
    """The time for which this process owns a shard.

    Attributes:
        suspended: whether it is not sure that it still does.
        unloaded: whether it has ended.
        successor: who owns the shard after it, once it has ended; None: that is not known.
    """

    def __init__(
        self,
        context: ShardContext,
        rebalancer: Rebalancer,
        incremental: IncrementalHeartbeats,
        deadlines: Deadlines,
        targets: Targets,
        stream_members: StreamMembers,
        conversions: Conversions,
    ) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._incremental = incremental
        self._deadlines = deadlines
        self._targets = targets
        self._stream_members = stream_members
        self._conversions = conversions
        self.suspended = False
        self.unloaded = False
        self.successor: common_pb2.Coordinator | None = None

    def begin(self) -> None:
        """Gives everybody a full session, and finishes what the last owner had begun."""
        for group_id in self._context.quarantine.groups & self._context.groups.keys():
            held = self._context.held[group_id] = self._context.groups.pop(group_id)
            held.count_in(self._context.holdings)
        for group in tuple(self._context.groups.values()):
            self._context.working_on = group
            self._deadlines.begin_anew(group)
            self._incremental.look_again(group)
            group.count_in(self._context.holdings)
            for member in group.members.values():
                self._rebalancer.touch(group, member)
                member.confirmed = False
                member.may_extend(self._context.now.boot_ms)
            self._finish_what_was_begun(group)
            self._conversions.follow(group)

    def _finish_what_was_begun(self, group: Group) -> None:
        """No group is left in a state that no timer would end (docs/safety.md, "Groups")."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            group.pending_sync = set(group.members)
            self._rebalancer.wait_for_syncs(group)
        elif group.state is GroupState.STABLE:
            claims = Claims(group.members.values(), self._context.config.max_partitions)
            given = {member.member_id: member.assignment for member in group.members.values()}
            self._rebalancer.wait_for_releases(group, dict.fromkeys(claims.unmet(given), b""))
        if group.unfinished is not None:
            self._rebalancer.prepare(group, group.unfinished)
        elif len(group.members) > self._context.config.max_size:
            size, limit = len(group.members), self._context.config.max_size
            self._rebalancer.prepare(group, causes.over_capacity(size, limit, self._context.now.wall_ms))

    def suspend(self) -> None:
        """Nothing is decided until the lease is sure again: calls are refused, deadlines are dropped."""
        self.suspended = True
        self._end_calls(error_code.COORDINATOR_NOT_AVAILABLE, SUSPENDED)
        self._targets.drop()
        for group in self._context.groups.values():
            self._context.working_on = group
            group.line.drop_deadlines()
            self._deadlines.suspend(group)
            for member in group.members.values():
                member.may_extend(self._context.now.boot_ms)

    def resume(self) -> None:
        """Deadlines start again as after a load: nobody could be heard meanwhile."""
        self.suspended = False
        for group in self._context.groups.values():
            self._context.working_on = group
            self._deadlines.begin_anew(group)
            for timer in group.pending_members.values():
                self._context.purgatory.wheel.arm(
                    timer, self._context.now.boot_ms + self._rebalancer.longest_session_ms(group)
                )
            for member in group.members.values():
                self._rebalancer.touch(group, member)
                member.confirmed = False
            self._rebalancer.restart_waits(group)

    def end(self, event: Unload) -> None:
        """The shard goes to another coordinator: callers and members on streams learn which."""
        self.unloaded = True
        self.successor = event.successor
        self._context.tell_news()  # who has not heard of it is on no stream and hears nothing else
        self._end_calls(error_code.NOT_COORDINATOR, MOVED, event.successor)
        for stream_id, members in self._context.streams.items():
            for member, group in members.items():
                self._context.working_on = group
                moved = session_pb2.CoordinatorMoved(
                    group_id=group.group_id, member_id=member.member_id, coordinator=event.successor
                )
                self._context.effects.pushes.append(Push(stream_id, moved))
        self._context.streams.clear()
        self._stream_members.unload(event.successor)
        for group in self._context.groups.values():
            self._context.working_on = group
            group.become(GroupState.DEAD, self._context.now.wall_ms)
        self._context.groups.clear()

    def _end_calls(self, code: ErrorCode, message: str, owner: Owner = None) -> None:
        """Answers every open call with an error."""
        for group in self._context.groups.values():
            self._context.working_on = group
            for member in group.members.values():
                self._context.refuse_join(group, member, code, message, owner)
                member.sync_call = None
        for call_id in tuple(self._context.calls):
            self._context.refuse(call_id, code, message, owner)
