"""The assignors of incremental groups, as a coordinator hands them to its shards."""

from collections.abc import Mapping

from muster_assignors import (
    AssignFunction,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    assign_range_without_racks,
    assign_uniform,
)
from muster_core.incremental import partitions
from muster_core.incremental.target import Question, ServerAssignor


def _asked(assign: AssignFunction) -> ServerAssignor:
    def answer(question: Question) -> Mapping[str, list[partitions.TopicPartition]]:
        members = {
            member_id: MemberSnapshot(
                member_id,
                tuple(sorted(one.topics)),
                one.group_instance_id,
                one.rack_id,
                tuple(TopicPartition(*partition) for partition in sorted(one.before)),
            )
            for member_id, one in question.candidates.items()
        }
        topics = {
            name: TopicSnapshot(
                numbers[-1] + 1, removed=frozenset(range(numbers[-1] + 1)).difference(numbers)
            )
            for name, numbers in question.topics.items()
        }
        if not members:
            return {}
        given = assign(GroupSnapshot(members, topics))
        return {member_id: [(p.topic, p.number) for p in some] for member_id, some in given.items()}

    return answer


SERVER_ASSIGNORS: Mapping[str, ServerAssignor] = {
    "uniform": _asked(assign_uniform),
    "range": _asked(assign_range_without_racks),
}
