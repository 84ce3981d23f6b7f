"""What the members of a generation keep: they work on it while the group rebalances (KIP-429)."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.coordinator_pb2 import DescribeGroupsResponse

from muster_core.position import Position
from muster_core.state.members.member import Member
from muster_core.state.plan import (
    AT_ONCE,
    BYTES_AS_TOPIC,
    MEMBER_AS_TOPICS,
    PARTITIONS_AS_TOPIC,
    TURN_TOPICS,
    Plan,
)
from muster_core.state.published import TopicPartition, read_assignment, read_subscription

Numbers = dict[str, set[int]]
"""Partition numbers by topic."""

Owners = Mapping[TopicPartition, tuple[str, Position]]
"""Partition → its owner by the last assignment, and the record that gave it."""

_NOBODY = ("",)


class Claims:
    """The partitions that members said they keep, with the joins that brought them into the generation.

    A member that joins has released everything else, and gets nothing new before the next assignment: so
    what it works on is among these.

    Args:
        members: those of the generation.
        most: how many partitions are looked at; all, unless it is given. A topic without any counts as one.

    Attributes:
        complete: whether all of them were looked at.
        looked_at: how many were, so far.
    """

    def __init__(self, members: Iterable[Member] = (), most: int = sys.maxsize) -> None:
        self.complete = True
        self.looked_at = 0
        self._by_member: dict[str, Numbers] = {}
        for _ in self.look_through(members, most):
            pass

    def look_through(self, members: Iterable[Member], most: int) -> Iterator[None]:
        """Looks through what members said, where that was not done at once.

        Yields when others should have their turn (docs/safety.md, LIM-17).
        """
        left = TURN_TOPICS
        nothing_in: set[bytes] = set()  # mostly all say the same
        for member in members:
            told = dict.fromkeys(one for _, one in member.terms.protocols if one not in nothing_in)
            entries: list[tuple[str, list[int]]] = []
            left -= MEMBER_AS_TOPICS
            if left < 0:
                yield
                left = TURN_TOPICS
            for metadata in told:
                left -= len(metadata) // BYTES_AS_TOPIC
                for entry in claimed_in((metadata,)):
                    entries.append(entry)
                    self.looked_at += max(1, len(entry[1]))
                    if self.looked_at > most:
                        self.complete = False
                        return
                    left -= 1 + len(entry[1]) // PARTITIONS_AS_TOPIC
                    if left < 0:
                        yield
                        left = TURN_TOPICS
                if left < 0:
                    yield
                    left = TURN_TOPICS
            if not entries:
                nothing_in.update(told)
            if entries:
                claimed = self._by_member[member.member_id] = Numbers()
                for topic, numbers in entries:
                    if topic in claimed:
                        claimed[topic].update(numbers)
                    else:
                        claimed[topic] = set(numbers)

    def of(self, member_id: str) -> Mapping[str, set[int]]:
        """What a member keeps."""
        return self._by_member.get(member_id, {})

    def withhold(self, plan: Plan, owners: Owners) -> Iterator[None]:
        """Takes out of a plan what it gives to one member while another one keeps it (GRP-41).

        What several say that they keep is nobody's until they have released it. Where more is claimed than is
        looked at, nobody is given what it did not have. Yields when others should have their turn.
        """
        kept, kept_twice = Numbers(), Numbers()
        yield from self._put_together(kept, kept_twice)
        if not kept and self.complete:
            return
        nothing: frozenset[int] = frozenset()
        left = TURN_TOPICS
        for member_id in tuple(plan.assignments):
            own = self.of(member_id)
            held_back = Numbers()
            for topic, numbers in plan.topics_of(member_id):
                left -= 1
                if left < 0:
                    yield
                    left = TURN_TOPICS
                if self.complete and kept.get(topic, nothing) is own.get(topic, nothing):
                    continue  # nobody else keeps anything of it
                for first in range(0, len(numbers), AT_ONCE):
                    given = set(numbers[first : first + AT_ONCE])
                    taken = (given & kept.get(topic, nothing)) - own.get(topic, nothing)
                    taken |= given & kept_twice.get(topic, nothing)
                    if not self.complete:
                        taken |= {n for n in given if owners.get((topic, n), _NOBODY)[0] != member_id}
                    if taken:
                        held_back.setdefault(topic, set()).update(taken)
                    left -= len(given) // PARTITIONS_AS_TOPIC
                    if left < 0:
                        yield
                        left = TURN_TOPICS
            if held_back:
                yield from plan.take_back(member_id, held_back)

    def unmet_by_plan(self, plan: Plan, unmet: dict[str, bytes]) -> Iterator[None]:
        """Adds the members to which a plan does not give all that they keep; as `withhold` it yields.

        With each goes what it keeps and is not given, as part of what DescribeGroups shows of it.
        """
        left = TURN_TOPICS
        for member_id, claimed in self._by_member.items():
            if plan.is_foreign(member_id):
                continue
            lacking = dict(claimed)
            for topic, numbers in plan.topics_of(member_id):
                left -= 1 + len(numbers) // PARTITIONS_AS_TOPIC
                if left < 0:
                    yield
                    left = TURN_TOPICS
                if topic not in lacking:
                    continue
                if lacking[topic] is claimed[topic]:  # once: a plan may name each partition by itself
                    lacking[topic] = set(claimed[topic])
                    left -= len(claimed[topic]) // PARTITIONS_AS_TOPIC
                lacking[topic].difference_update(numbers)
            if not any(lacking.values()):
                continue
            parts: list[bytes] = []
            for topic in sorted(lacking):
                parts.append(withheld(topic, lacking[topic]))
                left -= 1 + len(lacking[topic]) // PARTITIONS_AS_TOPIC
                if left < 0:
                    yield
                    left = TURN_TOPICS
            unmet[member_id] = b"".join(parts)

    def unmet(self, assignments: Mapping[str, bytes]) -> set[str]:
        """The members that are not given all that they keep: they are to release it, and to join again."""
        return {member_id for member_id, _ in self._unmet(assignments)}

    def unmet_by(self, member_id: str, assignment: bytes) -> Numbers:
        """What a member keeps and is not given."""
        given = _by_topic(assignment)
        left = {topic: numbers - given.get(topic, set()) for topic, numbers in self.of(member_id).items()}
        return {topic: numbers for topic, numbers in left.items() if numbers}

    def unmet_topics(self, assignments: Mapping[str, bytes]) -> set[str]:
        """The topics of what members are to release."""
        return {topic for _, topic in self._unmet(assignments)}

    def _unmet(self, assignments: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
        for member_id, claimed in self._by_member.items():
            assignment = assignments.get(member_id, b"")
            if assignment and read_assignment(assignment) is None:
                continue
            given = _by_topic(assignment)
            for topic, numbers in claimed.items():
                if not numbers <= given.get(topic, set()):
                    yield member_id, topic

    def _put_together(self, kept: Numbers, twice: Numbers) -> Iterator[None]:
        """Adds what anybody keeps, and what several say that they keep.

        What one member alone keeps of a topic is its very set.
        """
        shared = set[str]()
        left = TURN_TOPICS
        for claimed in self._by_member.values():
            for topic, numbers in claimed.items():
                left -= 1 + len(numbers) // PARTITIONS_AS_TOPIC
                if left < 0:
                    yield
                    left = TURN_TOPICS
                before = kept.setdefault(topic, numbers)
                if before is numbers:
                    continue
                if topic not in shared:
                    shared.add(topic)
                    before = kept[topic] = set(before)
                if not before.isdisjoint(numbers):
                    twice.setdefault(topic, set()).update(before & numbers)
                before |= numbers


def _by_topic(assignment: bytes) -> Numbers:
    """What a published assignment gives; nothing where the bytes are foreign."""
    message = read_assignment(assignment)
    given = Numbers()
    for entry in message.partitions if message is not None else ():
        given.setdefault(entry.topic, set()).update(entry.partitions[:])
    return given


def withheld(topic: str, numbers: Collection[int]) -> bytes:
    """Partitions that a member keeps and is not given, as part of what DescribeGroups shows of it."""
    if not numbers:
        return b""
    shown = DescribeGroupsResponse.Member(
        withheld=[common_pb2.TopicPartitions(topic=topic, partitions=sorted(numbers))]
    )
    return shown.SerializeToString()


def topics_claimed(members: Iterable[Member]) -> set[str]:
    """The topics of which members said that they keep partitions."""
    metadata = (each for member in members for _, each in member.terms.protocols)
    return {topic for topic, _ in claimed_in(metadata)}


def claimed_in(metadata: Iterable[bytes]) -> Iterator[tuple[str, list[int]]]:
    """What a member with this metadata keeps, each topic with its partitions; alike ones count once."""
    for each in dict.fromkeys(metadata):
        subscription = read_subscription(each)
        if subscription is not None and subscription.keeps_owned:
            for entry in subscription.owned_partitions:
                yield entry.topic, entry.partitions[:]
