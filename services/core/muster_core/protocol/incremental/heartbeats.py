"""ConsumerGroupHeartbeat: decided, stored, answered."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from muster_core import error_code
from muster_core.catalog import NOTHING_KNOWN
from muster_core.error_code import ErrorCode
from muster_core.events import Request, Resolved
from muster_core.features import Feature
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.heartbeat import go_on
from muster_core.incremental.decisions.request import JOIN, Outcome, Refused, Surroundings
from muster_core.incremental.decisions.together import Asked, can_be_together, decide_together
from muster_core.incremental.decisions.upkeep import tend
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.targets.target import Topics, When, subscribed_topics
from muster_core.position import NOWHERE, Position
from muster_core.protocol.bindings import fault_of_identity
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.answers import answer_of
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.expressions import ExpressionSearch
from muster_core.protocol.incremental.heartbeat_checks import NO_GROUP, HeartbeatChecks
from muster_core.protocol.incremental.kinds.reversions import Reversions
from muster_core.protocol.incremental.settings import assignors_of, may_hold
from muster_core.protocol.incremental.stream_members import StreamMembers
from muster_core.protocol.incremental.targets import Targets, Waiting
from muster_core.protocol.incremental.topics import topics_of
from muster_core.protocol.open_append import nothing_follows
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.record_bounds import is_one_append
from muster_core.state.group import Group
from muster_core.state.group_settings import session_ms_of
from muster_core.state.members.member_secret import hash_of

_NO_TARGET = "the first assignment of the group is not there yet; try again"
_JOINED_SINCE = "the member has joined again, or left for a while, since"
_TOGETHER = 100
"""Requests that are one decision, at most."""

_Asked = tuple[Request, ConsumerGroupHeartbeatRequest]
_TOO_LARGE = "what the group would have to store together is more than the log takes at a time"


class IncrementalHeartbeats:
    """Handles the one call of members of incremental groups.

    Args:
        context: the shard.
        deletions: of topics.
        deadlines: the members' clocks.
        streams: which of them are on streams.
        targets: how targets come about.
        reversions: know who was a member before the group was classic again.
    """

    def __init__(
        self,
        context: ShardContext,
        deletions: TopicDeletions,
        deadlines: Deadlines,
        streams: StreamMembers,
        targets: Targets,
        reversions: Reversions,
    ) -> None:
        self._context = context
        self._deletions = deletions
        self._reversions = reversions
        self._deadlines = deadlines
        self._streams = streams
        self._targets = targets
        self._expressions = ExpressionSearch(context, self._resolved)
        self._checks = HeartbeatChecks(context, streams, reversions, self._expressions)
        self._out_of_date: set[str] = set()
        self._together = WeakKeyDictionary[Group, int]()
        targets.go_on_with(self._go_on)

    def look_again(self, group: Group, topics: Collection[str] | None = None) -> None:
        """Topics may have changed: the next request of the group compares them (conformance GE-20, GE-21).

        Args:
            group: the group.
            topics: which; None: any may have.
        """
        if group.incremental is None:
            return
        self._expressions.look_again(group, topics)
        if topics is None or not subscribed_topics(group.incremental).isdisjoint(topics):
            self._out_of_date.add(group.group_id)

    def tend(self) -> None:
        """Compares the topics of groups with stream members, where they may have changed and are known.

        A target that is due is computed, after a load too (docs/safety.md, INC-16, INC-18).
        """
        for group_id in sorted(self._out_of_date) if self._context.catalog is not NOTHING_KNOWN else ():
            group = self._context.working_on = self._context.groups.get(group_id)
            if group is None or group.incremental is None:
                self._out_of_date.discard(group_id)
            elif group.incremental.has_stream_members:
                self._context.lines.in_line(group, partial(self._tend, group))

    def take_what_was_deleted(self) -> None:
        """The log has that topics were deleted: stream members give back what they have of them (INC-50)."""
        for group in self._context.groups.peopled():
            incremental = group.incremental
            if incremental is not None and incremental.renewed and incremental.has_stream_members:
                self._context.working_on = group
                self._context.lines.in_line(group, partial(self._tend, group))

    def _tend(self, group: Group) -> None:
        context, incremental = self._context, group.incremental
        if incremental is None or context.groups.get(group.group_id) is not group:
            return
        self._out_of_date.discard(group.group_id)
        topics = topics_of(context.catalog)
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        topics_hash = topics.hash_of(subscribed_topics(incremental))
        if topics_hash != incremental.topics_hash:
            decision.raise_epoch(causes.topics_changed(context.now.wall_ms), topics_hash)
        assignors = assignors_of(context.room.assignors, group.settings)
        tend(decision, topics, assignors, partial(self._targets.when, group))
        if decision.records:
            context.append(decision.records, nothing_follows, holds=group)
        else:
            self._targets.attend(group)

    def changed(self, group: Group, kind: str, record: Any) -> None:
        """A record of a group was carried out."""
        self._streams.changed(group, kind, record)
        self._targets.changed(group, kind, record)

    def end_turn(self) -> None:
        """Begins targets that are due by what the turn has stored, and tells members on streams of it."""
        self._targets.attend_changed()
        self._streams.tell()

    def resolved(self, event: Resolved) -> None:
        """The topics that a group's expressions match were looked up."""
        self._expressions.resolved(event)

    def handle(self, call: Request, request: ConsumerGroupHeartbeatRequest) -> None:
        """Answers when the log has what the request changes."""
        context = self._context
        try:
            self._checks.check(request, call.place)
            group = self._group(request)
        except Refused as refused:
            self._refuse(call, refused)
            return
        if context.lines.call_in_line(group, call):
            return
        if self._reversions.leave(group, call, request):
            return
        if call.place is not None and can_be_together(request) and context.lines.gather(group, call):
            return
        asked = [(call, request), *self._next_in_line(group, call, request)]
        for _ in range(self._take_together(group, asked) - 1):
            group.line.steps.popleft()

    def _take_together(self, group: Group, asked: Sequence[_Asked]) -> int:
        """Decides the first of some requests, and as many more as the log takes at a time.

        Where that does not take them all, half of them are tried, and so on, and the next decision is of at
        most twice as many as this one: else one that asks for much would have all others decided again each
        time that one of them is taken (docs/safety.md, INC-146).

        Returns:
            How many were decided.
        """
        most = self._together.pop(group, _TOGETHER)
        asked = asked[:most]
        while not self._take(group, [one for one in asked if one[0].call_id in self._context.calls]):
            asked = asked[: len(asked) // 2]
            most = len(asked)
        if 2 * most < _TOGETHER:
            self._together[group] = 2 * most
        return len(asked)

    def _next_in_line(
        self, group: Group, call: Request, request: ConsumerGroupHeartbeatRequest
    ) -> Iterator[_Asked]:
        """Further requests that are decided together with one of a member on a stream.

        They are next in line and on streams too, each of another member, and each of the identity that the
        member belongs to now.
        """
        members = {request.member_id}
        if call.place is None or not can_be_together(request):
            return
        for step in islice(group.line.steps, _TOGETHER - 1):
            later = None if step.call_id is None else self._context.calls.get(step.call_id)
            message = None if later is None else later.message
            if (
                later is None
                or not isinstance(message, ConsumerGroupHeartbeatRequest)
                or later.place is None
                or not can_be_together(message)
                or message.member_id in members
                or fault_of_identity(self._context.groups, later) is not None  # it may be a member by now
            ):
                return
            members.add(message.member_id)
            yield later, message

    def _take(self, group: Group, asked: Sequence[_Asked]) -> bool:
        """Decides requests together; returns False where they are several and the log does not take that."""
        context = self._context
        accepted: list[_Asked] = []
        for call, request in asked:
            try:
                self._checks.check_in_group(call, group, request)
                accepted.append((call, request))
            except Refused as refused:
                context.forget_unstored(group)
                self._refuse(call, refused)
        if not accepted:
            return True
        taken: list[tuple[_Asked, Outcome]] = []
        refusals: list[tuple[Request, Refused]] = []
        for one, outcome in zip(accepted, self._decide(group, accepted), strict=True):
            if isinstance(outcome, Refused):
                refusals.append((one[0], outcome))
            else:
                taken.append((one, outcome))
        try:
            self._check_bounds(group, taken)
        except Refused as too_much:
            if len(asked) > 1:
                return False
            refusals.append((asked[0][0], too_much))
            taken.clear()
        for call, why in refusals:
            context.forget_unstored(group)
            self._refuse(call, why)
        if taken:
            self._store(group, taken)
        return True

    def _store(self, group: Group, taken: Sequence[tuple[_Asked, Outcome]]) -> None:
        """Stores what requests come to, and answers them."""
        context = self._context
        self._out_of_date.discard(group.group_id)
        if any(request.topic_regex for (_, request), _ in taken):
            self._expressions.suspect(group)
        _, outcome = taken[-1]
        if outcome.group is not None:
            self._expressions.look(group, outcome.group)
        done = partial(self._answer_or_wait, group, taken)
        if not outcome.records:
            done()
            return
        topics = {entry.topic for record in outcome.records for entry in record.member_stepped.given}
        topics.update(name for (_, request), _ in taken for name in request.topics.names)
        self._deletions.note_before(topics & context.catalog.partitions.keys())
        calls = [call.call_id for (call, _), _ in taken]
        context.append(outcome.records, done, holds=group, calls=calls)

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
            raise Refused(error_code.GROUP_ID_NOT_FOUND, NO_GROUP)
        return group

    def _decide(self, group: Group, asked: Sequence[_Asked]) -> list[Outcome | Refused]:
        """What becomes of requests, in order."""
        incremental = group.incremental
        if incremental is None:
            incremental = IncrementalGroup(group.generation)
        topics = topics_of(self._context.catalog)
        all_asked = [Asked(request, self._around(call, group, request, topics)) for call, request in asked]
        return decide_together(incremental, all_asked, self._context.record)

    def _around(
        self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest, topics: Topics
    ) -> Surroundings:
        context = self._context
        return Surroundings(
            topics,
            group.group_id in self._out_of_date,
            assignors_of(context.room.assignors, group.settings),
            context.config.max_size,
            context.config.max_topics,
            call.host,
            context.now.wall_ms,
            call.identity if Feature.MEMBER_IDENTITY in context.features else "",
            hash_of(request.member_secret) if context.keeps_secrets else b"",
            call.place is not None,
            partial(self._deadlines.is_suspect, group),
            when=partial(self._targets.when, group),
            expressions=context.room.expressions,
            session_ms=session_ms_of(group.settings, context.config),
            grace_ms=group.settings.disconnect_grace_ms,
            may_hold=may_hold(group.settings),
            named=self._deadlines.newest_named(group, request.member_id),
        )

    def _check_bounds(self, group: Group, taken: Sequence[tuple[_Asked, Outcome]]) -> None:
        """Whether the log takes a decision at a time, and the shard the members (docs/safety.md, INC-13).

        Raises:
            Refused: it does not.
        """
        records = taken[-1][1].records if taken else ()
        if not records:
            return
        members = group.incremental.members if group.incremental is not None else {}
        is_new = any(request.member_id not in members for (_, request), _ in taken)
        if not is_one_append(records):
            raise Refused(error_code.INVALID_REQUEST, _TOO_LARGE)
        if full := self._context.bounds.too_much(sum(map(_bytes_of, records)), at_work=not is_new):
            raise Refused(error_code.COORDINATOR_NOT_AVAILABLE, full)

    def _resolved(self, group: Group) -> None:
        """What expressions match has changed: members on streams do not ask for the target."""
        if group.incremental is not None and group.incremental.has_stream_members:
            self._context.lines.in_line(group, partial(self._tend, group))

    def _answer_or_wait(self, group: Group, taken: Sequence[tuple[_Asked, Outcome]]) -> None:
        for (call, request), outcome in taken:
            if outcome.when is When.ASIDE:
                self._wait(call, group, request, outcome)
            else:
                self._answer(call, group, request, outcome)

    def _wait(
        self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest, outcome: Outcome
    ) -> None:
        assert group.incremental is not None
        member = group.incremental.members[outcome.member_id]
        self._deadlines.heard(group, request, promises=call.place is None)
        waiting = Waiting(
            call, request, outcome.before, member.joined, member.version, group.incremental.epoch
        )
        self._targets.wait(group, waiting)

    def _go_on(self, group: Group, waiting: Sequence[Waiting]) -> None:
        """Requests have waited for a target long enough: their members' steps are decided together.

        Of thousands some at a time, with pauses for other groups; what comes for theirs waits in line, for it
        may be of one of these members (LIM-19).
        """
        self._context.lines.in_line(group, partial(self._go_on_in_turns, group, waiting))

    def _go_on_in_turns(self, group: Group, waiting: Sequence[Waiting]) -> None:
        self._go_on_together(group, waiting[:_TOGETHER])
        if rest := waiting[_TOGETHER:]:
            self._context.lines.pause(group, partial(self._go_on_in_turns, group, rest))

    def _go_on_together(self, group: Group, waiting: Sequence[Waiting]) -> None:
        context, incremental = self._context, group.incremental
        if incremental is None or context.groups.get(group.group_id) is not group:
            for one in waiting:
                is_classic = one.request.member_id in group.members
                code = error_code.GROUP_CLASSIC if is_classic else error_code.UNKNOWN_MEMBER_ID
                context.refuse(one.call.call_id, code)  # it may join anew
            return
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        outcomes: list[tuple[Waiting, Outcome]] = []
        for one in waiting:
            member = decision.group.members.get(one.request.member_id)
            if member is None:
                context.refuse(one.call.call_id, error_code.UNKNOWN_MEMBER_ID)
            elif member.joined != one.joined or member.is_away:
                context.refuse(one.call.call_id, error_code.FENCED_MEMBER_EPOCH, _JOINED_SINCE)
            elif one.call.place is not None and not incremental.target_epoch:  # the epoch of a join is 0
                context.refuse(one.call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, _NO_TARGET)
            elif one.call.call_id in context.calls:
                says = member.version == one.version
                outcomes.append((one, go_on(decision, one.request, one.before, says=says)))
        done = partial(self._gone_on, group, outcomes)
        if decision.records:
            context.append(decision.records, done, holds=group, calls=[one.call.call_id for one in waiting])
        else:
            done()

    def _gone_on(self, group: Group, outcomes: Sequence[tuple[Waiting, Outcome]]) -> None:
        for one, outcome in outcomes:
            self._answer(one.call, group, one.request, outcome)

    def _answer(
        self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest, outcome: Outcome
    ) -> None:
        context = self._context
        if outcome.left:
            if call.place is not None:
                self._streams.detach(call.place.stream_id, group.group_id, request.member_id)
            response = ConsumerGroupHeartbeatResponse(
                member_id=request.member_id, shard_epoch=context.epoch, member_epoch=outcome.left
            )
            context.reply(call.call_id, response)
            return
        assert group.incremental is not None
        member = group.incremental.members[outcome.member_id]
        self._deadlines.heard(group, request, promises=call.place is None)
        self._streams.attach(call, group, member)
        whole_list = outcome.whole_list
        if request.member_seq:  # "unchanged" is for who knows what it was told last (INC-03)
            whole_list = Position.from_proto(request.version) != member.version
        context.reply(call.call_id, answer_of(context, group, member, whole_list=whole_list))

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


def _bytes_of(record: records_pb2.Record) -> int:
    return record.ByteSize()
