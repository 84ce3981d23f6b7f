"""Which groups work on a topic: what its deletion would end."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster_protos.muster.v1 import coordinator_pb2

from muster._messages import decode_assignment, decode_subscription
from muster._values import Committed, Topic, TopicPartition

_AT_A_TIME = 16


class TopicUser(NamedTuple):
    """A group whose members work on a topic, or want to.

    Attributes:
        group_id: the group.
        members: how many of its members subscribe to the topic or own partitions of it.
        committed: on how many of the topic's partitions it committed progress.
    """

    group_id: str
    members: int
    committed: int


class Groups(Protocol):
    """What is asked about groups; `Cluster` answers it."""

    async def list_groups(self) -> list[coordinator_pb2.ListGroupsResponse.Group]:
        """All groups."""

    async def describe_group(self, group_id: str) -> coordinator_pb2.DescribeGroupsResponse.Group:
        """A group with its members."""

    async def committed(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """The last committed position of each partition, with its metadata."""


async def topic_users(groups: Groups, topic: Topic, numbers: Sequence[int] | None = None) -> list[TopicUser]:
    """The groups with members that work on a topic, by id; looks at each group that has members.

    What members want is known while their group is stable; in a rebalance only what they own. A group in
    quarantine is left out: nobody is served there.

    Args:
        groups: answers what is asked about groups.
        topic: the topic.
        numbers: of the partitions whose commits are counted; None: all.

    Raises:
        ClusterUnavailable: not every group could be looked at.
    """
    counted = range(topic.partitions) if numbers is None else numbers
    places = asyncio.Semaphore(_AT_A_TIME)

    async def user(group_id: str) -> TopicUser:
        async with places:
            group = await groups.describe_group(group_id)
            members = sum(_uses(member, topic.name) for member in group.members)
            if not members:
                return TopicUser(group_id, 0, 0)
            partitions = [TopicPartition(topic.name, number) for number in counted]
            return TopicUser(group_id, members, len(await groups.committed(group_id, partitions)))

    listed = await groups.list_groups()
    with_members = [
        group.group_id for group in listed if not group.quarantined and group.state not in _WITHOUT_MEMBERS
    ]
    found = await asyncio.gather(*map(user, with_members))
    return [one for one in found if one.members]


_WITHOUT_MEMBERS = frozenset({coordinator_pb2.GROUP_STATE_EMPTY, coordinator_pb2.GROUP_STATE_DEAD})


def _uses(member: coordinator_pb2.DescribeGroupsResponse.Member, topic: str) -> bool:
    subscription = decode_subscription(member.metadata)
    owned = decode_assignment(member.assignment) or ()
    return (subscription is not None and topic in subscription.topics) or any(
        partition.topic == topic for partition in owned
    )
