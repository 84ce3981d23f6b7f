"""A group in numbers, as the sticky assignors compute with it: members and partitions are indices."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from muster_assignors._java import hash_order, text_order
from muster_assignors._snapshot import GroupSnapshot, MemberSnapshot, TopicPartition, partitions_of

NOBODY = -1

ReadClaim = Callable[[MemberSnapshot], tuple[Iterable[TopicPartition], int]]
"""What a member says that it had, and in which generation."""


@dataclass(slots=True)
class Claims:
    """What members say that they had, of what there is.

    Attributes:
        stated: for each member everything that it says, and the generation.
        had: for each member what is believed, in the order in which it was said: the newer generation wins.
        contested: what several say that they had in one generation; nobody is believed.
        newest: the newest generation; -1: none is known.
    """

    stated: list[tuple[list[int], int]] = field(default_factory=list)
    had: list[dict[int, None]] = field(default_factory=list)
    contested: set[int] = field(default_factory=set)
    newest: int = NOBODY


class Work:
    """A group whose partitions are to be shared.

    Attributes:
        names: the members' ids, in Java's order of text.
        visits: the members in the order in which Kafka's classes walk a table of them.
        wanted: for each member the topics that it wants and that exist.
        topics: the topics that exist and are wanted, in Java's order of text.
        numbers: topic → the indices of its partitions, in order.
        partitions: all of them, in order.
        subscribers: topic → the members that want it, in order.
    """

    def __init__(self, group: GroupSnapshot) -> None:
        self.names = sorted(group.members, key=text_order)
        self.members = [group.members[name] for name in self.names]
        place = {name: number for number, name in enumerate(self.names)}
        self.visits = [place[name] for name in hash_order(group.members)]
        self.topics = group.topics_in_order()
        self.numbers: dict[str, range] = {}
        self.partitions: list[TopicPartition] = []
        self._places: dict[str, dict[int, int]] = {}
        for topic in self.topics:
            begin, numbers = len(self.partitions), group.topics[topic].numbers
            self.numbers[topic] = range(begin, begin + len(numbers))
            self.partitions += partitions_of(topic, numbers)
            if group.topics[topic].removed:
                self._places[topic] = dict(zip(numbers, self.numbers[topic], strict=True))
        self.wanted = [{topic for topic in member.topics if topic in self.numbers} for member in self.members]
        self.subscribers: dict[str, list[int]] = {topic: [] for topic in self.topics}
        for number, topics in enumerate(self.wanted):
            for topic in topics:
                self.subscribers[topic].append(number)
        self._group = group

    @property
    def is_equal(self) -> bool:
        """Whether all members want the same topics."""
        first = set(self.members[0].topics)
        return all(set(member.topics) == first for member in self.members)

    def in_topics(self, partitions: Iterable[TopicPartition]) -> list[int]:
        """The indices of those partitions that there are and that are wanted."""
        found, numbers = [], self.numbers
        for topic, number in partitions:
            of_topic = numbers.get(topic)
            if topic in self._places:
                if number in self._places[topic]:
                    found.append(self._places[topic][number])
            elif of_topic is not None and 0 <= number < len(of_topic):
                found.append(of_topic.start + number)
        return found

    def claims(self, read: ReadClaim) -> Claims:
        """Finds out who had what."""
        claims = Claims()
        for member in self.members:
            partitions, generation = read(member)
            claims.stated.append((self.in_topics(partitions), generation))
            claims.newest = max(claims.newest, generation)
        claims.had = [{} for _ in self.members]
        owners = [NOBODY] * len(self.partitions)
        for member_number in self.visits:
            stated, generation = claims.stated[member_number]
            own = claims.had[member_number]
            for partition in stated:
                other = owners[partition]
                if other == NOBODY:
                    own[partition] = None
                elif generation < (others := claims.stated[other][1]):
                    continue
                else:
                    claims.had[other].pop(partition, None)
                    if generation == others:
                        claims.contested.add(partition)
                    else:
                        own[partition] = None
                owners[partition] = member_number
        return claims

    def racks(self) -> "Racks | None":
        """Where members and partitions are; None where that is not known or makes no difference."""
        racks: list[frozenset[str]] = []
        for topic in map(self._group.topics.__getitem__, self.topics):
            numbers = topic.numbers
            nowhere = [frozenset[str]()] * len(numbers)
            racks += map(topic.racks.__getitem__, numbers) if topic.racks else nowhere
        all_racks = frozenset(chain.from_iterable(set(racks)))
        members = [member.rack_id for member in self.members]
        if all_racks.isdisjoint(members) or all(of_partition == all_racks for of_partition in racks):
            return None
        return Racks(members, racks)

    def named(self, shares: Iterable[Iterable[int]]) -> dict[str, list[TopicPartition]]:
        """Shares of the members as an assignment."""
        get = self.partitions.__getitem__
        return {name: list(map(get, share)) for name, share in zip(self.names, shares, strict=True)}


@dataclass(frozen=True, slots=True)
class Racks:
    """Where members and partitions are.

    Attributes:
        members: rack of each member; empty: not known.
        partitions: the racks that have each partition.
    """

    members: list[str]
    partitions: list[frozenset[str]]

    def part(self, member: int, partition: int) -> bool:
        """Whether the member is on a rack that does not have the partition."""
        rack = self.members[member]
        return bool(rack) and rack not in self.partitions[partition]
