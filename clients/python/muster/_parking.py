"""Parked partitions as the log of a group keeps them: a commit under a name that no topic can have."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from muster_protos.limits import ID_MAX_BYTES, NAME_MAX_CHARACTERS, PARKED_PREFIX, topic_of

from muster._values import Committed, TopicPartition

REASON_MAX_CHARACTERS = 500
"""What is kept of the reason, so that it fits into a commit's metadata whatever its characters are."""


def when(at_ms: int) -> str:
    """Unix time in ms as a date and time in UTC; what is no date as it is."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # beyond what a date can say
        return f"{at_ms} ms"


@dataclass(frozen=True, slots=True)
class Parked:
    """A partition whose work is not called, until an operator releases it or another version of it comes.

    Attributes:
        partition: the partition.
        reason: why, for people.
        since_ms: since when, wall clock of the worker that parked it, ms since the Unix epoch.
        member_id: who parked it.
        version: version of the work that failed, as `run(version=...)` says; empty: none was given.
    """

    partition: TopicPartition
    reason: str
    since_ms: int
    member_id: str
    version: str


def can_be_marked(partition: TopicPartition) -> bool:
    """Whether the topic's name leaves room for the prefix."""
    return len(PARKED_PREFIX) + len(partition.topic) <= NAME_MAX_CHARACTERS


def mark_of(partition: TopicPartition) -> TopicPartition:
    """Under which name the commit is that says that a partition is parked."""
    return TopicPartition(PARKED_PREFIX + partition.topic, partition.number)


def is_mark(partition: TopicPartition) -> bool:
    """Whether it is the name of such a commit."""
    return partition.topic.startswith(PARKED_PREFIX)


def owned_as(partition: TopicPartition) -> TopicPartition:
    """The partition that somebody owns who may commit under this name."""
    return TopicPartition(topic_of(partition.topic), partition.number) if is_mark(partition) else partition


def encode(parked: Parked) -> Committed:
    """What is committed for a parked partition."""
    reason = parked.reason[:REASON_MAX_CHARACTERS]
    said = {"reason": reason, "member_id": parked.member_id[:ID_MAX_BYTES], "version": parked.version}
    # Unpaired surrogates of an error's text cannot be sent.
    metadata = json.dumps(said, ensure_ascii=False).encode(errors="replace").decode()
    return Committed(parked.since_ms, metadata)


def decode(mark: TopicPartition, found: Committed) -> Parked:
    """What such a commit says; of one that this version cannot read, its text is the reason."""
    try:
        said = json.loads(found.metadata)
        texts = {name: str(said.get(name, "")) for name in ("reason", "member_id", "version")}
    except (ValueError, AttributeError, RecursionError):
        texts = {"reason": found.metadata, "member_id": "", "version": ""}
    return Parked(owned_as(mark), since_ms=found.offset, **texts)
