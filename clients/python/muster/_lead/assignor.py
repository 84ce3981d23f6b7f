"""Who leads: whoever does already."""

from muster_protos.limits import ID_MAX_BYTES

from muster._values import TopicPartition
from muster.assignors import Assignment, Assignor, GroupSnapshot, MemberSnapshot

TOPIC = "muster.leadership"
"""The topic of all leaderships. It has one partition; each leadership is a group of its own."""

PARTITION = TopicPartition(TOPIC, 0)

GROUP_PREFIX = "lead/"
"""Before the name of a leadership: its group."""

NAME_MAX_BYTES = ID_MAX_BYTES - len(GROUP_PREFIX)
"""Longest name of a leadership."""


def assign_leader(group: GroupSnapshot) -> Assignment:
    """Leaves the leadership to who keeps it, also beside candidates that come before it in order."""
    if TOPIC not in group.topics:
        return {}
    candidates = [member for member in group.members_in_order() if TOPIC in member.topics]
    leader = max(candidates, key=_keeps_since, default=None)
    return {} if leader is None else {leader.member_id: [PARTITION]}


def _keeps_since(member: MemberSnapshot) -> int:
    """The generation in which it was given what it keeps; -2: it keeps nothing."""
    return member.generation if member.keeps_owned and PARTITION in member.owned else -2


LEADER = Assignor("leader", assign_leader, cooperative=True)
