"""Values that the whole client uses."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic.

    Attributes:
        topic: name of the topic.
        number: number of the partition, from 0.
    """

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


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
