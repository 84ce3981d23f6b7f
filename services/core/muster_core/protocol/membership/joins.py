"""JoinGroup: who may enter, under which id, and whether that starts a rebalance."""

from collections.abc import Callable
from functools import partial

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.coordinator_pb2 import JoinGroupRequest, JoinGroupResponse

from muster_core import cause_kind, error_code
from muster_core.cause_kind import Kind
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.protocol.bindings import identity_of_join
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.kinds.reversions import Reversions
from muster_core.protocol.membership.join_call import JoinCall
from muster_core.protocol.membership.plan_bounds import PlanBounds
from muster_core.protocol.responses import refusal, text_of
from muster_core.record_bounds import GROUP_MAX_BYTES, cut_to_bytes
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_state import GroupState
from muster_core.state.holdings import COPIES, MEMBER_BYTES
from muster_core.state.members.member import Member, elected_protocol
from muster_core.state.members.member_ids import join_of
from muster_core.state.members.member_secret import OPEN, lock_of
from muster_core.waiting.timing_wheel import CallbackTimer

STATIC_WITH_A_NEW_ID = "a static member joins with an empty member id, not with one that was given out"
"""A mistake of the client, which Kafka answers with UNKNOWN_SERVER_ERROR."""

_SUPERSEDED = "the member has joined again since: member_seq is lower than that of its last join"

_IS_INCREMENTAL = "the group is an incremental one with members"

_ANSWERED = "the join was answered with a generation that is over; join again with a higher member_seq"

_UNPROVABLE = (
    "member_secret is empty: nobody joins without one here (MUSTER_GROUP_REQUIRE_MEMBER_SECRETS); use a "
    "client of version 0.2 or later"
)

_SHOWN_BYTES = 1_000
"""Of the names of protocols, where people see them."""


class Joins:
    """Handles JoinGroup.

    Args:
        context: the shard.
        rebalancer: starts and ends join phases.
        reversions: make an incremental group classic.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer, reversions: Reversions) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._reversions = reversions
        self._plans = PlanBounds(context)
        # Rows "join, known id" of the table event × state (conformance, section 3.2), each with unchanged and
        # with new metadata. A group in Empty has no members, so its callers were answered UNKNOWN_MEMBER_ID
        # before. The others: park; update and park | the generation; update and Preparing | the generation to
        # a follower, Preparing for the leader; update and Preparing.
        self._known: dict[GroupState, Callable[[Group, Member, JoinCall], None]] = {
            GroupState.PREPARING_REBALANCE: self._rejoin,
            GroupState.COMPLETING_REBALANCE: self._known_while_completing,
            GroupState.STABLE: self._known_while_stable,
        }

    def handle(self, call: Request, request: JoinGroupRequest) -> None:
        """Answers the call now, or parks it."""
        config, group_id = self._context.config, request.group_id
        if not group_id:
            self._refuse(call, error_code.INVALID_GROUP_ID, "group_id is empty")
            return
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            limits = f"{config.min_session_timeout_ms} to {config.max_session_timeout_ms}"
            self._refuse(call, error_code.INVALID_SESSION_TIMEOUT, f"session_timeout_ms must be {limits}")
            return
        if config.require_member_secrets and self._context.keeps_secrets and not request.member_secret:
            self._refuse(call, error_code.INVALID_REQUEST, _UNPROVABLE)
            return
        group = self._context.groups.get(group_id)
        if group is None:
            self._first_of_all(call, request)
        elif not self._context.lines.call_in_line(group, call):
            self._join(group, JoinCall(call, request))

    def _first_of_all(self, call: Request, request: JoinGroupRequest) -> None:
        """A join to a group that does not exist: it is made only when the join is accepted."""
        if request.member_id:
            self._refuse_id(call)
        elif not request.protocol_type or not request.protocols:
            self._refuse_protocols(call)
        elif full := self._context.too_many_new_groups():
            self._refuse(call, error_code.COORDINATOR_NOT_AVAILABLE, full)
        else:
            history_length = self._context.config.history_length
            group = Group(request.group_id, self._context.now.wall_ms, history_length)
            join = JoinCall(call, request)
            if (excess := self._excess(group, None, join)) is not None:
                self._refuse(call, *excess)
                return
            self._context.add_unstored(group)
            self._join(group, join)

    def _join(self, group: Group, join: JoinCall) -> None:
        join.member_id = self._context.proven_id(group, join.request, join.call)
        call, member_id, instance_id = join.call, join.member_id, join.group_instance_id
        if Feature.INCREMENTAL_GROUPS not in self._context.features:
            join.process_id = b""
        if not member_id and instance_id:
            present = group.holder_of(instance_id)
            same = join_of(present) == join_of(join.made_id(instance_id, group))
            if same and join.knows(group, present):
                member_id = present  # the answer to this very join was lost
        known = group.member_of(member_id, instance_id)
        if not self._has_room(group, member_id):
            self._refuse_full(group, call, member_id)
        elif join.process_id and group.incremental is not None and group.incremental.members:
            self._refuse_converted(join, join.request.member_id or member_id)
        elif group.incremental is not None and group.incremental.members:
            self._make_classic(group, join)
        elif not group.accepts_protocols(join.protocol_type, join.terms.protocols):
            self._refuse_protocols(call, group)
        elif (excess := self._excess(group, known, join)) is not None:
            self._refuse(call, *excess)
        elif member_id:
            self._join_by_id(group, member_id, join)
        elif instance_id:
            self._join_static(group, join)
        else:
            self._give_id(group, join)

    def _make_classic(self, group: Group, join: JoinCall) -> None:
        """A classic client comes to an incremental group: it is classic again, or the client is refused."""
        call, request = join.call, join.request
        fault = self._reversions.fault_of_join(group, join.terms.protocols.names)
        if join.protocol_type != CONSUMER or not join.terms.protocols:
            fault = f"classic members of it have protocol type {CONSUMER!r} and protocols"
        if fault:
            self._refuse(call, error_code.INCONSISTENT_GROUP_PROTOCOL, f"{_IS_INCREMENTAL}: {fault}")
        elif request.member_id:
            self._refuse_id(call)
        elif (excess := self._excess(group, None, join)) is not None:
            self._refuse(call, *excess)
        else:
            who = Member("", join.group_instance_id)
            who.client_id, who.host = request.client_id, call.host
            cause = causes.reverted(self._context.now.wall_ms, who, request.reason)
            again = partial(self._context.lines.route, call.call_id)
            if fault := self._reversions.revert(group, cause, again, call):
                self._refuse(call, error_code.INCONSISTENT_GROUP_PROTOCOL, f"{_IS_INCREMENTAL}: {fault}")

    # --- the limit (KIP-389)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Whether the group may take the member (conformance MX-08)."""
        limit = self._context.config.max_size
        if group.state is GroupState.EMPTY:
            return True
        if group.state is not GroupState.PREPARING_REBALANCE:
            return len(group.members) < limit or member_id in group.members
        if group.parked_joins < limit:
            return True
        member = group.members.get(member_id)
        return member is not None and member.join_call is not None

    def _excess(self, group: Group, known: Member | None, join: JoinCall) -> tuple[ErrorCode, str] | None:
        """What is too large with what the join brings, the code first; None: nothing."""
        if not self._has_bytes(group, known, join):
            limit = f"{self._context.config.max_group_bytes:,} bytes (MUSTER_GROUP_MAX_GROUP_BYTES)"
            text = f"the group's members have their limit of {limit}"
            return error_code.GROUP_MAX_SIZE_REACHED, text
        if full := self._too_much(group, known, join):
            return error_code.COORDINATOR_NOT_AVAILABLE, full
        if excess := self._plans.excess(group, known, join.protocol_type, join.terms):
            return error_code.INVALID_REQUEST, excess
        return None

    def _has_bytes(self, group: Group, known: Member | None, join: JoinCall) -> bool:
        """Whether the record of the group's next generation can take what the member brings.

        Who is in a group that is too large already, since the limit was another one when it came, stays: what
        it brings may grow by a byte with each generation.
        """
        limit_bytes = self._context.config.max_group_bytes
        if known is not None and group.size_bytes > limit_bytes:
            limit_bytes = GROUP_MAX_BYTES
        size_bytes = group.size_bytes + join.size_bytes - (known.size_bytes if known is not None else 0)
        return size_bytes <= limit_bytes

    def _too_much(self, group: Group, known: Member | None, join: JoinCall) -> str:
        """Why shard or process cannot hold what the join brings, for people; empty: they can (LIM-22)."""
        if known is not None:
            grows_bytes = COPIES * (join.terms.protocols.size_bytes - known.terms.protocols.size_bytes)
            return self._context.bounds.too_much(grows_bytes, at_work=known.recorded)
        if join.member_id and join.member_id not in group.pending_members:
            return ""  # refused anyway: nobody has this id
        return self._context.bounds.too_much(MEMBER_BYTES + COPIES * join.size_bytes)

    def _refuse_full(self, group: Group, call: Request, member_id: str) -> None:
        """Refuses a member, and puts it out if it was in (conformance MX-01, MX-07, MX-09)."""
        answer = JoinGroupResponse(
            error_code=error_code.GROUP_MAX_SIZE_REACHED,
            generation=-1,
            shard_epoch=self._context.epoch,
            error_message=f"the group has its limit of {self._context.config.max_size} members",
        )
        timer = group.take_back(member_id)
        if timer is not None:
            self._context.purgatory.wheel.cancel(timer)
        member = group.members.get(member_id)
        if member is None:
            self._context.reply(call.call_id, answer)
            self._rebalancer.check_join(group)
            return
        cause = causes.by_member(cause_kind.OVER_CAPACITY, member, self._context.now.wall_ms)
        reply = partial(self._context.reply, call.call_id, answer)
        self._rebalancer.remove_members(group, [member], cause, [call.call_id], reply)

    # --- new members

    def _give_id(self, group: Group, join: JoinCall) -> None:
        """Answers a new dynamic member with its id; it joins with the next call (KIP-394)."""
        call, request = join.call, join.request
        new_id = join.made_id(request.client_id or "client", group)
        member_id = group.id_made_for(join_of(new_id)) or new_id
        if not join.knows(group, member_id):
            member_id = new_id
        if member_id not in group.members:
            if member_id not in group.pending_members:
                if len(group.pending_members) >= self._context.config.max_pending_members:
                    self._take_back_oldest(group)
                identity = identity_of_join(call, self._context.features, None)
                lock = lock_of(self._secret_hash(join))
                timer = CallbackTimer(group.group_id, partial(self._pending_expired, group, member_id))
                group.give_out(member_id, timer, identity, lock)
            unused_ms = min(request.session_timeout_ms, self._context.config.unused_id_timeout_ms)
            self._context.purgatory.wheel.arm(
                group.pending_members[member_id], self._context.now.boot_ms + unused_ms
            )
        self._context.reply(
            call.call_id,
            JoinGroupResponse(
                error_code=error_code.MEMBER_ID_REQUIRED,
                generation=-1,
                member_id=member_id,
                shard_epoch=self._context.epoch,
                error_message="join again with this member id",
            ),
        )

    def _take_back_oldest(self, group: Group) -> None:
        """Makes room for an id: the one that has waited longest is unknown from now on (LIM-36).

        Who uses an id does so at once, so it is one that nobody will use; else its owner joins anew.
        """
        timer = group.take_back(next(iter(group.pending_members)))
        if timer is not None:
            self._context.purgatory.wheel.cancel(timer)

    def _pending_expired(self, group: Group, member_id: str) -> None:
        """An id was not used in time; a join phase that waited for it may end (PM-02, PM-05)."""
        if group.take_back(member_id) is not None:
            self._context.lines.in_line(group, partial(self._rebalancer.check_join, group))

    def _join_static(self, group: Group, join: JoinCall) -> None:
        """A static member without an id: new, or another process that takes its place (KIP-345)."""
        new_id = join.made_id(join.group_instance_id, group)
        old_id = group.static_members.get(join.group_instance_id)
        if old_id is None:
            self._add(group, new_id, join)
        else:
            self._take_over(group, group.members[old_id], new_id, join)

    def _add(self, group: Group, member_id: str, join: JoinCall) -> None:
        call, request = join.call, join.request
        timer = group.use(member_id)
        if timer is not None:
            self._context.purgatory.wheel.cancel(timer)
        member = Member(member_id, join.group_instance_id)
        identity = identity_of_join(call, self._context.features, None)
        secret_hash = self._secret_hash(join)
        member.update_from(request, join.terms, call.host, identity, secret_hash, join.process_id)
        member.is_new = True
        if not group.members:
            group.protocol_type = join.protocol_type
        group.add(member)
        group.new_member_added = True
        group.park_join(member, call.call_id)
        self._rebalancer.touch(group, member, self._context.config.new_member_join_timeout_ms)
        self._prepare(group, cause_kind.JOINED, member, request)

    # --- known members

    def _join_by_id(self, group: Group, member_id: str, join: JoinCall) -> None:
        call, request = join.call, join.request
        if member_id in group.pending_members:
            if join.group_instance_id:
                self._refuse(call, error_code.UNKNOWN_SERVER_ERROR, STATIC_WITH_A_NEW_ID)
            else:
                self._add(group, member_id, join)
            return
        fault = group.identity_fault(member_id, join.group_instance_id)
        if fault is not None:
            self._refuse(call, fault, "")
            return
        member = group.members[member_id]
        if request.member_seq and request.member_seq < max(member.join_seq, member.recorded_join_seq):
            self._refuse(call, error_code.INVALID_REQUEST, _SUPERSEDED)
            return
        if group.state is GroupState.PREPARING_REBALANCE and join.is_retry(member):
            self._refuse(call, error_code.REBALANCE_IN_PROGRESS, _ANSWERED)
            return
        self._known[group.state](group, member, join)

    def _known_while_completing(self, group: Group, member: Member, join: JoinCall) -> None:
        if join.is_retry(member) or member.terms.protocols == join.terms.protocols:
            self._answer_present(group, member, join.call)  # JG-27: its answer was lost
        else:
            self._rejoin(group, member, join, cause_kind.METADATA_CHANGED)

    def _known_while_stable(self, group: Group, member: Member, join: JoinCall) -> None:
        if join.is_retry(member):
            self._answer_present(group, member, join.call)
        elif group.leader == member.member_id:
            self._rejoin(group, member, join, cause_kind.LEADER_REJOINED)  # JG-25
        elif member.terms.protocols != join.terms.protocols:
            self._rejoin(group, member, join, cause_kind.METADATA_CHANGED)  # JG-26
        else:
            self._answer_present(group, member, join.call)  # JG-24

    def _rejoin(
        self,
        group: Group,
        member: Member,
        join: JoinCall,
        kind: Kind = cause_kind.METADATA_CHANGED,
    ) -> None:
        """Takes over what the join says and parks it for the next generation."""
        call, request = join.call, join.request
        text = "the member has joined again; this call was replaced"
        was_parked = self._context.refuse_join(group, member, error_code.REBALANCE_IN_PROGRESS, text)
        identity = identity_of_join(call, self._context.features, member)
        secret_hash = self._secret_hash(join, member)
        group.set_protocols(
            member,
            lambda: member.update_from(
                request, join.terms, call.host, identity, secret_hash, join.process_id
            ),
        )
        group.park_join(member, call.call_id)
        if member.is_new and not was_parked:  # its session ran since the call that was parked was cancelled
            self._rebalancer.touch(group, member, self._context.config.new_member_join_timeout_ms)
        self._prepare(group, kind, member, request)

    def _answer_present(self, group: Group, member: Member, call: Request) -> None:
        """Answers with the present generation; as in Kafka 4.1, only heartbeats prolong a session."""
        member.confirmed = True
        self._rebalancer.go_through(group, self._rebalancer.answer_present(group, member, call.call_id))

    # --- take-over of a static member

    def _take_over(self, group: Group, old: Member, new_id: str, join: JoinCall) -> None:
        """A new process has the place of an old one, which is fenced (conformance SM-03 to SM-19)."""
        call, request = join.call, join.request
        new = Member(new_id, join.group_instance_id)
        identity = identity_of_join(call, self._context.features, old)
        secret_hash = self._secret_hash(join, old)
        new.update_from(request, join.terms, call.host, identity, secret_hash, join.process_id)
        cause = self._cause(cause_kind.STATIC_REPLACED, new, request)
        keeps_assignment = (
            group.state is GroupState.STABLE
            and old.member_id not in group.to_release  # or nobody would give away what it kept
            and self._selection_stays(group, old, new)
        )
        if not old.recorded:
            self._replace(group, old, new_id)
            self._rejoin(group, old, join)
            return
        record = self._context.record()
        record.member_replaced.CopyFrom(
            records_pb2.MemberReplaced(
                group_id=group.group_id,
                generation=group.generation,
                old_member_id=old.member_id,
                member=new.to_record(),
                cause=None if keeps_assignment else cause,
            )
        )
        self._fence(group, old)
        old.going = True
        follow_up = partial(self._taken_over, group, old, call, cause, keeps_assignment)
        self._context.append([record], follow_up, holds=group, calls=[call.call_id])

    def _taken_over(
        self,
        group: Group,
        member: Member,
        call: Request,
        cause: common_pb2.RebalanceCause,
        keeps_assignment: bool,
    ) -> None:
        member.going = False  # it is the new process now
        self._rebalancer.touch(group, member)
        if keeps_assignment:
            self._answer_present(group, member, call)
            return
        if call.call_id in self._context.calls:
            group.park_join(member, call.call_id)
        self._rebalancer.prepare(group, cause)

    def _replace(self, group: Group, old: Member, new_id: str) -> None:
        """Replaces a member that the log does not know yet."""
        self._fence(group, old)
        group.replace(old.member_id, new_id)
        self._rebalancer.touch(group, old, self._context.config.new_member_join_timeout_ms)

    def _fence(self, group: Group, member: Member) -> None:
        text = f"instance {member.group_instance_id} was taken over by another process"
        self._context.fence(group, member, error_code.FENCED_INSTANCE_ID)
        self._context.refuse_join(group, member, error_code.FENCED_INSTANCE_ID, text)
        if member.sync_call is not None:
            self._context.refuse(member.sync_call, error_code.FENCED_INSTANCE_ID, text)
            member.sync_call = None

    @staticmethod
    def _selection_stays(group: Group, old: Member, new: Member) -> bool:
        if old.terms.protocols.names == new.terms.protocols.names:
            return True  # all members vote as they did
        members = [new if member is old else member for member in group.members.values()]
        return elected_protocol(members) == group.protocol_name

    def _prepare(self, group: Group, kind: Kind, member: Member, request: JoinGroupRequest) -> None:
        """Starts a join phase; one that runs already keeps its cause, so none is made."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancer.check_join(group)
        else:
            self._rebalancer.prepare(group, self._cause(kind, member, request))

    def _secret_hash(self, join: JoinCall, before: Member | None = None) -> bytes:
        """What is kept of the secret that a join brings; that a member had one says that they count."""
        counts = self._context.keeps_secrets or (before is not None and before.lock is not OPEN)
        return join.secret_hash if counts else b""

    # --- words

    def _cause(self, kind: Kind, member: Member, request: JoinGroupRequest) -> common_pb2.RebalanceCause:
        return causes.by_member(kind, member, self._context.now.wall_ms, request.reason)

    def _refuse(self, call: Request, code: ErrorCode, message: str) -> None:
        self._context.refuse(call.call_id, code, message)

    def _refuse_converted(self, join: JoinCall, member_id: str) -> None:
        """Names the member, too: a static one whose first answer was lost has its id from here (INC-73)."""
        answer = refusal(join.request, error_code.GROUP_CONVERTED, self._context.epoch)
        assert isinstance(answer, JoinGroupResponse)
        answer.error_message = text_of(error_code.GROUP_CONVERTED)
        answer.member_id = member_id
        self._context.reply(join.call.call_id, answer)

    def _refuse_id(self, call: Request) -> None:
        self._refuse(
            call, error_code.UNKNOWN_MEMBER_ID, "the group has no such member; join with an empty member id"
        )

    def _refuse_protocols(self, call: Request, group: Group | None = None) -> None:
        text = "protocol_type and protocols must not be empty"
        if group is not None and group.members:
            names = cut_to_bytes(", ".join(map(repr, sorted(group.common_protocols))), _SHOWN_BYTES)
            text = (
                f"protocol_type or protocols do not fit those of the group's members: they are of type "
                f"{group.protocol_type!r}, and each of them supports {names or 'nothing that all others do'}"
            )
        self._refuse(call, error_code.INCONSISTENT_GROUP_PROTOCOL, text)
