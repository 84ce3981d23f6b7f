"""What a topic says of its partitions, as those need it who assign them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from muster_protos.muster.v1 import common_pb2, discovery_pb2

_CACHED_TOPICS = 256


class Told(NamedTuple):
    """What a topic says of its partitions.

    Attributes:
        names: its names, serialised; empty: it has none.
        zones: its zones, serialised; empty: it has none.
        removed: numbers of partitions that were removed.
        weights: of partitions, where they are not 1, by number.
        zones_of: zones of partitions, by number.
    """

    names: bytes
    zones: bytes
    removed: frozenset[int]
    weights: Mapping[int, int]
    zones_of: Mapping[int, frozenset[str]]


def told_by_topic(topics: Iterable[discovery_pb2.Topic], before: Mapping[str, Told]) -> dict[str, Told]:
    """What topics say of their partitions, of those that say anything.

    Each change of a topic brings all of them, with a megabyte of names: what is as it was before is not read
    again, and is the same object.
    """
    told: dict[str, Told] = {}
    for topic in topics:
        name = topic.name
        names = topic.names.SerializeToString(deterministic=True) if topic.HasField("names") else b""
        zones = topic.zones.SerializeToString(deterministic=True) if topic.HasField("zones") else b""
        known = before.get(name)
        if known is not None and known.names == names and known.zones == zones:
            told[name] = known
            continue
        if known is not None and known.names == names:
            removed, weights = known.removed, known.weights
        else:
            removed, weights = _removed_and_weights_in(names)
        told[name] = Told(names, zones, removed, weights, _zones_in(zones))
    return told


def _removed_and_weights_in(names: bytes) -> tuple[frozenset[int], Mapping[int, int]]:
    """Numbers of removed partitions, and weights of the others that have one."""
    removed, weights = set[int](), dict[int, int]()
    for number, entry in enumerate(common_pb2.PartitionNames.FromString(names).partitions):
        if not entry.name:
            removed.add(number)
        elif (weight := entry.weight) > 1:
            weights[number] = weight
    return frozenset(removed), weights


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
