"""Whom a classic group waits for, as DescribeGroups shows it."""

from muster_protos.muster.v1.coordinator_pb2 import DescribeGroupsResponse

from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.claims import Claims, withheld
from muster_core.state.members.member import Member


class Holdups:
    """Finds who holds a rebalance up.

    Args:
        context: the shard.
        rebalancer: knows how long is waited.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer

    def show(self, group: Group, answer: DescribeGroupsResponse.Group) -> None:
        """Says of each member that is shown whether the group waits for it, and for how long.

        Nothing is looked for in what members keep, which may be two hundred thousand partitions each time.
        """
        ends_ms = self._rebalancer.wait_ends_ms(group)
        left_ms = -1 if ends_ms is None else max(ends_ms - self._context.now.boot_ms, 0)
        answer.unused_ids = len(group.pending_members)
        for shown in answer.members:
            member = group.members[shown.member_id]
            shown.protocols.extend(name for name, _ in member.terms.protocols)
            shown.awaited = _awaited(group, member)
            shown.awaited_remaining_ms = left_ms if shown.awaited else -1
            if shown.awaited == DescribeGroupsResponse.AWAITED_RELEASE:
                shown.MergeFromString(self._withheld(group, member))

    def _withheld(self, group: Group, member: Member) -> bytes:
        """What a member is to release: written with the plan that left it out, unless that was replayed."""
        written = group.to_release[member.member_id]
        if not written:
            claims = Claims([member], self._context.config.max_partitions)
            left = claims.unmet_by(member.member_id, member.assignment)
            written = b"".join([withheld(topic, left[topic]) for topic in sorted(left)])
            group.to_release[member.member_id] = written
        return written


def _awaited(group: Group, member: Member) -> DescribeGroupsResponse.Awaited.ValueType:
    if group.state is GroupState.PREPARING_REBALANCE:
        has_joined = member.join_call is not None
        return (
            DescribeGroupsResponse.AWAITED_UNSPECIFIED if has_joined else DescribeGroupsResponse.AWAITED_JOIN
        )
    if member.member_id in group.pending_sync:
        return DescribeGroupsResponse.AWAITED_SYNC
    if member.member_id in group.to_release:
        return DescribeGroupsResponse.AWAITED_RELEASE
    return DescribeGroupsResponse.AWAITED_UNSPECIFIED
