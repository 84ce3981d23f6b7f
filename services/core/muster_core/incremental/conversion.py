"""What a classic group with members is as an incremental one (docs/safety.md, INC-70, INC-71)."""

from collections import defaultdict
from collections.abc import Mapping

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Held, Member, Told
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position

SERVER_ASSIGNORS: Mapping[str, str] = {
    "range": "range",
    "uniform": "uniform",
    "sticky": "uniform",
    "cooperative-sticky": "uniform",
}
"""What takes the place of an assignor of clients, by the name of its protocol."""


def converted(
    record: incremental_pb2.GroupConverted,
    position: Position,
    owners: Mapping[TopicPartition, tuple[str, Position]],
    versions: Mapping[str, Position],
    commit_seqs: Mapping[str, int],
) -> IncrementalGroup:
    """The group that a record makes of a classic one.

    Args:
        record: the record.
        position: its place.
        owners: who has what by the last stored assignment, and the record that gave it.
        versions: record of the assignment of each member; nowhere: it has none.
        commit_seqs: number of the last acknowledged commit of each member.

    Raises:
        ValueError: the record does not name the members of the classic group.
    """
    if sorted(member.member_id for member in record.members) != sorted(versions):
        raise ValueError(f"the members of group {record.group_id!r} are others than those of its conversion")
    held: defaultdict[str, dict[TopicPartition, Held]] = defaultdict(dict)
    for partition, (owner, token) in owners.items():
        if owner in versions:
            held[owner][partition] = Held(token)
    group = IncrementalGroup(record.generation)
    group.target_epoch, group.server_assignor = record.generation, record.server_assignor
    group.topics_hash = record.topics_hash
    group.converted, group.converted_generation = position, record.generation
    for entry in record.members:
        member_id = entry.member_id
        group.put(
            Member(
                Told.of_record(entry),
                epoch=record.generation,
                joined=position,
                version=versions[member_id],
                held=held[member_id],
                target=frozenset(held[member_id]),
                commit_seq=commit_seqs[member_id],
            )
        )
    return group
