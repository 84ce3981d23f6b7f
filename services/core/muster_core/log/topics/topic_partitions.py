"""What a topic says of its partitions, as those need it who assign them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

from muster_protos.muster.v1 import common_pb2, discovery_pb2

_CACHED_TOPICS = 256


def weights_by_topic(topics: Iterable[discovery_pb2.Topic]) -> dict[str, Mapping[int, int]]:
    """Weights of partitions that are not 1, by number, of the topics that have any."""
    return {
        topic.name: weights
        for topic in topics
        if topic.HasField("names")
        and (weights := _weights_in(topic.names.SerializeToString(deterministic=True)))
    }


def zones_by_topic(topics: Iterable[discovery_pb2.Topic]) -> dict[str, Mapping[int, frozenset[str]]]:
    """Zones of partitions, by number, of the topics that have any."""
    return {
        topic.name: zones
        for topic in topics
        if topic.HasField("zones") and (zones := _zones_in(topic.zones.SerializeToString(deterministic=True)))
    }


def zones_message(zones: Mapping[int, frozenset[str]]) -> common_pb2.TopicZones:
    """The message of what `zones_by_topic` gives for a topic."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, names in sorted(zones.items()):
        for name in names:
            numbers[name].append(number)
    return common_pb2.TopicZones(
        zones=[
            common_pb2.TopicZones.Zone(name=name, partitions=some) for name, some in sorted(numbers.items())
        ]
    )


@lru_cache(maxsize=_CACHED_TOPICS)
def _weights_in(stored: bytes) -> Mapping[int, int]:
    names = common_pb2.PartitionNames.FromString(stored)
    return {
        number: entry.weight
        for number, entry in enumerate(names.partitions)
        if entry.name and entry.weight > 1
    }


@lru_cache(maxsize=_CACHED_TOPICS)
def _zones_in(stored: bytes) -> Mapping[int, frozenset[str]]:
    zones: dict[int, frozenset[str]] = {}
    for zone in common_pb2.TopicZones.FromString(stored).zones:
        own = frozenset({zone.name})
        for number in zone.partitions:
            zones[number] = zones[number] | own if number in zones else own
    return zones
