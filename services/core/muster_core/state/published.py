"""Reading the published subscription and assignment messages out of bytes that may be foreign."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat

from google.protobuf.message import DecodeError
from muster_protos.muster.v1 import common_pb2

_VERSION = 1

TopicPartition = tuple[str, int]


def read_subscription(metadata: bytes) -> common_pb2.Subscription | None:
    """The published subscription in these bytes; None: foreign."""
    try:
        message = common_pb2.Subscription.FromString(metadata)
    except DecodeError:
        return None
    return message if message.version == _VERSION else None


TOPICS_MAX = 100_000
"""Topics that lists of a group's members are read of, those alike counted once; more take too long."""


def topics_in(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that members subscribe to; None: some of the bytes are foreign, or they list too many.

    Nothing is asked for after the first foreign bytes: a member that was replaced may have none at all.
    """
    others = iter(metadata)
    first = next(others, None)
    if first is None:
        return frozenset()
    topics = _topics_in(first) if len(first) > _SHORT_BYTES else _topics_in_short(first)
    if topics is None:
        return None
    for other in others:
        if other != first:  # mostly all members say the same
            return _topics_in_all(chain((first, other), others))
    return topics


_SHORT_BYTES = 1_024


def _topics_in(metadata: bytes) -> frozenset[str] | None:
    subscription = read_subscription(metadata)
    if subscription is None or len(subscription.topics) > TOPICS_MAX:
        return None
    return frozenset(subscription.topics)


_topics_in_short = lru_cache(maxsize=1_024)(_topics_in)
"""Members say the same in each generation."""


def _topics_in_all(metadata: Iterable[bytes]) -> frozenset[str] | None:
    lists: dict[bytes, common_pb2.Subscription] = {}
    read: set[bytes] = set()
    for each in metadata:
        if each in read:
            continue
        subscription = read_subscription(each)
        if subscription is None:
            return None
        lists[_wanted(subscription)] = subscription
        read.add(each)
    if sum(len(subscription.topics) for subscription in lists.values()) > TOPICS_MAX:
        return None
    return frozenset().union(*(subscription.topics for subscription in lists.values()))


def _wanted(subscription: common_pb2.Subscription) -> bytes:
    """A subscription without what is each member's own, as bytes; mostly all members want the same."""
    subscription.ClearField("owned_partitions")
    subscription.ClearField("rack_id")
    subscription.ClearField("user_data")
    return subscription.SerializeToString()


def read_assignment(assignment: bytes) -> common_pb2.Assignment | None:
    """The published assignment in these bytes; None: foreign."""
    try:
        message = common_pb2.Assignment.FromString(assignment)
    except DecodeError:
        return None
    return message if message.version == _VERSION else None


def partitions_in(assignment: bytes) -> Sequence[TopicPartition]:
    """The partitions of a published assignment; none of a foreign one."""
    few = len(assignment) <= _FEW_PARTITIONS_BYTES
    return _few_partitions_in(assignment) if few else _partitions_in(assignment)


_FEW_PARTITIONS_BYTES = 256


def _partitions_in(assignment: bytes) -> Sequence[TopicPartition]:
    message = read_assignment(assignment)
    return () if message is None else tuple(partitions_of(message.partitions))


_few_partitions_in = lru_cache(maxsize=1_024)(_partitions_in)
"""Members mostly get what they had, and several look at one record."""


def partitions_of(entries: Iterable[common_pb2.TopicPartitions]) -> Iterator[TopicPartition]:
    """Each partition by itself, without a step of Python for each."""
    return chain.from_iterable(zip(repeat(entry.topic), entry.partitions[:]) for entry in entries)
