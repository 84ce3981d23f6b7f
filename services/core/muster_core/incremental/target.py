"""What the members of a group should have: what an assignor is asked, and what is made of its answer."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeAlias

from muster_core.incremental.group import IncrementalGroup
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


class Candidate(NamedTuple):
    """A member as an assignor sees it.

    Attributes:
        member_id: its id.
        group_instance_id: its static id; empty: dynamic.
        rack_id: where it runs; empty: not known.
        topics: what it subscribes to, by name or by an expression, also what does not exist.
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
        alike: whether all count as subscribing to the same, whatever they do (conformance GS-16); None: as
            they do.
    """

    candidates: Mapping[str, Candidate]
    topics: Mapping[str, list[int]]
    alike: bool | None = None


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
    given: set[TopicPartition] = set()
    count = 0
    for member_id, candidate in question.candidates.items():
        target = frozenset(answer.get(member_id, ()))
        given |= target
        count += len(target)
        if target != candidate.before:
            changes[member_id] = Change(target - candidate.before, candidate.before - target)
    if len(given) != count:
        raise ValueError("the assignor gives a partition to two members")
    return changes


def subscribed_topics(group: IncrementalGroup) -> frozenset[str]:
    """What the members subscribe to, by name or by an expression, also what does not exist."""
    return frozenset(group.subscriptions).union(*group.expressions.values())


def preferred_assignor(group: IncrementalGroup, assignors: Iterable[str]) -> str:
    """What most members prefer that name one; of equals the first by name (conformance TA-06).

    Args:
        group: the group.
        assignors: names of those that there are, the default first.
    """
    names = tuple(assignors)
    default = next(iter(names), "")
    votes = Counter(
        member.told.server_assignor
        for member in group.members.values()
        if member.told.server_assignor in names
    )
    return min(votes, key=lambda name: (-votes[name], name), default=default)


def are_alike(group: IncrementalGroup) -> bool | None:
    """Whether the members count as subscribing to the same; None: by what they subscribe to (GS-16).

    Kafka 4.1 compares expressions, not what they match, and a heartbeat that raises no epoch goes by the
    members before it. Members whose requests name their joins are judged by what they subscribe to.
    """
    if any(member.told.is_numbered for member in group.members.values()):
        return None
    told = [member.told for member in group.members.values()]
    if not any(one.topic_regex for one in told):
        return len({one.topics for one in told}) <= 1
    return len({one.topic_regex for one in told}) == 1 and not any(one.topics for one in told)


def question_of(group: IncrementalGroup, topics: Topics, *, alike: bool | None = None) -> Question:
    """What an assignor is asked about a group (conformance TA-07, TA-08).

    Args:
        group: the group.
        topics: the topics that there are.
        alike: see `are_alike`.
    """
    candidates = {
        member_id: Candidate(
            member_id,
            member.told.group_instance_id,
            member.told.rack_id,
            group.topics_of(member.told),
            member.target,
        )
        for member_id, member in sorted(group.members.items())
    }
    there = {name: topics.numbers(name) for name in sorted(subscribed_topics(group))}
    return Question(candidates, {name: numbers for name, numbers in there.items() if numbers}, alike)
