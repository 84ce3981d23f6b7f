"""What the leader of a group hands in: who is to own what."""

import sys
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain

from muster_protos.muster.v1.coordinator_pb2 import SyncGroupRequest

from muster_core.state.holdings import COPIES, OWNED_PARTITION_BYTES
from muster_core.state.published import TopicPartition, partitions_in, read_assignment


class Plan:
    """The assignments of a generation.

    Those that are published ones are read here, and not kept as messages: that would take most of the time.

    Args:
        request: the leader's call.
        members: of the group; what others are given is not looked at.
        most: how many partitions may be given: of a plan that gives more nothing else is read.

    Attributes:
        assignments: bytes by member id.
        partitions: how many partitions are given, as far as the bytes are published assignments. Above what
            may be given it is less than that.
    """

    def __init__(self, request: SyncGroupRequest, members: Container[str], most: int = sys.maxsize) -> None:
        self.assignments: dict[str, bytes] = {}
        self.partitions = 0
        self._numbers: dict[str, list[int]] = {}
        numbers = self._numbers
        for entry in request.assignments:
            if (member_id := entry.member_id) not in members:
                continue
            assignment = entry.assignment
            self.assignments[member_id] = assignment
            message = read_assignment(assignment)
            if message is None:
                continue
            if self.partitions + len(message.partitions) > most:  # each topic has one at least
                self.partitions += len(message.partitions)
                return
            given = message.partitions[:]
            self.partitions += sum([len(one.partitions) for one in given])
            if self.partitions > most:
                return
            for one in given:
                numbers.setdefault(one.topic, []).extend(one.partitions[:])

    @property
    def topics(self) -> Iterable[str]:
        """The topics of which partitions are given."""
        return self._numbers

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory where members keep it."""
        return OWNED_PARTITION_BYTES * self.partitions + COPIES * sum(map(len, self.assignments.values()))

    def given(self, member_id: str) -> Sequence[TopicPartition]:
        """The partitions that a member is given; none where its bytes are foreign."""
        return partitions_in(self.assignments.get(member_id, b""))

    def take_back(self, member_id: str, partitions: Collection[TopicPartition]) -> None:
        """Takes partitions out of what a member is given, whose bytes are a published assignment."""
        message = read_assignment(self.assignments[member_id])
        assert message is not None
        for entry in message.partitions:
            left = [number for number in entry.partitions if (entry.topic, number) not in partitions]
            del entry.partitions[:]
            entry.partitions.extend(left)
        left_topics = [entry for entry in message.partitions if entry.partitions]
        del message.partitions[:]
        message.partitions.extend(left_topics)
        self.assignments[member_id] = message.SerializeToString(deterministic=True)

    def removed_of(self, removed: Mapping[str, Collection[int]]) -> TopicPartition | None:
        """A partition that is given and was removed, by topic and number; None: there is none.

        Args:
            removed: numbers of removed partitions by topic.
        """
        for topic in removed.keys() & self._numbers.keys():
            for number in self._numbers[topic]:
                if number in removed[topic]:
                    return topic, number
        return None

    def given_twice(self, member_ids: Iterable[str]) -> TopicPartition | None:
        """A partition that two members are given, or one twice; None: there is none."""
        if all(len(set(numbers)) == len(numbers) for numbers in self._numbers.values()):
            return None
        seen: set[TopicPartition] = set()
        for partition in chain.from_iterable(map(self.given, member_ids)):
            if partition in seen:
                return partition
            seen.add(partition)
        return None
