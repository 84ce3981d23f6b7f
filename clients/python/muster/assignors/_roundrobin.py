"""The `roundrobin` assignor: one partition to each member in turn, over all topics."""

from muster._values import TopicPartition
from muster.assignors._snapshot import Assignment, GroupSnapshot


def assign_roundrobin(group: GroupSnapshot) -> Assignment:
    """Deals all partitions of all topics in a circle over the members that subscribe to them."""
    members = group.members_in_order()
    subscriptions = [set(member.topics) for member in members]
    result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    cursor = 0
    for topic in group.topics_in_order():
        for number in range(group.topics[topic].partitions):
            while topic not in subscriptions[cursor]:
                cursor = (cursor + 1) % len(members)
            result[members[cursor].member_id].append(TopicPartition(topic, number))
            cursor = (cursor + 1) % len(members)
    return result
