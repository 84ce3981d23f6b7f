"""ConsumerGroupDescribe: what incremental groups look like (conformance GS-09 to GS-13)."""

from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

from muster_core import error_code
from muster_core.events import Request
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import Partitions, by_topic
from muster_core.incremental.target import preferred_assignor
from muster_core.protocol.context import IN_QUARANTINE, ShardContext


class Descriptions:
    """Shows what is acknowledged.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context

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
                self._fill(answer, group.incremental)
        self._context.reply(call.call_id, response)

    def _fill(self, answer: ConsumerGroupDescribeResponse.Group, group: IncrementalGroup) -> None:
        answer.state = group.state.value
        answer.group_epoch, answer.assignment_epoch = group.epoch, group.target_epoch
        answer.server_assignor = preferred_assignor(group, next(iter(self._context.room.assignors), ""))
        for member_id in sorted(group.members):
            self._fill_member(answer.members.add(), group.members[member_id])

    def _fill_member(self, answer: ConsumerGroupDescribeResponse.Member, member: Member) -> None:
        told = member.told
        answer.member_id, answer.group_instance_id = told.member_id, told.group_instance_id
        answer.rack_id, answer.client_id, answer.host = told.rack_id, told.client_id, told.host
        answer.member_epoch = member.epoch
        answer.topics.extend(sorted(told.topics))
        answer.topic_regex = told.topic_regex
        answer.assigned.extend(by_topic(self._existing(member.assigned)))
        answer.revoking.extend(by_topic(self._existing(member.pending)))
        answer.target.extend(by_topic(self._existing(member.target)))

    def _existing(self, partitions: Partitions) -> Partitions:
        """Those of topics that there are (conformance GS-11)."""
        return frozenset(p for p in partitions if p[0] in self._context.catalog.partitions)
