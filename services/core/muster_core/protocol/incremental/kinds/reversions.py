"""An incremental group becomes a classic one while its members work (docs/safety.md, INC-150 to INC-157)."""

from collections.abc import Callable, Collection
from functools import partial

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from muster_core import cause_kind, error_code
from muster_core.events import Request
from muster_core.incremental import causes
from muster_core.incremental.decisions.request import LEAVE, Refused
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY, Told
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes as classic_causes
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.settings import grace_ms_of
from muster_core.protocol.incremental.stream_members import StreamMembers
from muster_core.protocol.incremental.targets import Targets
from muster_core.record_bounds import is_one_append
from muster_core.state.group import Group
from muster_core.state.group_settings import convert_of

IS_CLASSIC = "the group is a classic one now; the member goes on with JoinGroup"
_OTHER_JOIN = "the request is of another join of the member"


class Reversions:
    """Makes incremental groups classic whose members can all be that.

    Args:
        context: the shard.
        rebalancer: begins what follows.
        deadlines: the members' clocks as incremental ones, which stop.
        streams: which of them are on streams.
        targets: how targets come about.
    """

    def __init__(
        self,
        context: ShardContext,
        rebalancer: Rebalancer,
        deadlines: Deadlines,
        streams: StreamMembers,
        targets: Targets,
    ) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._deadlines = deadlines
        self._streams = streams
        self._targets = targets
        context.application.on_reverted = self._end_incremental

    # --- when

    def fault_of(self, group: Group, newcomer: Collection[str] = ()) -> str:
        """Why a group cannot be classic again, for people; empty: it can (INC-150).

        Args:
            group: the group.
            newcomer: protocols of the classic client that comes, by name; none: none comes.
        """
        incremental = group.incremental
        if incremental is None or not incremental.members:
            return "the group is no incremental one with members"
        for member in incremental.in_order():
            if not member.told.can_be_classic or not member.told.is_numbered:
                return f"member {member.member_id} can only be in an incremental group"
            if not member.told.classic_protocols:
                return f"member {member.member_id} did not say what it can use in a classic group"
        if fault := _without_protocol(incremental, newcomer):
            return fault
        names = {topic for topic, _ in incremental.owners}
        is_stale = any(  # given back or not: an owner's commits would count again
            member.is_stale(partition, incremental.renewed)
            for member in (incremental.members.values() if incremental.renewed else ())
            for partition in member.held
        )
        if is_stale or any(not names.isdisjoint(topics) for topics in self._context.deletions):
            return "a topic was deleted of which members still have partitions; they give them back first"
        return ""

    def fault_of_join(self, group: Group, protocols: Collection[str]) -> str:
        """Why a classic member that joins with protocols does not make a group classic; empty: it does."""
        policy = convert_of(group.settings, self._context.config)
        if policy != "auto":
            return f"it stays one where convert is {policy}; an operator can make it classic (ConvertGroup)"
        return self.fault_of(group, protocols)

    # --- how

    def revert(self, group: Group, cause: causes.Cause, then: Callable[[], None], call: Request) -> str:
        """Stores the record; the rebalance begins with it.

        Args:
            group: a group of which `fault_of` says nothing, and of which nothing is in flight.
            cause: why.
            then: what follows.
            call: what waits for it.

        Returns:
            Why it cannot be stored, for people; empty: it is on its way.
        """
        incremental = group.incremental
        assert incremental is not None
        record = self._record_of(group, incremental, cause)
        if not is_one_append([record]):
            return "its members take more than the log takes at a time"
        done = partial(self._reverted, group, cause, then)
        self._context.append([record], done, holds=group, calls=[call.call_id])
        return ""

    def _record_of(
        self, group: Group, incremental: IncrementalGroup, cause: causes.Cause
    ) -> records_pb2.Record:
        record = self._context.record()
        record.critical = True
        reverted = record.group_reverted
        reverted.group_id, reverted.generation = group.group_id, incremental.epoch
        reverted.cause.CopyFrom(cause)
        for member in incremental.in_order():
            session_ms = self._deadlines.whole_session_ms(group, member.member_id)
            grace_ms = grace_ms_of(self._context.config, group.settings, member)
            _add(reverted, member.told, session_ms, grace_ms)
        return record

    def _end_incremental(self, group: Group) -> None:
        """The log has it: what members wait for is answered, and those on streams are told (INC-152)."""
        self._targets.end(group)
        self._streams.end(group, error_code.GROUP_CLASSIC)
        self._deadlines.forget(group)

    def _reverted(self, group: Group, cause: causes.Cause, then: Callable[[], None]) -> None:
        for topics in self._context.deletions:  # the log is about to say so, after this record
            group.renew(topics)
        for member in group.members.values():  # who has not heard of it works for its session
            member.extended_until_ms = self._rebalancer.touch(group, member)
        self._rebalancer.prepare(group, cause)
        then()

    # --- what members of before ask

    def check_kind(self, group: Group, request: ConsumerGroupHeartbeatRequest) -> None:
        """A member of before is told that its group is classic (INC-152).

        Raises:
            Refused: it is one.
        """
        member = group.members.get(request.member_id)
        if member is not None and member.process_id:
            raise Refused(error_code.GROUP_CLASSIC, IS_CLASSIC)

    def leave(self, group: Group, call: Request, request: ConsumerGroupHeartbeatRequest) -> bool:
        """Takes the leave of a member that has not joined since; False: it is none (INC-155).

        It may name a later join of its process than the log knows: one that was answered `GROUP_CONVERTED`.
        """
        member = group.members.get(request.member_id)
        if request.member_epoch not in (LEAVE, AWAY) or member is None or not member.is_unheard:
            return False
        context = self._context
        if context.proven_id(group, request, call) != request.member_id:
            context.refuse(call.call_id, error_code.UNKNOWN_MEMBER_ID)
        elif request.process_id != member.process_id or request.member_seq < member.join_seq:
            context.refuse(call.call_id, error_code.FENCED_MEMBER_EPOCH, _OTHER_JOIN)
        elif request.member_epoch == AWAY:  # a static member keeps its place for its session
            self._left(call, request)
        else:
            cause = classic_causes.by_member(
                cause_kind.LEFT, member, context.now.wall_ms, request.leave_reason
            )
            then = partial(self._left, call, request)
            self._rebalancer.remove_members(group, [member], cause, [call.call_id], then)
        return True

    def _left(self, call: Request, request: ConsumerGroupHeartbeatRequest) -> None:
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, shard_epoch=self._context.epoch, member_epoch=request.member_epoch
        )
        self._context.reply(call.call_id, response)


def _without_protocol(group: IncrementalGroup, newcomer: Collection[str]) -> str:
    """Which member would find no protocol in common with the newcomer and all others; empty: none would.

    It could not be in the classic group, which would stop it.
    """
    common = frozenset(newcomer)
    for member in group.in_order():
        names = member.told.classic_protocols
        if common and common.isdisjoint(names):
            return (
                f"member {member.member_id} could use none of {', '.join(sorted(common))} in a classic group"
            )
        common = common & names or names
    return ""


def _add(record: records_pb2.GroupReverted, told: Told, session_ms: int, grace_ms: int) -> None:
    """Adds a member: what it supports it has not said."""
    record.members.add(
        member_id=told.member_id,
        group_instance_id=told.group_instance_id,
        client_id=told.client_id,
        host=told.host,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=told.rebalance_timeout_ms,
        disconnect_grace_ms=grace_ms,
        member_seq=told.member_seq,
        secret_hash=told.secret_hash,
        identity=told.identity,
        process_id=told.process_id,
        weight=told.weight if told.weight > 1 else 0,
        client_version=told.client_version,
    )
