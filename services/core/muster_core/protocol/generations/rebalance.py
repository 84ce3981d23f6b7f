"""How a group goes from one generation to the next: join phase, generation, wait for syncs, removals.

Follows Kafka's coordinator; ids in parentheses are rows of the conformance list.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

from muster_core import cause_kind, error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Push
from muster_core.features import Feature
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.generations.delayed import (
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    InitialDelayedJoin,
)
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member, elected_protocol
from muster_core.waiting.timing_wheel import Timer

Cause = common_pb2.RebalanceCause

_AGAIN_MS = 1_000
"""Shortest pause before a join phase to which nobody came back is checked again, whatever the time-outs."""

STEP_MEMBERS = 500
"""Of so many members follows in one turn what a record brings them: it takes milliseconds."""

_MANY_MEMBERS = 100
"""A generation of fewer takes less than a millisecond, and waits for no turn."""

_DONE = object()


class Rebalancer:
    """Moves groups through their states.

    Args:
        context: the shard.

    Attributes:
        on_generation: called with a group when a generation of it is stored.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self.on_generation: Callable[[Group], None] = _nobody_follows

    @property
    def initial_delay_ms(self) -> int:
        """How long an empty group gathers members at a time (KIP-134)."""
        return self._context.config.initial_rebalance_delay_ms

    # --- sessions

    def touch(self, group: Group, member: Member, timeout_ms: int | None = None) -> int:
        """Starts the member's session again, now; returns when it ends, boot time."""
        timer = member.heartbeat
        if timer is None:
            timer = member.heartbeat = DelayedHeartbeat(self, group, member)
        member.confirmed = True
        member.suspect = False
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._context.now.boot_ms + delay_ms
        self._context.purgatory.wheel.arm(timer, deadline_ms)
        return deadline_ms

    def beat_fault(
        self, group: Group, member_id: str, group_instance_id: str, generation: int
    ) -> ErrorCode | None:
        """What is wrong with a sign of life, as `Group.fault_of`.

        While a group that is classic again waits for its members, one of before may name any epoch that it
        was in: it need not have heard of the last one (INC-19, INC-153).
        """
        fault = group.fault_of(member_id, group_instance_id, generation)
        if fault is not error_code.ILLEGAL_GENERATION:
            return fault
        is_of_before = (
            group.reverted and group.members[member_id].recorded and 0 < generation < group.generation
        )
        return None if is_of_before and group.state is GroupState.PREPARING_REBALANCE else fault

    def longest_session_ms(self, group: Group) -> int:
        """How long any member may be silent; without members as short as may be."""
        default_ms = self._context.config.min_session_timeout_ms
        return max((member.session_timeout_ms for member in group.members.values()), default=default_ms)

    def session_ended(self, group: Group, member: Member, session: Timer) -> None:
        """The member's session timer fired. In line, since the member may be in a record in flight."""
        self._context.lines.in_line(group, partial(self._expire, group, member, session), deadline=True)

    def _expire(self, group: Group, member: Member, session: Timer) -> None:
        if group.members.get(member.member_id) is not member or session.armed:
            return  # gone, or heard of again while this waited in line
        if member.is_waiting and not member.is_new:
            return  # parked, so alive; its session starts when it is answered (SE-07)
        kind = cause_kind.DISCONNECTED if member.suspect else cause_kind.SESSION_EXPIRED
        cause = causes.by_member(kind, member, self._context.now.wall_ms)
        self.remove_members(group, [member], cause)

    # --- the join phase

    def prepare(self, group: Group, cause: Cause) -> None:
        """Starts a join phase if the state allows it; else lets a running one end if it can now."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self.check_join(group)
            return
        if not group.can_rebalance:
            return
        is_unassigned = group.state is GroupState.COMPLETING_REBALANCE
        for member in group.members.values():  # thousands, of which most may be absent and have nothing
            if member.sync_call is not None:
                self._refuse_sync(group, member)
            if member.stream_id is not None and member.join_call is None:
                self._announce(group, member, cause)
            if is_unassigned and (member.assignment or member.kept_tokens):
                group.assign(member, b"")
        group.weigh()
        self._stop_waiting_for_syncs(group)
        was_empty = group.state is GroupState.EMPTY
        group.cause = cause
        group.become(GroupState.PREPARING_REBALANCE, self._context.now.wall_ms)
        operation: DelayedJoin
        if was_empty:
            delay_ms = self.initial_delay_ms
            group.new_member_added = False
            operation = InitialDelayedJoin(self, group, delay_ms, group.rebalance_timeout_ms - delay_ms)
        else:
            operation = DelayedJoin(self, group, group.rebalance_timeout_ms)
        self.watch_join(operation)

    def prepare_anew(self, group: Group, cause: Cause) -> None:
        """Starts a join phase, unless the members have left while this waited in line."""
        if group.members:
            self.prepare(group, cause)

    def _announce(self, group: Group, member: Member, cause: Cause) -> None:
        """Pushes to a member on a stream what the others learn from their next heartbeat."""
        if member.stream_id is not None and member.join_call is None:
            news = session_pb2.RebalanceStarted(
                group_id=group.group_id,
                member_id=member.member_id,
                generation=group.generation,
                cause=cause,
                shard_epoch=self._context.epoch,
            )
            self._context.effects.pushes.append(Push(member.stream_id, news))

    def wait_ends_ms(self, group: Group) -> int | None:
        """When the group goes on without those that it waits for, boot time; None: it waits for nobody."""
        is_joining = group.state is GroupState.PREPARING_REBALANCE
        return self._context.purgatory.deadline_of(_join_key(group) if is_joining else _sync_key(group))

    def restart_waits(self, group: Group) -> None:
        """Gives a running join phase, or wait for syncs, its full time again (after a suspension)."""
        for key in (_join_key(group), _sync_key(group)):  # or it would come due while a record is on its way
            self._context.purgatory.cancel_for_key(key)
        self._context.lines.in_line(group, partial(self._restart_waits, group))

    def _restart_waits(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self._context.purgatory.cancel_for_key(_join_key(group))
            self.watch_join(DelayedJoin(self, group, group.rebalance_timeout_ms))
        elif group.pending_sync or group.to_release:
            self._context.purgatory.cancel_for_key(_sync_key(group))
            self.wait_for_syncs(group)

    def check_join(self, group: Group) -> None:
        """Lets a running join phase end if everybody is back."""
        if group.all_joined:
            self._context.purgatory.check_and_complete(_join_key(group))

    def watch_join(self, operation: DelayedJoin) -> None:
        """Lets a join phase end now, or wait."""
        self._context.purgatory.try_complete_else_watch(operation, [_join_key(operation.group)])

    def complete_join(self, group: Group, *, has_turn: bool) -> None:
        """Ends the join phase: everybody is back, or the time is up (RT-01, RT-02, SM-31 to SM-35)."""
        self._context.lines.in_line(group, partial(self._complete_join, group, has_turn), deadline=True)

    def _complete_join(self, group: Group, has_turn: bool) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        now_ms = self._context.now.boot_ms
        absent = [member for member in group.members.values() if member.join_call is None]
        extended_ms = max([member.extended_until_ms for member in absent], default=0)
        if extended_ms > now_ms:
            # Cut off since it heard `unsure`, a member works on, and nobody may have its partitions yet.
            self.watch_join(DelayedJoin(self, group, extended_ms - now_ms))
            return
        staying = [
            member
            for member in group.members.values()
            if member.join_call is not None or (member.group_instance_id and not member.is_unheard)
        ]
        joined = [member for member in staying if member.join_call is not None]
        if staying and not joined:
            delay_ms = max(group.rebalance_timeout_ms, _AGAIN_MS)
            self.watch_join(DelayedJoin(self, group, delay_ms))  # SM-33, RT-05
            return
        if not group.all_joined and (wait_ms := self._waits_for_turn(group, has_turn)):
            self.watch_join(DelayedJoin(self, group, wait_ms, has_turn=True))
            return
        leader = group.members.get(group.leader)
        if leader is None or leader.join_call is None:
            leader = joined[0] if joined else None
        record = self._context.record()
        record.generation_started.CopyFrom(
            records_pb2.GenerationStarted(
                group_id=group.group_id,
                generation=group.generation + 1,
                protocol_type=group.protocol_type,
                protocol_name=elected_protocol(staying) if staying else "",
                leader=leader.member_id if leader is not None else "",
                cause=group.cause,
            )
        )
        entries = record.generation_started.members
        for member in staying:
            member.write(entries.add())
        self._context.append(
            [record],
            partial(self._generation_stored, group),
            holds=group,
            overdue=partial(self._refuse_joins, group),
        )

    def _waits_for_turn(self, group: Group, has_turn: bool) -> int:
        """How long a generation with absent members waits, ms, as others whose time is up have their turn.

        It names all members, so a call of one of them costs what a call of each would cost (LIM-69).
        """
        room, members = self._context.room, len(group.members)
        wait_ms = 0 if has_turn or members < _MANY_MEMBERS else room.turn_ms(group.group_id, members)
        return wait_ms or room.wait_ms(group.size_bytes)

    def _generation_stored(self, group: Group) -> None:
        if self._context.bounds.is_full_with(0):
            group.history.keep_latest()
            group.weigh()
        if group.state is not GroupState.EMPTY:
            group.pending_sync = set(group.members)
            self.go_through(group, self._begin(group))

    def go_through(self, group: Group, work: Iterator[None]) -> None:
        """Does what follows for many members, with a pause for others wherever it yields (LIM-70).

        What comes for the group meanwhile waits in line.
        """
        if self._context.groups.get(group.group_id) is group and next(work, _DONE) is not _DONE:
            self._context.lines.pause(group, partial(self.go_through, group, work))

    def _begin(self, group: Group) -> Iterator[None]:
        """Answers all members that have come to a generation, and waits for them."""
        if len(group.members) > STEP_MEMBERS:
            yield  # to carry out the record took its time
        same_for_all, left = self._answer_to_all(group), STEP_MEMBERS
        for member in tuple(group.members.values()):
            member.is_new = False
            call_id = group.unpark_join(member)
            if call_id is not None:
                self._context.reply(call_id, (yield from self._answer_to(group, member, same_for_all)))
                left -= 1
            elif member.stream_id is not None:
                # a static member that did not come back: its generation is over (RT-02)
                self._context.fence(group, member, error_code.ILLEGAL_GENERATION)
            self.touch(group, member)
            left -= 1
            if left <= 0:
                yield
                left = STEP_MEMBERS
        self.wait_for_syncs(group)
        self.on_generation(group)

    def _refuse_joins(self, group: Group) -> None:
        text = self._context.log_slow
        for member in group.members.values():
            if self._context.refuse_join(group, member, error_code.COORDINATOR_NOT_AVAILABLE, text):
                self.touch(group, member)

    def answer_present(self, group: Group, member: Member, call_id: int) -> Iterator[None]:
        """Answers a join with the present generation (JG-23, JG-34)."""
        answer = yield from self._answer_to(group, member, self._answer_to_all(group))
        answer.skip_assignment = group.state is GroupState.STABLE and group.leader == member.member_id
        self._context.reply(call_id, answer)

    def _answer_to_all(self, group: Group) -> coordinator_pb2.JoinGroupResponse:
        """What the answers to all members of a generation have in common."""
        return coordinator_pb2.JoinGroupResponse(
            error_code=error_code.NONE,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader,
            shard_epoch=self._context.epoch,
            cause=group.cause,
            withholds_kept=Feature.KEPT_PARTITIONS in self._context.features,
        )

    def _answer_to(
        self, group: Group, member: Member, same_for_all: coordinator_pb2.JoinGroupResponse
    ) -> Generator[None, None, coordinator_pb2.JoinGroupResponse]:
        answer = coordinator_pb2.JoinGroupResponse()
        answer.CopyFrom(same_for_all)
        answer.member_id = member.member_id
        if group.leader == member.member_id:
            for number, one in enumerate(tuple(group.members.values())):
                if number and number % STEP_MEMBERS == 0:
                    yield
                answer.members.add(
                    member_id=one.member_id,
                    group_instance_id=one.group_instance_id,
                    metadata=one.metadata_for(group.protocol_name),
                )
        return answer

    def end_waits(self, group: Group) -> None:
        """The group has no join phase any more, and nobody is to sync."""
        self._context.purgatory.cancel_for_key(_join_key(group))
        self._stop_waiting_for_syncs(group)

    # --- the wait for syncs (KAFKA-12890)

    def wait_for_syncs(self, group: Group) -> None:
        """Gives the members a rebalance time-out to fetch their assignment (RT-07)."""
        operation = DelayedSync(self, group, group.generation, group.rebalance_timeout_ms)
        self._context.purgatory.try_complete_else_watch(operation, [_sync_key(group)])

    def wait_for_releases(self, group: Group, to_release: dict[str, bytes]) -> None:
        """Gives members a rebalance time-out to release what they keep and are not given (GRP-42).

        They do so by joining again, which starts the next join phase.

        Args:
            group: the group.
            to_release: the members, as in the group.
        """
        group.to_release = to_release
        if to_release:
            self._context.purgatory.cancel_for_key(_sync_key(group))
            self.wait_for_syncs(group)

    def synced(self, group: Group, member: Member) -> None:
        """The member has asked for its assignment."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync and not group.to_release:
            self._context.purgatory.check_and_complete(_sync_key(group))

    def _stop_waiting_for_syncs(self, group: Group) -> None:
        group.pending_sync.clear()
        group.to_release = {}
        self._context.purgatory.cancel_for_key(_sync_key(group))

    def sync_expired(self, group: Group, generation: int) -> None:
        """The time to sync is up (DS-01 to DS-06), or the one to release (GRP-42)."""
        to_release = bool(group.to_release)  # who is to while this waits in line has all of its time
        step = partial(self._sync_expired, group, generation, to_release=to_release)
        self._context.lines.in_line(group, step, deadline=True)

    def _sync_expired(self, group: Group, generation: int, *, to_release: bool) -> None:
        if generation != group.generation:
            return  # it waited in line until a later one had begun
        late_ids = set(group.pending_sync)
        if to_release:
            late_ids |= group.to_release.keys()
        late = [member for member in group.members.values() if member.member_id in late_ids]
        if late:
            cause = causes.by_member(
                cause_kind.REBALANCE_TIMEOUT, late[0], self._context.now.wall_ms, others=len(late) - 1
            )
            self.remove_members(group, late, cause)

    def _refuse_sync(self, group: Group, member: Member) -> None:
        if member.sync_call is not None:
            self._context.refuse(member.sync_call, error_code.REBALANCE_IN_PROGRESS, "the group rebalances")
            member.sync_call = None
            self.touch(group, member)

    # --- removals

    def remove_members(
        self,
        group: Group,
        members: Sequence[Member],
        cause: Cause,
        calls: Iterable[int] = (),
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes members out and starts the rebalance that follows.

        Those of a recorded generation go when the log has it; those in their first join phase at once. Of
        many some go at a time (LIM-70), and who has not gone at a suspension stays: it may work on (OWN-12).

        Args:
            group: the group; nothing of it is in flight.
            members: who goes.
            cause: why.
            calls: calls that wait for it.
            then: runs when they are gone, before the rebalance starts.
        """
        some, others = members[:STEP_MEMBERS], members[STEP_MEMBERS:]
        rest = partial(self._remove_others, group, others, cause, calls, then, group.line.suspensions)
        records = []
        for member in some:
            if member.recorded:
                record = self._context.record()
                record.member_left.CopyFrom(
                    records_pb2.MemberLeft(
                        group_id=group.group_id,
                        generation=group.generation,
                        member_id=member.member_id,
                        cause=cause,
                        clock_moved=self._context.clock_moved,
                    )
                )
                records.append(record)
                # Not when the record is stored: what the member heard until then would let it work on beside
                # those who get its partitions.
                member.going = True
                self._context.fence(group, member, error_code.UNKNOWN_MEMBER_ID, cause)

        def gone() -> None:
            for member in some:
                if not member.recorded:  # the others were removed with their records
                    self._context.release(group, member)
                    group.remove(member.member_id)
            if others:
                self._context.lines.pause(group, rest)
            else:
                then()
                self.prepare(group, cause)

        if records:
            self._context.append(records, gone, holds=group, calls=calls)
        else:
            gone()

    def _remove_others(
        self,
        group: Group,
        members: Sequence[Member],
        cause: Cause,
        calls: Iterable[int],
        then: Callable[[], None],
        suspensions: int,
    ) -> None:
        if self._context.groups.get(group.group_id) is not group:
            return
        if group.line.suspensions == suspensions:
            self.remove_members(group, members, cause, calls, then)
        else:
            self.prepare(group, cause)


def _nobody_follows(_: Group) -> None:
    """What follows a generation where nobody says."""


def _join_key(group: Group) -> tuple[str, str]:
    return ("join", group.group_id)


def _sync_key(group: Group) -> tuple[str, str]:
    return ("sync", group.group_id)
