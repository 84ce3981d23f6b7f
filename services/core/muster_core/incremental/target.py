"""What the members of a group should have: what an assignor is asked, and what is made of its answer."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import Partitions, TopicPartition

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that there are.

    Attributes:
        partitions: numbers of partitions by topic, removed ones included.
        incarnations: which topic has a name, where that is known.
        removed: numbers of partitions that were removed, by topic.
    """

    partitions: Mapping[str, int]
    incarnations: Mapping[str, int]
    removed: Mapping[str, frozenset[int]]

    def numbers(self, topic: str) -> list[int]:
        """The partitions of a topic, in order; none: there is no such topic."""
        removed = self.removed.get(topic, ())
        return [number for number in range(self.partitions.get(topic, 0)) if number not in removed]

    def hash_of(self, names: Collection[str]) -> bytes:
        """Changes when a topic is another one, or has other partitions (conformance GE-23, GE-24)."""
        there = sorted(name for name in names if name in self.partitions)
        if not there:
            return b""
        digest = sha256()
        for name in there:
            removed = ",".join(map(str, sorted(self.removed.get(name, ()))))
            digest.update(
                f"{name}\0{self.incarnations.get(name, 0)}\0{self.partitions[name]}\0{removed}\n".encode()
            )
        return digest.digest()[:_HASH_BYTES]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as an assignor sees it.

    Attributes:
        member_id: its id.
        group_instance_id: its static id; empty: dynamic.
        rack_id: where it runs; empty: not known.
        topics: what it subscribes to, also what does not exist.
        before: what it should have had so far.
    """

    member_id: str
    group_instance_id: str
    rack_id: str
    topics: frozenset[str]
    before: Partitions


@dataclass(frozen=True, slots=True)
class Question:
    """What an assignor is asked.

    Attributes:
        candidates: the members, by id.
        topics: partitions of the topics that they subscribe to, in order; of those that exist.
    """

    candidates: Mapping[str, Candidate]
    topics: Mapping[str, list[int]]


ServerAssignor: TypeAlias = Callable[[Question], Mapping[str, Collection[TopicPartition]]]
"""A pure function: what each member should have. A member that is missing gets nothing."""


def subscribed_topics(group: IncrementalGroup) -> frozenset[str]:
    """What the members subscribe to by name, also what does not exist."""
    return frozenset[str]().union(*(member.told.topics for member in group.members.values()))


def preferred_assignor(group: IncrementalGroup, default: str) -> str:
    """What most members prefer that name one; of equals the first by name (conformance TA-06)."""
    votes = Counter(
        member.told.server_assignor for member in group.members.values() if member.told.server_assignor
    )
    return min(votes, key=lambda name: (-votes[name], name), default=default)


def question_of(group: IncrementalGroup, topics: Topics) -> Question:
    """What an assignor is asked about a group (conformance TA-07, TA-08)."""
    candidates = {
        member_id: Candidate(
            member_id,
            member.told.group_instance_id,
            member.told.rack_id,
            member.told.topics,
            member.target,
        )
        for member_id, member in sorted(group.members.items())
    }
    there = {name: topics.numbers(name) for name in sorted(subscribed_topics(group))}
    return Question(candidates, {name: numbers for name, numbers in there.items() if numbers})


def targets_of(
    group: IncrementalGroup, answer: Mapping[str, Collection[TopicPartition]]
) -> list[tuple[Member, Partitions]]:
    """What each member should have by an assignor's answer (conformance TA-12).

    Raises:
        ValueError: it gives a partition twice.
    """
    targets = [(member, frozenset(answer.get(member_id, ()))) for member_id, member in group.members.items()]
    given = Partitions().union(*(target for _, target in targets))
    if len(given) != sum(len(target) for _, target in targets):
        raise ValueError("the assignor gives a partition to two members")
    return targets
