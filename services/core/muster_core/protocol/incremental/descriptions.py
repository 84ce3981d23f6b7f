"""ConsumerGroupDescribe: what incremental groups look like (conformance GS-09 to GS-13)."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import DescribeGroupsResponse, PartitionToken
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

from muster_core import error_code
from muster_core.events import MemberRange, Request
from muster_core.incremental.group import IncrementalGroup, IncrementalGroupState
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import Partitions, TopicPartition, by_topic
from muster_core.position import NOWHERE
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.settings import assignor_in_use
from muster_core.protocol.responses import IN_QUARANTINE
from muster_core.state.group import CONSUMER, Group

STATES = {
    IncrementalGroupState.EMPTY: coordinator_pb2.GROUP_STATE_EMPTY,
    IncrementalGroupState.ASSIGNING: coordinator_pb2.GROUP_STATE_ASSIGNING,
    IncrementalGroupState.RECONCILING: coordinator_pb2.GROUP_STATE_RECONCILING,
    IncrementalGroupState.STABLE: coordinator_pb2.GROUP_STATE_STABLE,
}
"""As calls about groups of both kinds show them."""

KEPT_TOKENS_MAX = 1_000
"""So many tokens that a member kept are described."""

TOLD_AS_MEMBER = 16
"""So many topics, partitions or tokens of a member take about as long to show as all else of it."""

_PUBLISHED = 1
"""Version of the published messages."""


class Descriptions:
    """Shows what is acknowledged.

    Args:
        context: the shard.
        deadlines: the members' clocks.
    """

    def __init__(self, context: ShardContext, deadlines: Deadlines) -> None:
        self._context = context
        self._deadlines = deadlines

    def describe(self, call: Request, request: ConsumerGroupDescribeRequest) -> None:
        """Answers at once."""
        response = ConsumerGroupDescribeResponse()
        for group_id in request.group_ids:
            answer = response.groups.add(group_id=group_id, shard_epoch=self._context.epoch)
            group = self._context.working_on = self._context.groups.get(group_id)
            if group_id in self._context.quarantine.groups:
                answer.error_code, answer.error_message = error_code.GROUP_QUARANTINED, IN_QUARANTINE
            elif group is None or group.incremental is None:
                answer.error_code = error_code.GROUP_ID_NOT_FOUND
                answer.error_message = "there is no incremental group of this name"
            else:
                as_shown = None if call.shown is None else call.shown.of
                self._fill(answer, group, as_shown or group.incremental, call.shown)
        self._context.reply(call.call_id, response)

    def describe_as_any(
        self,
        group: Group,
        incremental: IncrementalGroup,
        answer: DescribeGroupsResponse.Group,
        shown: MemberRange | None,
    ) -> None:
        """Fills what DescribeGroups shows of groups of both kinds."""
        answer.type, answer.protocol_type = CONSUMER, CONSUMER
        answer.state = STATES[incremental.state]
        answer.protocol_name = incremental.server_assignor
        answer.generation = incremental.epoch
        answer.state_since_ms = group.state_since_ms
        if incremental.members and group.history:
            answer.state_since_ms = group.history[-1].started_at_ms
        if group.cause is not None:
            answer.cause.CopyFrom(group.cause)
        for member_id in _shown_of(incremental, shown):
            member = incremental.members[member_id]
            told = member.told
            subscription = common_pb2.Subscription(version=_PUBLISHED, topics=sorted(told.topics))
            assignment = common_pb2.Assignment(version=_PUBLISHED, partitions=by_topic(member.assigned))
            described = answer.members.add(
                member_id=member_id,
                group_instance_id=told.group_instance_id,
                client_id=told.client_id,
                host=told.host,
                metadata=subscription.SerializeToString(),
                assignment=assignment.SerializeToString(),
                session_remaining_ms=self._deadlines.session_ms(group, member_id),
                confirmed=True,
                client_version=told.client_version,
            )
            _fill_tokens(described, member)

    def _fill(
        self,
        answer: ConsumerGroupDescribeResponse.Group,
        group: Group,
        incremental: IncrementalGroup,
        shown: MemberRange | None,
    ) -> None:
        answer.state = incremental.state.value
        answer.group_epoch, answer.assignment_epoch = incremental.epoch, incremental.target_epoch
        answer.server_assignor = assignor_in_use(self._context.room.assignors, group.settings, incremental)
        if group.cause is not None:
            answer.cause.CopyFrom(group.cause)
        hold = incremental.hold
        if hold is not None and hold.is_on:
            answer.hold.member_id = hold.member_id
            answer.hold.began_ms, answer.hold.until_ms = hold.began_ms, hold.until_ms
        elif group.settings.hold:
            answer.hold.SetInParent()
        for member_id in _shown_of(incremental, shown):
            member = incremental.members[member_id]
            described = answer.members.add()
            self._fill_member(described, incremental, member)
            self._fill_awaited(described, incremental, member)
            described.session_remaining_ms = self._deadlines.session_ms(group, member_id)
            described.revocation_remaining_ms = self._deadlines.revocation_ms(group, member_id)

    @staticmethod
    def _fill_awaited(
        answer: ConsumerGroupDescribeResponse.Member, group: IncrementalGroup, member: Member
    ) -> None:
        """What of its target others have, and who."""
        if member.has_all:
            return
        awaited: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in member.target.difference(member.held):
            if owner := group.owners.get(partition):
                awaited[owner].append(partition)
        for owner, partitions in sorted(awaited.items()):
            answer.awaits.add(member_id=owner, topics=by_topic(partitions))

    def _fill_member(
        self, answer: ConsumerGroupDescribeResponse.Member, group: IncrementalGroup, member: Member
    ) -> None:
        told = member.told
        answer.member_id, answer.group_instance_id = told.member_id, told.group_instance_id
        answer.rack_id, answer.client_id, answer.host = told.rack_id, told.client_id, told.host
        answer.member_epoch = group.epoch_of(member)
        answer.topics.extend(sorted(told.topics))
        answer.topic_regex, answer.weight = told.topic_regex, told.weight
        assigned = self._existing(member.assigned)
        answer.assigned.extend(assigned)
        answer.revoking.extend(self._existing(member.pending))
        answer.target.extend(assigned if member.has_all else self._existing(member.target))

    def _existing(self, partitions: Partitions) -> list[common_pb2.TopicPartitions]:
        """Those of topics that there are (conformance GS-11)."""
        known = self._context.catalog.partitions
        return [entry for entry in by_topic(partitions) if entry.topic in known]


def shown_of(ids: Sequence[str], shown: MemberRange | None, weight_of: Callable[[str], int]) -> Iterator[str]:
    """Those of some members' ids, in order, that are asked for: one at least, if there are more.

    Args:
        ids: the ids.
        shown: which; None: all.
        weight_of: how long it takes to show a member, as of one that has little.
    """
    if shown is None:
        yield from ids
        return
    left = shown.limit
    for member_id in islice(ids, bisect_right(ids, shown.after), None):
        yield member_id
        left -= weight_of(member_id)
        if left <= 0:
            return


def _shown_of(group: IncrementalGroup, shown: MemberRange | None) -> Iterator[str]:
    def weight_of(member_id: str) -> int:
        member = group.members[member_id]
        return 1 + (len(member.told.topics) + len(member.held) + len(member.target)) // TOLD_AS_MEMBER

    return shown_of(group.tally.ids, shown, weight_of)


def _fill_tokens(answer: DescribeGroupsResponse.Member, member: Member) -> None:
    """Its newest token, and the first of those of partitions that it has had for longer."""
    tokens = {held.token for held in member.held_alike if held.taken == NOWHERE}
    newest = max(tokens, default=NOWHERE)
    answer.token = "" if newest == NOWHERE else newest.token
    if len(tokens) < 2:
        return
    older = [p for p, held in member.held.items() if held.taken == NOWHERE and held.token != newest]
    answer.kept_tokens_truncated = len(older) > KEPT_TOKENS_MAX
    for partition in nsmallest(KEPT_TOKENS_MAX, older):
        topic, number = partition
        token = member.held[partition].token.token
        answer.kept_tokens.append(PartitionToken(topic=topic, partition=number, token=token))
