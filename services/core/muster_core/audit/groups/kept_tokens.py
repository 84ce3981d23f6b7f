"""G9, G13 and G15: who has which partition, and since when, as the assignments of one group say."""

from collections.abc import Iterable
from itertools import repeat

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.invariants import Findings
from muster_core.position import Position
from muster_core.state.members.claims import claimed_in
from muster_core.state.published import TopicPartition, partitions_in

Given = dict[TopicPartition, tuple[str, Position]]
"""Partition → its owner and the record that gave it."""


def check_partitions(
    position: Position,
    message: records_pb2.AssignmentCommitted,
    before: Given | None,
    born_after: Position,
    findings: Findings,
) -> Given:
    """Checks what an assignment gives and which tokens it keeps; returns who has what from here on.

    Args:
        position: place of the assignment.
        message: the assignment.
        before: who had what; None: not known, the log begins in the middle of the group's life.
        born_after: where an earlier group of this name was removed.
        findings: takes the results.
    """
    given: Given = {}
    for row in message.members[:]:
        partitions, tokens = partitions_in(row.assignment), row.kept_tokens[:]
        findings.checked["G9"] += len(partitions)
        given_now = set(partitions)
        if not tokens and len(given_now) == len(partitions) and given.keys().isdisjoint(given_now):
            given.update(zip(partitions, repeat((row.member_id, position))))
            continue
        kept = {(token.topic, token.partition): Position.from_proto(token.position) for token in tokens}
        findings.checked["G13"] += len(kept)
        for partition, since in kept.items():
            problem = _problem(row.member_id, partition, since, before)
            if since >= position:
                problem = "not before it"
            elif since < born_after:
                problem = "from before the group was removed"
            elif partition not in given_now:
                problem = "which it is not given"
            if problem:
                topic, number = partition
                findings.broke(
                    "G13",
                    position,
                    f"{_name(message)}: {row.member_id} keeps {topic}/{number} since {since.stream_id}, "
                    f"{problem}",
                )
        for partition in partitions:
            if partition in given:
                topic, number = partition
                text = f"{_name(message)}: {topic}/{number} is given a second time, to {row.member_id}"
                findings.broke("G9", position, text)
            given[partition] = (row.member_id, kept.get(partition, position))
    return given


def check_keepers(
    position: Position,
    message: records_pb2.AssignmentCommitted,
    members: Iterable[records_pb2.Member],
    before: Given | None,
    most: int,
    findings: Findings,
) -> None:
    """Checks that nobody is given what another member keeps, and nobody at all what several say they keep.

    Args:
        position: place of the assignment.
        message: the assignment.
        members: those of the generation, as they joined.
        before: who had what; None: not known.
        most: how many kept partitions the coordinator looks at; of more it gives everybody what it had.
        findings: takes the results.
    """
    kept: dict[TopicPartition, str] = {}
    twice: dict[TopicPartition, str] = {}
    without = set[bytes]()  # mostly all members say the same, and keep nothing
    for member in members:
        metadata = [protocol.metadata for protocol in member.protocols]
        if without.issuperset(metadata):
            continue
        claimed = list(claimed_in(metadata))
        if not claimed:
            without.update(metadata)
        mine: dict[TopicPartition, str] = {}
        for topic, numbers in claimed:
            most -= len(numbers)
            mine.update(zip(zip(repeat(topic), numbers), repeat(member.member_id)))
        twice.update((one, kept[one]) for one in kept.keys() & mine.keys())
        kept |= mine
    findings.checked["G15"] += len(kept)
    for row in message.members if kept else ():
        for partition in partitions_in(row.assignment):
            keeper = kept.get(partition, row.member_id)
            if keeper == row.member_id:
                keeper = twice.get(partition, row.member_id)
            if keeper == row.member_id or (most < 0 and _has(row.member_id, partition, before)):
                continue
            topic, number = partition
            text = f"{_name(message)}: {row.member_id} is given {topic}/{number}, which {keeper} keeps"
            findings.broke("G15", position, text)


def _has(member_id: str, partition: TopicPartition, before: Given | None) -> bool:
    """Whether a member may have had a partition before."""
    return before is None or (partition in before and before[partition][0] == member_id)


def _problem(member_id: str, partition: TopicPartition, since: Position, before: Given | None) -> str:
    """Why a token cannot be kept, by who had the partition; empty: it can."""
    if before is None:
        return ""
    had = before.get(partition)
    if had is None:
        return "which nobody had"
    return "" if had == (member_id, since) else f"which {had[0]} had since {had[1].stream_id}"


def _name(message: records_pb2.AssignmentCommitted) -> str:
    return f"group {message.group_id!r}, assignment of generation {message.generation}"
