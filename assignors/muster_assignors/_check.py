"""What every assignment must keep, whoever made it."""

from collections.abc import Collection, Mapping

from muster_assignors._snapshot import Assignment, Assignor, GroupSnapshot, TopicPartition, partitions_of


class AssignmentRefused(ValueError):
    """An assignor returned what is no assignment of the group; the words say what is wrong with it."""


def check_assignment(assignor: Assignor, group: GroupSnapshot, assignment: Assignment) -> None:
    """Checks that each partition of each subscribed topic has exactly one owner, who subscribes to the topic.

    A cooperative assignor may leave a partition out while a member keeps it that is to release it.

    Raises:
        AssignmentRefused: it is not so, or it names an unknown member or partition.
    """
    if not isinstance(assignment, Mapping):
        raise AssignmentRefused(
            f"it returned {type(assignment).__name__}, not a mapping of member ids to partitions"
        )
    owners: dict[TopicPartition, str] = {}
    for member_id, partitions in assignment.items():
        _add_owner(owners, group, member_id, partitions)
    wanted = group.topics_in_order()
    if len(owners) == sum(len(group.topics[topic].numbers) for topic in wanted):
        return
    kept = _kept(group) if assignor.cooperative else set[TopicPartition]()
    left_out = [
        partition
        for topic in wanted
        for partition in partitions_of(topic, group.topics[topic].numbers)
        if partition not in owners and partition not in kept
    ]
    if left_out:
        others = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise AssignmentRefused(f"it left out {left_out[0]}{others}: each partition needs an owner")


def _add_owner(
    owners: dict[TopicPartition, str], group: GroupSnapshot, member_id: str, partitions: object
) -> None:
    member = group.members.get(member_id)
    if member is None:
        raise AssignmentRefused(f"it assigned to {member_id!r}, which is not a member")
    if not isinstance(partitions, Collection):
        raise AssignmentRefused(
            f"it assigned {type(partitions).__name__} to {member_id!r}, not a list of partitions"
        )
    wanted = {topic: group.topics[topic].partitions for topic in member.topics if topic in group.topics}
    for name, number in partitions:
        partition = TopicPartition(name, number)
        if not isinstance(number, int) or not 0 <= number < wanted.get(name, 0):
            known = group.topics.get(name)
            if known is not None and number in range(known.partitions):
                raise AssignmentRefused(
                    f"it assigned {partition} to {member_id!r}, which does not want the topic"
                )
            raise AssignmentRefused(f"it assigned {partition}, which does not exist")
        if number in group.topics[name].removed:
            raise AssignmentRefused(f"it assigned {partition}, which was removed")
        if partition in owners:
            raise AssignmentRefused(f"it assigned {partition} to {owners[partition]!r} and to {member_id!r}")
        owners[partition] = member_id


def _kept(group: GroupSnapshot) -> set[TopicPartition]:
    """What members go on working on."""
    return {p for member in group.members.values() if member.keeps_owned for p in member.owned}
