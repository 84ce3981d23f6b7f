"""An assignment that was computed aside, when the group has gone on (docs/safety.md, INC-30 to INC-33)."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import repeat

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import NONE, Partitions, TopicPartition, without
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
    gets: dict[str, Partitions] = {}
    for member_id, change in changes.items():
        meant |= change.gets
        member = group.members.get(member_id)
        if member is not None:
            wanted = group.topics_of(member.told).intersection({name for name, _ in change.gets})
            ends = {name: _end_of(name, topics, incarnations) for name in wanted}
            taken = [p for p in change.gets if 0 <= p[1] < ends.get(p[0], 0)]
            if not topics.removed.keys().isdisjoint(ends):
                taken = [p for p in taken if p[1] not in topics.removed.get(p[0], ())]
            gets[member_id] = change.gets if len(taken) == len(change.gets) else frozenset(taken)
            takers.update(zip(taken, repeat(member_id)))
    if sum(map(len, gets.values())) > len(takers):  # no assignor does that
        gets = {who: frozenset([p for p in some if takers[p] == who]) for who, some in gets.items()}
    lost: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    for partition, taker in takers.items():
        holder = group.wanting.get(partition, taker)
        if holder != taker:
            lost[holder].add(partition)
    counted: dict[str, Change] = {}
    for member_id, member in group.members.items():  # there may be thousands, of whom few have a change
        if member_id not in changes and member_id not in lost:
            continue
        loses = lost[member_id]
        if member_id in changes:
            loses |= (changes[member_id].loses - meant) & member.target
        new = without(gets.get(member_id, NONE), member.target)
        if new or loses:
            counted[member_id] = Change(new, frozenset(loses))
    return counted, len(takers) < len(meant)


def _end_of(name: str, topics: Topics, incarnations: Mapping[str, int]) -> int:
    """How many numbers of partitions a topic has; none where another one has its name by now."""
    is_same = topics.incarnations.get(name, 0) == incarnations.get(name, 0)
    return topics.partitions.get(name, 0) if is_same else 0
