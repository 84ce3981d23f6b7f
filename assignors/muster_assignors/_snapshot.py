"""What an assignor gets and returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from muster_assignors._java import text_order


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


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as the leader sees it.

    Attributes:
        member_id: its id.
        topics: the topics it wants partitions of, each once.
        group_instance_id: its static id; empty for a dynamic member.
        rack_id: where it runs; empty: not known.
        owned: what it owned when it joined.
        keeps_owned: True if it went on working on `owned` (cooperative).
        generation: generation in which it got `owned`, -1: not known.
        user_data: its bytes for an assignor of your own; sticky ones understand those of Kafka's clients.
        weight: how much it can do beside the others, from 1. Those of Kafka's clients do not look at it.

    Raises:
        TypeError: `topics` is one text.
        ValueError: the weight is below 1.
    """

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str = ""
    rack_id: str = ""
    owned: tuple[TopicPartition, ...] = ()
    keeps_owned: bool = False
    generation: int = -1
    user_data: bytes = b""
    weight: int = 1

    def __post_init__(self) -> None:
        topics: object = self.topics
        if isinstance(topics, str):
            raise TypeError(f"topics must be a tuple of names, such as ({topics!r},)")
        if self.weight < 1:
            raise ValueError(f"weight is {self.weight}, it must be 1 or more")


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic.

    Attributes:
        partitions: how many it has, removed ones included.
        racks: for each partition the racks that have it; empty: unknown.
        removed: numbers of those that were removed: nobody is given them.
        weights: how much work each partition is, from 1; of removed ones it does not count. Empty: all are 1.
            The assignors of Kafka's clients do not look at it.

    Raises:
        TypeError: the number of partitions is no whole number.
        ValueError: it is below 0, or there are racks or weights, but not those of each partition.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    removed: frozenset[int] = frozenset()
    weights: tuple[int, ...] = ()

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the partitions to assign, in order."""
        if not self.removed:
            return range(self.partitions)
        return [number for number in range(self.partitions) if number not in self.removed]

    def __post_init__(self) -> None:
        if isinstance(self.partitions, bool) or not isinstance(self.partitions, int):
            raise TypeError(f"partitions must be a whole number, not {self.partitions!r}")
        if self.partitions < 0:
            raise ValueError(f"partitions is {self.partitions}, it must be 0 or more")
        if self.racks and len(self.racks) != self.partitions:
            raise ValueError(f"racks of {len(self.racks)} partitions, not of {self.partitions}")
        if self.weights and len(self.weights) != self.partitions:
            raise ValueError(f"weights of {len(self.weights)} partitions, not of {self.partitions}")


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as an assignor sees it.

    Attributes:
        members: by member id, at least one.
        topics: by name; a subscribed topic that does not exist is missing.
    """

    members: Mapping[str, MemberSnapshot]
    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)

    def members_in_order(self) -> list[MemberSnapshot]:
        """Static members by instance id, then dynamic ones by member id (Kafka's order)."""
        return sorted(
            self.members.values(),
            key=lambda m: (not m.group_instance_id, text_order(m.group_instance_id or m.member_id)),
        )

    def topics_in_order(self) -> list[str]:
        """The topics that exist and have subscribers, by name."""
        wanted = {topic for member in self.members.values() for topic in member.topics}
        return sorted((t for t in wanted if t in self.topics and self.topics[t].numbers), key=text_order)


Assignment: TypeAlias = Mapping[str, Sequence[TopicPartition]]
"""Member id → what it is to work on. A member that is missing gets nothing."""

AssignFunction: TypeAlias = Callable[[GroupSnapshot], Assignment]
"""What an assignor does: a pure function. It may be slow: it runs in a thread of its own."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignment function, with the name by which members agree on it.

    Attributes:
        name: 1 to 255 bytes; all members of a group need one in common.
        assign: the function.
        cooperative: it gives a partition that another member still keeps to nobody; the next rebalance, which
            follows when that member has released it, gives it to its new owner (KIP-429).
    """

    name: str
    assign: AssignFunction
    cooperative: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name of an Assignor must be text, not {self.name!r}")
        if not callable(self.assign):
            raise TypeError(f"assign of {self.name!r} must be a function, not {self.assign!r}")
        if not isinstance(self.cooperative, bool):
            raise TypeError(f"cooperative of {self.name!r} must be True or False, not {self.cooperative!r}")


def partitions_of(topic: str, numbers: Sequence[int]) -> list[TopicPartition]:
    """Some partitions of a topic, in order."""
    return [TopicPartition(topic, number) for number in numbers]
