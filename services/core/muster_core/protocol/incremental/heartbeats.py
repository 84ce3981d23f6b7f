"""ConsumerGroupHeartbeat: decided, stored, answered."""

from collections import defaultdict
from collections.abc import Collection
from functools import partial

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.heartbeat import JOIN, Outcome, Refused, Surroundings, decide, fault_of
from muster_core.incremental.member import Member
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.topics import topics_of
from muster_core.protocol.topic_deletions import TopicDeletions
from muster_core.record_bounds import RECORD_MAX_BYTES, in_appends
from muster_core.state.group import Group

_NO_GROUP = "there is no incremental group of this name"
_IS_CLASSIC = "the group is a classic one and has members"
_TOO_LARGE = "what the group would have to store together is more than the log takes at a time"


class IncrementalHeartbeats:
    """Handles the one call of members of incremental groups.

    Args:
        context: the shard.
        deletions: of topics.
        deadlines: the members' clocks.
    """

    def __init__(self, context: ShardContext, deletions: TopicDeletions, deadlines: Deadlines) -> None:
        self._context = context
        self._deletions = deletions
        self._deadlines = deadlines
        self._out_of_date: set[str] = set()

    def look_again(self, group: Group, topics: Collection[str] | None = None) -> None:
        """Topics may have changed: the next request of the group compares them (conformance GE-20, GE-21).

        Args:
            group: the group.
            topics: which; None: any may have.
        """
        if group.incremental is not None and (
            topics is None
            or any(not member.told.topics.isdisjoint(topics) for member in group.incremental.members.values())
        ):
            self._out_of_date.add(group.group_id)

    def handle(self, call: Request, request: ConsumerGroupHeartbeatRequest) -> None:
        """Answers when the log has what the request changes."""
        context = self._context
        try:
            self._check(request)
            group = self._group(request)
        except Refused as refused:
            self._refuse(call, refused)
            return
        if context.call_in_line(group, call):
            return
        try:
            outcome = self._decide(call, group, request)
        except Refused as refused:
            context.forget_unstored(group)
            self._refuse(call, refused)
            return
        if outcome.records:
            topics = topics_of(context.catalog)
            self._deletions.note_before(name for name in request.topics.names if name in topics.partitions)
            done = partial(self._stored, call, group, request, outcome)
            context.append(outcome.records, done, holds=group, calls=[call.call_id])
        else:
            self._answer(call, group, request, outcome)

    def _check(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """What is looked at before any group.

        Raises:
            Refused: it is not well.
        """
        context = self._context
        if Feature.INCREMENTAL_GROUPS not in context.features:
            text = f"incremental groups need the feature {Feature.INCREMENTAL_GROUPS}"
            raise Refused(error_code.UNSUPPORTED_VERSION, text)
        if fault := fault_of(request, context.room.assignors):
            raise Refused(error_code.INVALID_REQUEST, fault)

    def _group(self, request: ConsumerGroupHeartbeatRequest) -> Group:
        """The group of a request, made where the request joins one that is not there (HQ-16, HQ-17, MI-03).

        Raises:
            Refused: there is none.
        """
        context = self._context
        group = context.groups.get(request.group_id)
        if group is None and request.member_epoch == JOIN:
            if full := context.too_many_new_groups():
                raise Refused(error_code.COORDINATOR_NOT_AVAILABLE, full)
            group = Group(request.group_id, context.now.wall_ms, context.config.history_length)
            context.add_unstored(group)
        if group is None:
            raise Refused(error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
        return group

    def _decide(self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest) -> Outcome:
        """What becomes of a request.

        Raises:
            Refused: it is refused.
        """
        context = self._context
        incremental = group.incremental
        if incremental is None:
            if request.member_epoch != JOIN:
                raise Refused(error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
            if not group.is_vacant or group.members or group.pending_members:
                raise Refused(error_code.GROUP_ID_NOT_FOUND, _IS_CLASSIC)
            incremental = IncrementalGroup(group.generation)
        around = Surroundings(
            topics_of(context.catalog),
            group.group_id in self._out_of_date,
            context.room.assignors,
            context.config.max_size,
            call.host,
            context.now.wall_ms,
        )
        outcome = decide(incremental, request, around, context.record)
        self._check_bounds(outcome, is_new=request.member_id not in incremental.members)
        self._out_of_date.discard(group.group_id)
        return outcome

    def _check_bounds(self, outcome: Outcome, *, is_new: bool) -> None:
        """Whether the log takes a decision at a time, and the shard the member (docs/safety.md, INC-13).

        Raises:
            Refused: it does not.
        """
        records = outcome.records
        if not records:
            return
        if len(list(in_appends(records))) > 1 or max(map(_bytes_of, records)) > RECORD_MAX_BYTES:
            raise Refused(error_code.INVALID_REQUEST, _TOO_LARGE)
        if full := self._context.too_much(sum(map(_bytes_of, records)), at_work=not is_new):
            raise Refused(error_code.COORDINATOR_NOT_AVAILABLE, full)

    def _stored(
        self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest, outcome: Outcome
    ) -> None:
        changed = {request.member_id}
        for record in outcome.records:
            if record.HasField("instance_moved"):
                changed.add(record.instance_moved.old_member_id)
        for member_id in changed:
            self._deadlines.follow(group, member_id)
        self._answer(call, group, request, outcome)

    def _answer(
        self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest, outcome: Outcome
    ) -> None:
        context = self._context
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, shard_epoch=context.epoch)
        if outcome.left:
            response.member_epoch = outcome.left
            context.reply(call.call_id, response)
            return
        assert group.incremental is not None
        member = group.incremental.members[outcome.member_id]
        self._deadlines.touch(group, member.member_id)
        response.member_epoch = member.epoch
        response.heartbeat_interval_ms = context.config.incremental_heartbeat_interval_ms
        response.version.CopyFrom(member.version.to_proto())
        whole_list = outcome.whole_list
        if request.member_seq:  # "unchanged" is for who knows what it was told last (INC-03)
            whole_list = Position.from_proto(request.version) != member.version
        if whole_list:
            response.assignment.CopyFrom(assignment_of(member))
        context.reply(call.call_id, response)

    def _refuse(self, call: Request, refused: Refused) -> None:
        code: ErrorCode = refused.code
        if refused.holder == NOWHERE:
            self._context.refuse(call.call_id, code, str(refused))
            return
        response = ConsumerGroupHeartbeatResponse(
            error_code=code,
            error_message=str(refused),
            holder=refused.holder.to_proto(),
            shard_epoch=self._context.epoch,
        )
        self._context.reply(call.call_id, response)


def assignment_of(member: Member) -> ConsumerGroupHeartbeatResponse.Assignment:
    """All that a member may work on, with its tokens."""
    numbers: defaultdict[tuple[str, Position], list[int]] = defaultdict(list)
    for topic, number in sorted(member.assigned):
        numbers[topic, member.held[topic, number].token].append(number)
    assignment = ConsumerGroupHeartbeatResponse.Assignment()
    for (topic, token), some in sorted(numbers.items()):
        assignment.given.add(topic=topic, partitions=some, token=token.to_proto())
    return assignment


def _bytes_of(record: records_pb2.Record) -> int:
    return record.ByteSize()
