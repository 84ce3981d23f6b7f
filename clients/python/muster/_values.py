"""Values that the whole client uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from muster_assignors import TopicPartition

__all__ = ["Committed", "Topic", "TopicPartition"]


class Topic(NamedTuple):
    """A topic of the catalog.

    Attributes:
        name: its name.
        partitions: how many partitions it has.
        zones: zone → numbers of the partitions that are near it; without those of which nothing is known.
    """

    name: str
    partitions: int
    zones: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class Committed(NamedTuple):
    """How far the work on a partition got.

    Attributes:
        offset: the position to go on from, 0 or more.
        metadata: text stored with it.
    """

    offset: int
    metadata: str = ""
