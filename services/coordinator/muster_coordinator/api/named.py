"""How many partitions a call names: what is asked for with them takes longer than the call itself."""

from collections.abc import Callable
from typing import Any

from muster_core.events import GroupRequest
from muster_protos.muster.v1.coordinator_pb2 import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)


def partitions_named(request: GroupRequest) -> int:
    """How many partitions a call names whose offsets it stores, reads or removes."""
    count = _COUNTS.get(type(request))
    return 0 if count is None else count(request)


def _in_topics(request: Any) -> int:
    return sum([len(topic.partitions) for topic in request.topics])


def _committed(request: OffsetCommitRequest) -> int:
    return _in_topics(request) + sum([len(topic.partitions) for topic in request.ends])


def _fetched(request: OffsetFetchRequest) -> int:
    return sum(map(_in_topics, request.groups))


_COUNTS: dict[type[Any], Callable[[Any], int]] = {
    OffsetCommitRequest: _committed,
    OffsetDeleteRequest: _in_topics,
    OffsetFetchRequest: _fetched,
}
