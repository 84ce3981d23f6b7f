"""Sets of partitions, and how messages name them."""

from collections import defaultdict
from collections.abc import Iterable, Set
from itertools import repeat
from typing import TypeAlias

from muster_protos.muster.v1 import common_pb2

TopicPartition: TypeAlias = tuple[str, int]
"""Name of the topic and number of the partition."""

Partitions: TypeAlias = frozenset[TopicPartition]

NONE: Partitions = frozenset()


def without(partitions: Partitions, others: Set[TopicPartition]) -> Partitions:
    """Their difference, which Python would make a copy of also where there is nothing to leave out."""
    return partitions - others if partitions and others else partitions


def named_in(topics: Iterable[common_pb2.TopicPartitions]) -> list[TopicPartition]:
    """The partitions that a message names."""
    named: list[TopicPartition] = []
    for entry in topics:
        named += zip(repeat(entry.topic), entry.partitions)
    return named


def named_among(partitions: Partitions, topics: Iterable[common_pb2.TopicPartitions]) -> Partitions:
    """Those of some partitions that a message names; whatever else it names is not kept."""
    if not partitions:
        return NONE
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for topic, number in partitions:
        wanted[topic].add(number)
    named: list[TopicPartition] = []
    for entry in topics:
        if (numbers := wanted.get(entry.topic)) is not None:
            named += zip(repeat(entry.topic), numbers.intersection(entry.partitions))
    return frozenset(named)


def by_topic(partitions: Iterable[TopicPartition]) -> list[common_pb2.TopicPartitions]:
    """Partitions as a message names them: topics by name, numbers ascending."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        numbers[topic].append(number)
    return [
        common_pb2.TopicPartitions(topic=topic, partitions=sorted(some))
        for topic, some in sorted(numbers.items())
    ]
