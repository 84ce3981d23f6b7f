"""What is answered of topics that a caller must not see, and how that is put among the other answers."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

AT_ONCE = 500
"""So many topics of a fetch or a commit are looked at, or refused, in a few milliseconds."""


def refuse_of_fetch(
    group: OffsetFetchRequest.Group,
) -> Generator[None, None, OffsetFetchResponse.Group]:
    """What is answered of a group's topics that the caller must not see; it stops after each step."""
    left_out, number = OffsetFetchResponse.Group(group_id=group.group_id), 0
    for topic in group.topics:
        outcomes = left_out.topics.add(name=topic.topic).partitions
        for partition in topic.partitions or (None,):
            if partition is not None:
                outcomes.add(
                    partition=partition,
                    offset=-1,
                    leader_epoch=-1,
                    error_code=error_code.TOPIC_AUTHORIZATION_FAILED,
                )
            number += 1
            if not number % AT_ONCE:
                yield
    return left_out


def refuse_of_commit(
    refused: coordinator_pb2.OffsetCommitResponse, topics: Iterable[OffsetCommitRequest.Topic]
) -> Iterator[None]:
    """Adds what is answered of topics of a commit that the caller must not see; it yields after each step."""
    number = 0
    for topic in topics:
        add = refused.topics.add(name=topic.name).partitions.add
        for entry in topic.partitions:
            outcome = add()  # as of an answer: quicker than with its fields
            outcome.partition, outcome.error_code = entry.partition, error_code.TOPIC_AUTHORIZATION_FAILED
            number += 1
            if not number % AT_ONCE:
                yield


@dataclass(frozen=True, slots=True)
class FetchedGroup:
    """A group of an OffsetFetch.

    Attributes:
        refused: the answer for what of it is refused; None: nothing is.
        is_asked: whether anything of it is asked for.
        allowed: which of its topics are.
    """

    refused: OffsetFetchResponse.Group | None = None
    is_asked: bool = True
    allowed: Sequence[bool] = field(default_factory=tuple)

    def complete(self, answer: OffsetFetchResponse.Group) -> None:
        """Puts what is refused into the answer to what was asked."""
        if self.refused is not None and not answer.error_code:
            put_in(answer.topics, self.refused.topics, self.allowed)


def keep(topics: Any, allowed: Sequence[bool]) -> None:
    """Leaves those in a list that are allowed."""
    for place in range(len(allowed) - 1, -1, -1):
        if not allowed[place]:
            del topics[place]


def mix(whole: Any, answered: Any, refused: Sequence[Any], allowed: Sequence[bool]) -> None:
    """Fills a list with answers and refusals, in the order of the request."""
    parts_of: tuple[Iterator[Any], Iterator[Any]] = iter(refused), iter(answered)
    parts = [next(parts_of[may]) for may in allowed]
    del whole[:]
    whole.extend(parts)


def put_in(answered: Any, refused: Sequence[Any], allowed: Sequence[bool]) -> None:
    """Puts refusals among answers, in the order of the request: to copy megabytes of them takes long."""
    for place, may in enumerate(allowed):
        if not may:
            answered.insert(place, refused[place])
