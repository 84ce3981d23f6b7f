"""The partitions that a call names: how many, since each takes time, and in few words."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

from muster_core.events import GroupRequest
from muster_protos.muster.v1.coordinator_pb2 import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

_SPANS = 32
"""So many runs of numbers are told of a topic."""


def partitions_named(request: GroupRequest) -> int:
    """How many partitions a call names whose offsets it stores, reads or removes.

    A topic counts as one at least: it is looked at also where none of its partitions is named.
    """
    count = _COUNTS.get(type(request))
    return 0 if count is None else count(request)


def partitions_looked_at(request: GroupRequest) -> int:
    """These, or what a member says in a heartbeat that it works on, which counts for no quota."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return len(request.topics.names) + _in_topics(request.owned)
    return partitions_named(request)


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


def _in_topics(request: Any) -> int:
    return sum([len(topic.partitions) or 1 for topic in request.topics])


def _committed(request: OffsetCommitRequest) -> int:
    return _in_topics(request) + sum([len(topic.partitions) or 1 for topic in request.ends])


def _fetched(request: OffsetFetchRequest) -> int:
    return sum(map(_in_topics, request.groups))


_COUNTS: dict[type[Any], Callable[[Any], int]] = {
    OffsetCommitRequest: _committed,
    OffsetDeleteRequest: _in_topics,
    OffsetFetchRequest: _fetched,
}
