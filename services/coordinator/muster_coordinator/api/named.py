"""What a call names: how many partitions, groups and members, since each takes time, and in few words."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

from muster_core.events import GroupRequest
from muster_protos.limits import PROTOCOLS_MAX
from muster_protos.muster.v1.coordinator_pb2 import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupHistoryRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)

from muster_coordinator.validation import GROUPS_MAX, PARTITIONS_MAX

NAMED_MAX = 100_000
"""No call may name more; of one that does they are not looked at. One with more topics or groups than any may
have counts as if it did: to count what is in each of them would take long."""

_TOPIC = 2
"""A topic takes as long as so many partitions, besides its own."""

_GROUP = 5
"""So does a group: its rights are looked up, and it has an outcome of its own."""

_SPANS = 32
"""So many runs of numbers are told of a topic."""


def named(request: GroupRequest) -> int:
    """How many partitions, topics, groups and members a call names, as they count for a quota.

    What a member says in a heartbeat counts for none, if it is not more than it may say.
    """
    count = _COUNTS.get(type(request))
    return 0 if count is None else count(request)


def looked_at(request: GroupRequest) -> int:
    """These, groups as several, and what a member says in a heartbeat that it wants and works on."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return len(request.topics.names) + in_topics(request.owned.topics)
    if isinstance(request, OffsetFetchRequest):
        return named(request) + _GROUP * len(request.groups)
    if isinstance(request, _OF_SEVERAL_GROUPS):
        return _GROUP * len(request.group_ids)
    return named(request)


def may_answer_more(request: GroupRequest) -> bool:
    """Whether its answer may have more than it names: all offsets of a group, members, groups."""
    if isinstance(request, OffsetFetchRequest):
        return not all(group.topics for group in request.groups[:GROUPS_MAX])
    return isinstance(request, _OPEN)


def spans_of(numbers: Collection[int]) -> str:
    """Numbers in few words: `0-9,12`; of many runs the first ones, and how many numbers there are."""
    runs = _runs(numbers)
    text = ",".join(islice(runs, _SPANS))
    return text if next(runs, None) is None else f"{text},… ({len(numbers):,})"


def _runs(numbers: Collection[int]) -> Iterator[str]:
    ordered = sorted(numbers)
    first = 0
    for place, number in enumerate(ordered, 1):
        if place == len(ordered) or ordered[place] != number + 1:
            begin = ordered[first]
            yield str(begin) if begin == number else f"{begin}-{number}"
            first = place


def in_topics(topics: Collection[Any]) -> int:
    """How many partitions some topics have, as they count for a quota."""
    if len(topics) > PARTITIONS_MAX:
        return NAMED_MAX + len(topics)
    return sum([len(topic.partitions) for topic in topics]) + _TOPIC * len(topics)


def _committed(request: OffsetCommitRequest) -> int:
    return in_topics(request.topics) + in_topics(request.ends)


def _fetched(request: OffsetFetchRequest) -> int:
    groups = request.groups
    if len(groups) > GROUPS_MAX:
        return NAMED_MAX + len(groups)
    return sum([in_topics(group.topics) or 1 for group in groups])


def _beyond(number: int, most: int) -> int:
    return number if number > most else 0


_OPEN = (DescribeGroupsRequest, ConsumerGroupDescribeRequest, GroupHistoryRequest, ListGroupsRequest)

_OF_SEVERAL_GROUPS = (DescribeGroupsRequest, ConsumerGroupDescribeRequest, DeleteGroupsRequest)

_COUNTS: dict[type[Any], Callable[[Any], int]] = {
    OffsetCommitRequest: _committed,
    OffsetDeleteRequest: lambda request: in_topics(request.topics),
    OffsetFetchRequest: _fetched,
    SyncGroupRequest: lambda request: len(request.assignments),
    LeaveGroupRequest: lambda request: len(request.members),
    DescribeGroupsRequest: lambda request: len(request.group_ids),
    ConsumerGroupDescribeRequest: lambda request: len(request.group_ids),
    DeleteGroupsRequest: lambda request: len(request.group_ids),
    JoinGroupRequest: lambda request: _beyond(len(request.protocols), PROTOCOLS_MAX),
    ConsumerGroupHeartbeatRequest: lambda request: _beyond(
        max(len(request.topics.names), len(request.owned.topics)), NAMED_MAX
    ),
}
