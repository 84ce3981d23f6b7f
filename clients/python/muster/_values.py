"""Values that the whole client uses."""

from typing import NamedTuple

from muster_assignors import TopicPartition

__all__ = ["Committed", "Topic", "TopicPartition"]


class Topic(NamedTuple):
    """A topic of the catalog.

    Attributes:
        name: its name.
        partitions: how many partitions it has.
    """

    name: str
    partitions: int


class Committed(NamedTuple):
    """How far the work on a partition got.

    Attributes:
        offset: the position to go on from, 0 or more.
        metadata: text stored with it.
    """

    offset: int
    metadata: str = ""
