"""The `roundrobin` assignor: one partition to each member in turn, over all topics."""

from bisect import bisect_left

from muster_assignors._snapshot import Assignment, GroupSnapshot, TopicPartition, partitions_of


def assign_roundrobin(group: GroupSnapshot) -> Assignment:
    """Deals all partitions of all topics in a circle over the members that subscribe to them."""
    members = group.members_in_order()
    result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    subscribers: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        for topic in dict.fromkeys(member.topics):
            subscribers.setdefault(topic, []).append(place)
    turn = 0
    for topic in group.topics_in_order():
        places, numbers = subscribers[topic], group.topics[topic].numbers
        count = len(numbers)
        start = bisect_left(places, turn)
        circle = places[start:] + places[:start]
        for begin, place in enumerate(circle[:count]):
            result[members[place].member_id] += partitions_of(topic, numbers[begin :: len(circle)])
        turn = circle[(count - 1) % len(circle)] + 1
    return result
