"""An assignment that was computed aside, when the group has gone on (docs/safety.md, INC-30 to INC-33)."""

from collections import defaultdict
from collections.abc import Mapping

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Change, Changes, Topics


def what_counts(
    group: IncrementalGroup, changes: Changes, topics: Topics, incarnations: Mapping[str, int]
) -> tuple[Changes, bool]:
    """What of a result can become the target.

    Members that are gone, or have another id since, get nothing; nobody gets a partition of a topic that
    it does not want any more, or that is another one by now. What is left over stays with whomever the target
    gives it to.

    Args:
        group: the group as it is.
        changes: the result.
        topics: the topics that there are.
        incarnations: which topic had a name when the computation began.

    Returns:
        The changes of the group's target, and whether the share of somebody waits for the next assignment.
    """
    takers: dict[TopicPartition, str] = {}
    meant: set[TopicPartition] = set()
    for member_id, change in changes.items():
        meant |= change.gets
        member = group.members.get(member_id)
        if member is not None:
            wanted = group.topics_of(member.told)
            takers |= {
                partition: member_id
                for partition in change.gets
                if partition[0] in wanted and _is_same(partition, topics, incarnations)
            }
    gets: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    for partition, member_id in takers.items():
        gets[member_id].add(partition)
    counted: dict[str, Change] = {}
    for member_id, member in group.members.items():
        loses = {p for p in takers.keys() & member.target if takers[p] != member_id}
        if member_id in changes:
            loses |= (changes[member_id].loses - meant) & member.target
        new = gets[member_id] - member.target if member_id in gets else set[TopicPartition]()
        if new or loses:
            counted[member_id] = Change(frozenset(new), frozenset(loses))
    return counted, len(takers) < len(meant)


def _is_same(partition: TopicPartition, topics: Topics, incarnations: Mapping[str, int]) -> bool:
    name, number = partition
    there = 0 <= number < topics.partitions.get(name, 0) and number not in topics.removed.get(name, ())
    return there and topics.incarnations.get(name, 0) == incarnations.get(name, 0)
