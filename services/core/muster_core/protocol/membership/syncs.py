"""SyncGroup and Heartbeat: what a member of a generation asks."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import groupby, repeat
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from muster_core import error_code
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.numbered_messages import numbered_messages
from muster_core.position import Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import STEP_MEMBERS, Rebalancer
from muster_core.protocol.kept_tokens import written_tokens
from muster_core.protocol.membership.plan_room import PlanRoom
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.record_bounds import RECORD_MAX_BYTES
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.claims import Claims
from muster_core.state.members.member import Member
from muster_core.state.plan import MEMBER_AS_TOPICS, PARTITIONS_AS_TOPIC, TURN_TOPICS, Plan, batches
from muster_core.state.published import TopicPartition

_KEPT_TOKENS = records_pb2.MemberAssignment.KEPT_TOKENS_FIELD_NUMBER
_PARTITION = records_pb2.KeptToken.PARTITION_FIELD_NUMBER
_TOKEN_AS_TOPICS = 4
"""A kept token, or a run of them, takes as long to write as so many topics to read."""
_REBALANCES = "the group rebalances; join again"


class Syncs:
    """Handles SyncGroup and Heartbeat.

    Args:
        context: the shard.
        rebalancer: knows sessions and waits for syncs.
        deletions: of topics.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer, deletions: TopicDeletions) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._deletions = deletions
        self._all_well = HeartbeatResponse()  # to every heartbeat of an epoch that has no news
        # Rows "sync" of the table event × state (conformance, section 3.2). A group in Empty has no members,
        # so its callers were answered UNKNOWN_MEMBER_ID before. The others: REBALANCE_IN_PROGRESS | park, and
        # the leader's assignment is stored and then answers all | the assignment.
        self._by_state: dict[GroupState, Callable[[Group, Member, Request, SyncGroupRequest], None]] = {
            GroupState.PREPARING_REBALANCE: self._sync_while_preparing,
            GroupState.COMPLETING_REBALANCE: self._sync_while_completing,
            GroupState.STABLE: self._sync_while_stable,
        }

    # --- SyncGroup

    def handle(self, call: Request, request: SyncGroupRequest) -> None:
        """Answers the call now, or parks it until the leader's assignment is stored."""
        context = self._context
        if not request.group_id:
            context.refuse(call.call_id, error_code.INVALID_GROUP_ID, "group_id is empty")
            return
        group = context.groups.get(request.group_id)
        if group is None:
            context.refuse(call.call_id, error_code.UNKNOWN_MEMBER_ID, "there is no such group")
            return
        if context.lines.call_in_line(group, call):
            return
        member_id = context.proven_id(group, request, call)
        fault = group.fault_of(member_id, request.group_instance_id, request.generation)
        if fault is not None:
            context.refuse(call.call_id, fault)
        elif _differs(request.protocol_type, group.protocol_type) or _differs(
            request.protocol_name, group.protocol_name
        ):
            text = f"the group has protocol type {group.protocol_type!r} and protocol {group.protocol_name!r}"
            context.refuse(call.call_id, error_code.INCONSISTENT_GROUP_PROTOCOL, text)
        else:
            self._by_state[group.state](group, group.members[member_id], call, request)

    def _sync_while_preparing(self, _: Group, __: Member, call: Request, ___: SyncGroupRequest) -> None:
        self._context.refuse(call.call_id, error_code.REBALANCE_IN_PROGRESS, _REBALANCES)

    def _sync_while_completing(
        self, group: Group, member: Member, call: Request, request: SyncGroupRequest
    ) -> None:
        if group.leader == member.member_id:
            self._go_through(group, call, _place_of(group), self._hand_in(group, member, call, request))
        else:
            self._park(group, member, call)

    def _go_through(
        self, group: Group, call: Request, place: "_Place", work: Generator[None, None, None]
    ) -> None:
        """Goes through what a leader hands in, where that takes long in several turns (LIM-17).

        What comes for the group meanwhile waits in line. Should it change all the same, the call begins anew.
        """
        for _ in work:
            self._context.lines.pause(group, partial(self._go_on, group, call, place, work))
            return

    def _go_on(self, group: Group, call: Request, place: "_Place", work: Generator[None, None, None]) -> None:
        is_as_before = self._context.groups.get(group.group_id) is group and _place_of(group) == place
        if is_as_before and call.call_id in self._context.calls:
            self._go_through(group, call, place, work)
        else:
            work.close()
            self._context.lines.route(call.call_id)

    def _park(self, group: Group, member: Member, call: Request) -> None:
        """Lets a member wait for its assignment."""
        if member.sync_call is not None:
            text = "the member has synced again; this call was replaced"
            self._context.refuse(member.sync_call, error_code.REBALANCE_IN_PROGRESS, text)
        member.sync_call = call.call_id
        self._rebalancer.synced(group, member)

    def _hand_in(
        self, group: Group, member: Member, call: Request, request: SyncGroupRequest
    ) -> Generator[None, None, None]:
        """Refuses a plan, or stores it; yields when others should have their turn."""
        room = PlanRoom(self._context, group)
        try:
            yield from self._judge(group, member, call, request, room)
        finally:
            room.leave()

    def _judge(
        self, group: Group, member: Member, call: Request, request: SyncGroupRequest, room: PlanRoom
    ) -> Iterator[None]:
        limit = self._context.config.max_partitions
        plan = Plan()
        for _ in plan.read(request, group.members, limit):
            if full := room.take(plan):
                self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
                return
            yield
        if plan.partitions > limit:
            text = f"assignments: more than {limit:,} partitions are given, which is as many as may be"
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, text)
            return
        if full := room.take(plan):
            self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
            return
        yield from plan.look_for_twice(group.members)
        if (twice := plan.twice) is not None:
            text = f"assignments: {twice[0]}/{twice[1]} is given more than once"
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, text)
            return
        claims = Claims()
        for _ in claims.look_through(tuple(group.members.values()), limit):
            if full := room.look_through(claims):
                self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
                return
            yield
        yield from claims.withhold(plan, group.owners)
        to_release: dict[str, bytes] = {}
        yield from claims.unmet_by_plan(plan, to_release)
        record = self._context.record()
        writing = _Writing(group, plan, claims, self._context.config.max_kept_tokens)
        yield from writing.fill(record.assignment_committed, member.member_id)
        yield from plan.compare(group.owners, group.ends.partitions, self._context.config.history_moves)
        if (gone := plan.removed_of(self._context.catalog.removed)) is not None:
            text = f"assignments: {gone[0]}/{gone[1]} is given, and was removed; read the topics again"
            self._context.refuse(call.call_id, error_code.UNKNOWN_TOPIC_OR_PARTITION, text)
            return
        if not writing.fits:
            text = f"the tokens that members keep take more than the log takes, {RECORD_MAX_BYTES} bytes"
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, text)
            return
        if (size_bytes := record.ByteSize()) > RECORD_MAX_BYTES:
            text = f"the assignment takes {size_bytes} bytes in the log, which takes {RECORD_MAX_BYTES}"
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, text)
            return
        self._park(group, member, call)
        self._deletions.note_before(plan.topics)
        group.planned = plan
        self._context.append(
            [record],
            partial(self._assignment_stored, group, to_release),
            holds=group,
            overdue=partial(self._refuse_syncs, group),
            more_bytes=room.bytes,
        )

    def _sync_while_stable(self, group: Group, member: Member, call: Request, _: SyncGroupRequest) -> None:
        """Answers a member with its assignment; as in Kafka 4.1 this does not prolong its session (SG-18)."""
        self._rebalancer.synced(group, member)
        member.confirmed = True
        self._context.reply(call.call_id, self._answer_to(member, self._answer_to_all(group, member.token)))

    def _assignment_stored(self, group: Group, to_release: dict[str, bytes]) -> None:
        planned, group.planned = group.planned, None
        for topics in self._context.deletions:
            group.renew(topics)  # it was made before them
        assert planned is not None
        self._rebalancer.go_through(group, self._answer_waiting(group, to_release, planned))

    def _answer_waiting(self, group: Group, to_release: dict[str, bytes], plan: Plan) -> Iterator[None]:
        """Answers all members that wait for their assignment, and goes on to wait for releases.

        Not at once where the plan is large: to carry it out took its time, and to forget the last one does.
        """
        if plan.partitions > TURN_TOPICS:
            yield
        waiting = [member for member in group.members.values() if member.sync_call is not None]
        same_for_all = self._answer_to_all(group, waiting[0].token) if waiting else SyncGroupResponse()
        left = TURN_TOPICS
        for number, member in enumerate(waiting):
            left -= len(member.kept_tokens)
            if (number and number % STEP_MEMBERS == 0) or left < 0:
                yield
                left = TURN_TOPICS
            call_id, member.sync_call = member.sync_call, None
            if call_id is not None:  # it has not given up meanwhile
                written = plan.answered.get(member.member_id, b"")
                self._context.reply(call_id, self._answer_to(member, same_for_all, written))
                self._rebalancer.touch(group, member)
        self._rebalancer.wait_for_releases(group, to_release)

    def _refuse_syncs(self, group: Group) -> None:
        for member in group.members.values():
            if member.sync_call is not None:
                call_id, member.sync_call = member.sync_call, None
                self._context.refuse(call_id, error_code.COORDINATOR_NOT_AVAILABLE, self._context.log_slow)
                self._rebalancer.touch(group, member)

    def _answer_to_all(self, group: Group, token: Position) -> SyncGroupResponse:
        """What the answers to members with this token have in common."""
        return SyncGroupResponse(
            error_code=error_code.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            token=token.token,
            version=token.to_proto() if Feature.INCREMENTAL_GROUPS in self._context.features else None,
            shard_epoch=self._context.epoch,
        )

    def _answer_to(
        self, member: Member, same_for_all: SyncGroupResponse, written: bytes = b""
    ) -> SyncGroupResponse:
        answer = SyncGroupResponse()
        answer.CopyFrom(same_for_all)
        answer.assignment = member.assignment
        return self._context.room.tokens.added(answer, member.kept_tokens, written)

    # --- Heartbeat

    def heartbeat(self, call: Request, request: HeartbeatRequest) -> None:
        """Answers from what is acknowledged, also while a group record is in flight.

        Row "heartbeat" of the table, Empty first: UNKNOWN_MEMBER_ID | REBALANCE_IN_PROGRESS | NONE | NONE.
        All but the first start the session again.
        """
        group = self._context.groups.get(request.group_id)
        if group is None:
            code = error_code.UNKNOWN_MEMBER_ID if request.group_id else error_code.INVALID_GROUP_ID
            self._context.refuse(call.call_id, code, "there is no such group")
            return
        member_id = self._context.proven_id(group, request, call)
        fault = self._rebalancer.beat_fault(group, member_id, request.group_instance_id, request.generation)
        if fault is not None:
            self._context.refuse(call.call_id, fault)
            return
        member = group.members[member_id]
        member.promised_until_ms = self._rebalancer.touch(group, member)
        response = self._all_well
        if group.state is GroupState.PREPARING_REBALANCE:
            response = HeartbeatResponse(
                error_code=error_code.REBALANCE_IN_PROGRESS,
                error_message=_REBALANCES,
                cause=group.cause,
                shard_epoch=self._context.epoch,
            )
        elif response.shard_epoch != self._context.epoch:
            response = self._all_well = HeartbeatResponse(shard_epoch=self._context.epoch)
        self._context.reply(call.call_id, response)


class _Place(NamedTuple):
    """Where a group is, as far as a plan is about it: the same as long as what comes for it waits in line."""

    state: GroupState
    generation: int
    leader: Member | None
    renewed_topics: frozenset[str]


def _place_of(group: Group) -> _Place:
    return _Place(group.state, group.generation, group.members.get(group.leader), group.renewed_topics)


class _Writing:
    """Writes the record of what a leader hands in, with tokens of what members keep.

    With them writes in flight stay valid. As many keep theirs as the coordinator can name one by one; the
    others get new ones. A token names its topic, so tokens may be far larger than the assignment: they are
    counted while they are written.

    Args:
        group: the group.
        plan: what is handed in.
        claims: what members keep.
        most: how many tokens.

    Attributes:
        fits: whether the log takes the tokens; False: not all are written.
    """

    def __init__(self, group: Group, plan: Plan, claims: Claims, most: int) -> None:
        self._group = group
        self._plan = plan
        self._claims = claims
        self._left = most
        self._tails: dict[Position, bytes] = {}
        self.fits = True

    def fill(self, record: records_pb2.AssignmentCommitted, leader: str) -> Iterator[None]:
        """Fills the record; strangers are ignored (SG-14 to SG-16). Yields when others should have a turn."""
        group = self._group
        record.group_id, record.generation, record.leader = group.group_id, group.generation, leader
        left, left_bytes = TURN_TOPICS, RECORD_MAX_BYTES
        for member_id, member in tuple(group.members.items()):
            assignment = self._plan.assignments.get(member_id, b"")
            entry = record.members.add(member_id=member_id, assignment=assignment)
            left -= MEMBER_AS_TOPICS
            if left < 0:
                yield
                left = TURN_TOPICS
            kept = self._plan.kept[member_id] = {}
            answered: list[bytes] = []
            since: dict[Position, tuple[str, Position]] = {}  # many partitions have few tokens
            for some in batches(self._plan.given(member_id)) if group.owners else ():
                left -= len(some) // PARTITIONS_AS_TOPIC
                for (topic, position), alike in groupby(self._kept_by(member, some), _topic_and_token):
                    like = records_pb2.KeptToken(topic=topic).SerializeToString() + self._tail_of(position)
                    partitions = [partition for partition, _ in alike]
                    numbers = [number for _, number in partitions]
                    left_bytes -= len(like) * len(numbers)
                    if left_bytes < 0:
                        self.fits = False
                        return
                    entry.MergeFromString(numbered_messages(_KEPT_TOKENS, like, _PARTITION, numbers))
                    answered.append(written_tokens(topic, position, numbers))
                    kept.update(zip(partitions, repeat(since.setdefault(position, (member_id, position)))))
                    left -= _TOKEN_AS_TOPICS + len(numbers)
                    if left < 0:
                        yield
                        left = TURN_TOPICS
                if left < 0:
                    yield
                    left = TURN_TOPICS
            self._plan.answered[member_id] = b"".join(answered)

    def _tail_of(self, position: Position) -> bytes:
        """A token without its topic; many partitions have few."""
        tail = self._tails.get(position)
        if tail is None:
            message = records_pb2.KeptToken(position=position.to_proto())
            tail = self._tails[position] = message.SerializeToString()
        return tail

    def _kept_by(
        self, member: Member, given: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, Position]]:
        """Those of the partitions it is given that a member never gave up and keeps.

        Without topics that were deleted: what is given of them now is another one's.
        """
        group = self._group
        held = self._claims.of(member.member_id)
        if not held:
            return
        for partition in given:
            topic, number = partition
            if topic not in held or number not in held[topic] or topic in group.renewed_topics:
                continue
            owner, position = group.owners.get(partition, ("", None))
            if position is not None and owner == member.member_id:
                if not self._left:
                    return
                self._left -= 1
                yield partition, position


def _topic_and_token(kept: tuple[TopicPartition, Position]) -> tuple[str, Position]:
    """What few of the kept partitions that follow each other differ in."""
    (topic, _), position = kept
    return topic, position


def _differs(asked: str, actual: str) -> bool:
    return asked != "" and asked != actual
