"""What the leader of a group hands in: who is to own what."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.coordinator_pb2 import SyncGroupRequest

from muster_core.position import Position
from muster_core.state.holdings import COPIES, OWNED_PARTITION_BYTES
from muster_core.state.moves import Moves
from muster_core.state.published import TopicPartition, read_assignment

TopicNumbers = tuple[str, list[int]]
"""A topic, and numbers of its partitions."""

TURN_TOPICS = 4_000
"""So many topics are read, or compared, in some milliseconds; then others have their turn."""
BYTES_AS_TOPIC = 256
"""To decode so many bytes takes as long as to read a topic, or a few times as long."""
MEMBER_AS_TOPICS = 4
"""What is done for a member takes as long, whatever it is given."""
PARTITIONS_AS_TOPIC = 4
"""So many partitions of a topic take as long to read as the topic."""
AT_ONCE = 4_000
"""So many partitions are read, or compared, without a look at the time."""
_READ_TOPICS = 1_000
"""So many topics are."""

_NOTHING: Mapping[TopicPartition, tuple[str, Position]] = {}


class Plan:
    """The assignments of a generation.

    Those that are published ones are read, and not kept as messages: that would take most of the time.

    Attributes:
        assignments: bytes by member id, as far as they were read.
        partitions: how many partitions are given, as far as the bytes are published assignments. Above what
            may be given it is less than that.
        twice: a partition that two members are given, or one twice, once it was looked for; None: none is.
        kept: partitions that members keep, with the positions that gave them, by member id.
        answered: the tokens of that, as members are answered with them.
        moves: what it moves, once it was compared with the plan before; None: it was not.
    """

    def __init__(self) -> None:
        self.assignments: dict[str, bytes] = {}
        self.partitions = 0
        self._topics: list[TopicNumbers] = []
        self._topics_of: dict[str, list[TopicNumbers]] = {}
        self._given: dict[str, list[TopicPartition]] = {}
        self._around: dict[str, tuple[bytes, bytes]] = {}  # what the bytes have besides, before and after
        self._different: set[TopicPartition] = set()
        self.twice: TopicPartition | None = None
        self.kept: dict[str, dict[TopicPartition, tuple[str, Position]]] = {}
        self.answered: dict[str, bytes] = {}
        self.moves: Moves | None = None
        self._left = TURN_TOPICS

    def read(self, request: SyncGroupRequest, members: Container[str], most: int) -> Iterator[None]:
        """Reads a call. Yields when others should have their turn (docs/safety.md, LIM-17).

        Args:
            request: the leader's call.
            members: of the group; what others are given is not looked at.
            most: how many partitions may be given: of a plan that gives more nothing else is read. Nor is one
                with more topics than that, though it gives nothing of them: they take as long.
        """
        left_topics = most
        for entry in request.assignments:
            if (member_id := entry.member_id) not in members:
                continue
            assignment = entry.assignment
            self.assignments[member_id] = assignment
            self._topics_of.pop(member_id, None)
            self._given.pop(member_id, None)
            message = read_assignment(assignment)
            if self._took(MEMBER_AS_TOPICS + len(assignment) // BYTES_AS_TOPIC):
                yield
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
                if self._took(len(some) // 2):
                    yield
            yield from self._read(member_id, message.partitions, self.partitions - before)
            del message.partitions[:]
            begin = common_pb2.Assignment(version=message.version).SerializeToString()
            message.ClearField("version")
            self._around[member_id] = begin, message.SerializeToString(deterministic=True)

    def _read(
        self, member_id: str, entries: Sequence[common_pb2.TopicPartitions], partitions: int
    ) -> Iterator[None]:
        """Reads what a member is given, which is so many partitions."""
        topics = self._topics_of[member_id] = []
        given = self._given[member_id] = []
        at_once = _topics_at_once(len(entries), partitions)
        for first in range(0, len(entries), at_once):
            listed = [(one.topic, one.partitions[:]) for one in entries[first : first + at_once]]
            topics += listed
            if self._took(len(listed)):
                yield
            for some in batches(_each_of(listed)):
                given += some
                self._different.update(some)
                if self._took(len(some) // PARTITIONS_AS_TOPIC):
                    yield
        self._topics += topics

    def _took(self, topics: int) -> bool:
        """Notes how many topics were read, or what takes as long; whether others should have their turn."""
        self._left -= topics
        if is_over := self._left < 0:
            self._left = TURN_TOPICS
        return is_over

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

    def handed_to(
        self, member_id: str, assignment: bytes
    ) -> tuple[Sequence[TopicPartition], Mapping[TopicPartition, tuple[str, Position]]] | None:
        """What a member is given, and what of it it keeps; None: it was handed other bytes in."""
        if self.assignments.get(member_id, b"") != assignment:
            return None
        return self._given.get(member_id, ()), self.kept.get(member_id, _NOTHING)

    def topics_of(self, member_id: str) -> Sequence[TopicNumbers]:
        """The same by topic, as the bytes have it: one may be there several times."""
        return self._topics_of.get(member_id, ())

    def is_foreign(self, member_id: str) -> bool:
        """Whether a member is given bytes that are no published assignment."""
        return member_id not in self._topics_of and self.assignments.get(member_id, b"") != b""

    def take_back(self, member_id: str, numbers_of: Mapping[str, Collection[int]]) -> Iterator[None]:
        """Takes partitions out of what a member is given, whose bytes are a published assignment.

        Args:
            member_id: the member.
            numbers_of: numbers by topic, of what it is given.
        """
        before = self._topics_of[member_id]
        topics: list[TopicNumbers] = []
        given: list[TopicPartition] = []
        parts: list[bytes] = []
        at_once = _topics_at_once(len(before), len(self._given[member_id]))
        for first in range(0, len(before), at_once):
            some = before[first : first + at_once]
            left = [*_left_of(some, numbers_of)]
            listed = [common_pb2.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in left]
            parts.append(common_pb2.Assignment(partitions=listed).SerializeToString())
            topics += left
            if self._took(len(some)):
                yield
            for each in batches(_each_of(left)):
                given += each
                if self._took(len(each) // PARTITIONS_AS_TOPIC):
                    yield
        begin, end = self._around[member_id]
        self.assignments[member_id] = b"".join((begin, *parts, end))
        self._topics_of[member_id], self._given[member_id] = topics, given

    def compare(
        self,
        before: Mapping[TopicPartition, tuple[str, Position]],
        noted: Iterable[TopicPartition],
        most: int,
    ) -> Iterator[None]:
        """Finds out what it moves; yields when others should have their turn.

        Args:
            before: who had what.
            noted: of which partitions something is noted that goes with them.
            most: how many moves are listed.
        """
        given = self._different
        if len(given) != sum(map(len, self._given.values())):  # something was taken back, or read twice
            given = set()
            for some in batches(chain.from_iterable(self._given.values())):
                given.update(some)
                if self._took(len(some) // PARTITIONS_AS_TOPIC):
                    yield
        moves = Moves(before, most)
        for member_id in self._given:
            if self._took(MEMBER_AS_TOPICS):
                yield
            for some in batches(self._given[member_id]):
                moves.give(member_id, some)
                if self._took(len(some) // PARTITIONS_AS_TOPIC):
                    yield
        for some in batches(before) if moves.anything_is_lost else ():
            moves.lose([one for one in some if one not in given])
            if self._took(len(some) // PARTITIONS_AS_TOPIC):
                yield
        for some in batches(noted):
            moves.gone += [one for one in some if one not in given]
            if self._took(len(some) // PARTITIONS_AS_TOPIC):
                yield
        self.moves = moves

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

    def look_for_twice(self, member_ids: Iterable[str]) -> Iterator[None]:
        """Looks for a partition that two members are given, or one twice, if there is any."""
        seen: set[TopicPartition] = set()
        is_suspect = len(self._different) != self.partitions
        for partition in chain.from_iterable(map(self.given, member_ids)) if is_suspect else ():
            if partition in seen:
                self.twice = partition
                return
            seen.add(partition)
            if not len(seen) % AT_ONCE and self._took(AT_ONCE // PARTITIONS_AS_TOPIC):
                yield


def batches(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Partitions, as many at a time as take a millisecond or a few."""
    left = iter(partitions)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _topics_at_once(topics: int, partitions: int) -> int:
    """Of so many topics with so many partitions together this many are read without a look at the time."""
    return max(1, min(_READ_TOPICS, AT_ONCE * topics // max(1, partitions)))


def _left_of(listed: Iterable[TopicNumbers], taken: Mapping[str, Collection[int]]) -> Iterator[TopicNumbers]:
    for topic, numbers in listed:
        gone = taken.get(topic)
        left = [number for number in numbers if number not in gone] if gone else numbers
        if left:
            yield topic, left


def _each_of(listed: Iterable[tuple[str, Iterable[int]]]) -> Iterator[TopicPartition]:
    return chain.from_iterable(zip(repeat(topic), numbers) for topic, numbers in listed)
