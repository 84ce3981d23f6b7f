"""Reading the published subscription and assignment messages out of bytes that may be foreign."""

from collections.abc import Iterable, Iterator
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


_REMEMBERED_BYTES = 16_384
"""What is made of larger metadata is not remembered: it may take twenty times as much."""


def topics_in(metadata: bytes) -> frozenset[str] | None:
    """The topics of a published subscription; None: foreign. Members of a group are mostly alike."""
    return _remembered(metadata) if len(metadata) <= _REMEMBERED_BYTES else _topics_in(metadata)


def _topics_in(metadata: bytes) -> frozenset[str] | None:
    subscription = read_subscription(metadata)
    return None if subscription is None else frozenset(subscription.topics)


_remembered = lru_cache(maxsize=64)(_topics_in)


def read_assignment(assignment: bytes) -> common_pb2.Assignment | None:
    """The published assignment in these bytes; None: foreign."""
    try:
        message = common_pb2.Assignment.FromString(assignment)
    except DecodeError:
        return None
    return message if message.version == _VERSION else None


def partitions_in(assignment: bytes) -> Iterator[TopicPartition]:
    """The partitions of a published assignment; none of a foreign one."""
    message = read_assignment(assignment)
    return partitions_of(message.partitions) if message is not None else iter(())


def partitions_of(entries: Iterable[common_pb2.TopicPartitions]) -> Iterator[TopicPartition]:
    """Each partition by itself, without a step of Python for each."""
    return chain.from_iterable(zip(repeat(entry.topic), entry.partitions[:]) for entry in entries)
