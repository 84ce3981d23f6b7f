"""What the leader of a group hands in: who is to own what."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from muster_protos.muster.v1.coordinator_pb2 import SyncGroupRequest

from muster_core.state.holdings import COPIES, OWNED_PARTITION_BYTES
from muster_core.state.published import TopicPartition, read_assignment

TopicNumbers = tuple[str, list[int]]
"""A topic, and numbers of its partitions."""

TURN_TOPICS = 4_000
"""So many topics are read, or compared, in some milliseconds; then others have their turn."""
BYTES_AS_TOPIC = 256
"""To decode so many bytes takes as long as to read a topic, or a few times as long."""
MEMBER_AS_TOPICS = 4
"""What is done for a member takes as long, whatever it is given."""
_READ_TOPICS, _READ_PARTITIONS = 1_000, 16_000
"""So many are read at a stretch, if each topic has about as many partitions."""
_PARTITIONS_AS_TOPIC = 8
"""So many partitions of a topic take as long to read as the topic."""


class Plan:
    """The assignments of a generation.

    Those that are published ones are read, and not kept as messages: that would take most of the time.

    Attributes:
        assignments: bytes by member id, as far as they were read.
        partitions: how many partitions are given, as far as the bytes are published assignments. Above what
            may be given it is less than that.
    """

    def __init__(self) -> None:
        self.assignments: dict[str, bytes] = {}
        self.partitions = 0
        self._topics: list[TopicNumbers] = []
        self._topics_of: dict[str, list[TopicNumbers]] = {}
        self._given: dict[str, list[TopicPartition]] = {}
        self._different: set[TopicPartition] = set()

    def read(self, request: SyncGroupRequest, members: Container[str], most: int) -> Iterator[None]:
        """Reads a call. Yields when others should have their turn (docs/safety.md, LIM-17).

        Args:
            request: the leader's call.
            members: of the group; what others are given is not looked at.
            most: how many partitions may be given: of a plan that gives more nothing else is read. Nor is one
                with more topics than that, though it gives nothing of them: they take as long.
        """
        left, left_topics = TURN_TOPICS, most
        for entry in request.assignments:
            if (member_id := entry.member_id) not in members:
                continue
            assignment = entry.assignment
            self.assignments[member_id] = assignment
            self._topics_of.pop(member_id, None)
            self._given.pop(member_id, None)
            message = read_assignment(assignment)
            left -= MEMBER_AS_TOPICS + len(assignment) // BYTES_AS_TOPIC
            if left < 0:
                yield
                left = TURN_TOPICS
            if message is None:
                continue
            before, count = self.partitions, len(message.partitions)
            left_topics -= count
            if left_topics < 0:
                self.partitions = most + 1
                return
            if before + count > most:  # each topic has one at least
                self.partitions += count
                return
            # All are counted before any is read, so that a plan which gives too much costs next to nothing.
            for first in range(0, count, _READ_TOPICS):
                some = message.partitions[first : first + _READ_TOPICS]
                self.partitions += sum([len(one.partitions) for one in some])
                if self.partitions > most:
                    return
                left -= len(some) // 4
                if left < 0:
                    yield
                    left = TURN_TOPICS
            at_once = max(1, min(_READ_TOPICS, _READ_PARTITIONS * count // max(1, self.partitions - before)))
            topics = self._topics_of[member_id] = []
            given = self._given[member_id] = []
            for first in range(0, count, at_once):
                listed = [
                    (one.topic, one.partitions[:]) for one in message.partitions[first : first + at_once]
                ]
                partitions = [(topic, number) for topic, numbers in listed for number in numbers]
                topics += listed
                given += partitions
                self._different.update(partitions)
                left -= len(listed) + len(partitions) // _PARTITIONS_AS_TOPIC
                if left < 0:
                    yield
                    left = TURN_TOPICS
            self._topics += topics

    @property
    def topics(self) -> Iterable[str]:
        """The topics of which partitions are given; one may be there several times."""
        return [topic for topic, _ in self._topics]

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory where members keep it."""
        return OWNED_PARTITION_BYTES * self.partitions + COPIES * sum(map(len, self.assignments.values()))

    def given(self, member_id: str) -> Sequence[TopicPartition]:
        """The partitions that a member is given; none where its bytes are foreign."""
        return self._given.get(member_id, ())

    def topics_of(self, member_id: str) -> Sequence[TopicNumbers]:
        """The same by topic, as the bytes have it: one may be there several times."""
        return self._topics_of.get(member_id, ())

    def is_foreign(self, member_id: str) -> bool:
        """Whether a member is given bytes that are no published assignment."""
        return member_id not in self._topics_of and self.assignments.get(member_id, b"") != b""

    def take_back(self, member_id: str, partitions: Collection[TopicPartition]) -> None:
        """Takes partitions out of what a member is given, whose bytes are a published assignment."""
        message = read_assignment(self.assignments[member_id])
        assert message is not None
        fewer = {topic for topic, _ in partitions}
        for entry in message.partitions:
            if entry.topic not in fewer:
                continue
            left = [number for number in entry.partitions if (entry.topic, number) not in partitions]
            del entry.partitions[:]
            entry.partitions.extend(left)
        left_topics = [entry for entry in message.partitions if entry.partitions]
        del message.partitions[:]
        message.partitions.extend(left_topics)
        self.assignments[member_id] = message.SerializeToString(deterministic=True)
        topics = self._topics_of[member_id] = [(one.topic, one.partitions[:]) for one in message.partitions]
        self._given[member_id] = [(topic, number) for topic, numbers in topics for number in numbers]

    def removed_of(self, removed: Mapping[str, Collection[int]]) -> TopicPartition | None:
        """A partition that is given and was removed, by topic and number; None: there is none.

        Args:
            removed: numbers of removed partitions by topic.
        """
        if not removed:
            return None
        for topic, numbers in self._topics:
            if topic in removed:
                for number in numbers:
                    if number in removed[topic]:
                        return topic, number
        return None

    def given_twice(self, member_ids: Iterable[str]) -> TopicPartition | None:
        """A partition that two members are given, or one twice; None: there is none."""
        if len(self._different) == self.partitions:
            return None
        seen: set[TopicPartition] = set()
        for partition in chain.from_iterable(map(self.given, member_ids)):
            if partition in seen:
                return partition
            seen.add(partition)
        return None
