"""What the members of a group should have: what an assignor is asked, and what is made of its answer."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeAlias

from muster_core.incremental.candidate import Candidate
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import NONE, Partitions, TopicPartition

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that there are.

    Attributes:
        partitions: numbers of partitions by topic, removed ones included.
        incarnations: which topic has a name, where that is known.
        removed: numbers of partitions that were removed, by topic.
        weights: of partitions that are more work than others, by topic and number.
        zones: of partitions, by topic and number.
    """

    partitions: Mapping[str, int]
    incarnations: Mapping[str, int]
    removed: Mapping[str, frozenset[int]]
    weights: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    zones: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)

    def numbers(self, topic: str) -> list[int]:
        """The partitions of a topic, in order; none: there is no such topic."""
        numbers, removed = range(self.partitions.get(topic, 0)), self.removed.get(topic)
        return [number for number in numbers if number not in removed] if removed else list(numbers)

    def hash_of(self, names: Collection[str]) -> bytes:
        """Changes when a topic is another one, or its partitions are others, or others in weights or zones.

        That is all that assignments depend on (conformance GE-23, GE-24; docs/safety.md, INC-163).
        """
        there = sorted(name for name in names if name in self.partitions)
        if not there:
            return b""
        digest = sha256()
        for name in there:
            removed = ",".join(map(str, sorted(self.removed.get(name, ()))))
            digest.update(
                f"{name}\0{self.incarnations.get(name, 0)}\0{self.partitions[name]}\0{removed}\n".encode()
            )
            if name in self.weights or name in self.zones:
                digest.update(_weighed(self.weights.get(name, {}), self.zones.get(name, {})))
        return digest.digest()[:_HASH_BYTES]


def _weighed(weights: Mapping[int, int], zones: Mapping[int, frozenset[str]]) -> bytes:
    return repr((sorted(weights.items()), [(one, sorted(zones[one])) for one in sorted(zones)])).encode()


@dataclass(frozen=True, slots=True)
class Question:
    """What an assignor is asked.

    Attributes:
        candidates: the members, by id.
        topics: partitions of the topics that they subscribe to, in order; of those that exist.
        alike: whether all subscribe to the same, or count so whatever they do (conformance GS-16).
        is_plain: whether all members and all partitions count as much, wherever they are.
        weights: of partitions that are more work than others, by topic and number.
        zones: of partitions, by topic and number.
    """

    candidates: Mapping[str, Candidate]
    topics: Mapping[str, list[int]]
    alike: bool
    is_plain: bool
    weights: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    zones: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)


ServerAssignor: TypeAlias = Callable[[Question], Mapping[str, Collection[TopicPartition]]]
"""A pure function: what each member should have. A member that is missing gets nothing."""


class When(Enum):
    """When a target that is out of date is computed."""

    NOW = "now"
    """In the decision that finds it."""
    ASIDE = "aside"
    """Not in this turn of the shard; who asks waits."""
    LATER = "later"
    """Not in this turn of the shard; who asks has the target before."""


class Expressions(Protocol):
    """What judges subscriptions by expressions, quickly."""

    def fault_of(self, expression: str) -> str:
        """Why an expression cannot be subscribed to, for people; empty: it can."""


class Change(NamedTuple):
    """What an assignment changes for a member.

    Attributes:
        gets: what it should have and did not.
        loses: what it should have had and should not any more.
    """

    gets: Partitions
    loses: Partitions


Changes: TypeAlias = Mapping[str, Change]
"""What an assignment changes, by member; those that are missing keep their target."""


def changes_of(question: Question, answer: Mapping[str, Collection[TopicPartition]]) -> Changes:
    """What an assignor's answer changes (conformance TA-11, TA-12).

    Raises:
        ValueError: it gives a partition twice.
    """
    changes: dict[str, Change] = {}
    targets: list[Collection[TopicPartition]] = []
    for member_id, candidate in question.candidates.items():
        before, target = candidate.before, answer.get(member_id, NONE)
        if target is not before:  # most have the very set that they had
            target = frozenset(target)
            if target != before:
                changes[member_id] = Change(target - before, before - target)
        targets.append(target)
    if len(NONE.union(*targets)) != sum(map(len, targets)):
        raise ValueError("the assignor gives a partition to two members")
    return changes


def subscribed_topics(group: IncrementalGroup) -> frozenset[str]:
    """What the members subscribe to, by name or by an expression, also what does not exist."""
    return frozenset(group.tally.topics).union(*group.expressions.values())


def preferred_assignor(group: IncrementalGroup, assignors: Iterable[str]) -> str:
    """What most members prefer that name one; of equals the first by name (conformance TA-06).

    Args:
        group: the group.
        assignors: names of those that there are, the default first.
    """
    names = tuple(assignors)
    votes = group.tally.assignors
    return min(
        votes.keys() & set(names), key=lambda name: (-votes[name], name), default=next(iter(names), "")
    )


def are_alike(group: IncrementalGroup) -> bool | None:
    """Whether the members count as subscribing to the same; None: by what they subscribe to (GS-16).

    Kafka 4.1 compares expressions, not what they match, and a heartbeat that raises no epoch goes by the
    members before it. Members whose requests name their joins are judged by what they subscribe to.
    """
    tally = group.tally
    if tally.numbered:
        return None
    if not tally.expressions:
        return group.names_alike
    return len(group.members) in tally.expressions.values() and not tally.topics


def are_as_much(group: IncrementalGroup, topics: Topics) -> bool:
    """Whether all members and partitions count as much, wherever they are; an assignor is quicker then."""
    names, tally = subscribed_topics(group), group.tally
    if not names.isdisjoint(topics.weights) or len(tally.weights) > 1:
        return False
    return names.isdisjoint(topics.zones) or not tally.in_racks


def question_of(group: IncrementalGroup, topics: Topics, *, alike: bool | None = None) -> Question:
    """What an assignor is asked about a group (conformance TA-07, TA-08).

    Args:
        group: the group.
        topics: the topics that there are.
        alike: see `are_alike`.
    """
    names = sorted(subscribed_topics(group) & topics.partitions.keys())
    there = {name: topics.numbers(name) for name in names}
    return Question(
        group.candidates_in_order(),
        {name: numbers for name, numbers in there.items() if numbers},
        group.wants_alike if alike is None else alike,
        are_as_much(group, topics),
        {name: topics.weights[name] for name in there if name in topics.weights},
        {name: topics.zones[name] for name in there if name in topics.zones},
    )
