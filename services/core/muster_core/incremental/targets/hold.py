"""A group on hold: nothing is taken from a living member for another one (docs/safety.md, INC-124)."""

from collections.abc import Collection, Mapping

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Change, Changes, Question, ServerAssignor


def holding(assignor: ServerAssignor) -> ServerAssignor:
    """An assignor that moves nothing: members keep what they should have had and still subscribe to."""

    def assign(question: Question) -> Mapping[str, Collection[TopicPartition]]:
        answer = assignor(question)
        there = {(topic, number) for topic, numbers in question.topics.items() for number in numbers}
        kept = {
            member_id: {one for one in candidate.before if one in there and one[0] in candidate.topics}
            for member_id, candidate in question.candidates.items()
        }
        stays = frozenset[TopicPartition]().union(*kept.values())
        return {
            member_id: mine | (set(answer.get(member_id, ())) - stays) for member_id, mine in kept.items()
        }

    return assign


def without_moves(group: IncrementalGroup, changes: Changes) -> Changes:
    """Changes of a target that was computed before the hold, or without it, less what they would move."""
    given = frozenset[TopicPartition]().union(*(change.gets for change in changes.values()))
    stays = {
        partition
        for partition in given & group.wanting.keys()
        if partition[0] in group.topics_of(group.members[group.wanting[partition]].told)
    }
    rest = {who: Change(one.gets - stays, one.loses - stays) for who, one in changes.items()}
    return {who: one for who, one in rest.items() if one.gets or one.loses}
