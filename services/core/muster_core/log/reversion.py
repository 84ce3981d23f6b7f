"""What an incremental group with members is as a classic one again (docs/safety.md, INC-150, INC-151)."""

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core.incremental.partitions import by_topic
from muster_core.position import Position
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member

_PUBLISHED = 1
"""Version of the published assignment message."""


def check_reversion(group: Group, record: records_pb2.GroupReverted) -> None:
    """Insists that a record fits the group that it makes classic.

    Raises:
        ValueError: it does not.
    """
    incremental = group.incremental
    if incremental is None or not incremental.members:
        raise ValueError(f"group {record.group_id!r} becomes classic again and is no incremental one")
    if record.generation != incremental.epoch:
        raise ValueError(f"group {record.group_id!r} is in epoch {incremental.epoch}")
    if sorted(member.member_id for member in record.members) != incremental.tally.ids:
        raise ValueError(f"the members of group {record.group_id!r} are others than those of the record")


def revert(group: Group, record: records_pb2.GroupReverted, position: Position, wall_ms: int) -> None:
    """Makes an incremental group a classic one that has a rebalance before it.

    It is as one whose last assignment gave each member what it had, given back or not: that is not free
    before everybody has joined, or is gone.

    Args:
        group: the group.
        record: the record, which `check_reversion` has found well.
        position: its place.
        wall_ms: when it was written.
    """
    before = group.incremental
    assert before is not None
    group.incremental, group.reverted = None, True
    group.owners = {
        partition: (member.member_id, held.token)
        for member in before.in_order()
        for partition, held in sorted(member.held.items())
    }
    for entry in record.members[:]:
        member = Member(entry.member_id)
        member.adopt(entry)
        member.token = position
        member.commit_seq = before.members[entry.member_id].commit_seq
        group.add_unweighed(member)
        held = by_topic(before.members[entry.member_id].held)
        if held:
            assignment = common_pb2.Assignment(version=_PUBLISHED, partitions=held)
            group.assign(member, assignment.SerializeToString(deterministic=True))
    group.generation = group.assigned_generation = record.generation
    group.protocol_type, group.protocol_name = CONSUMER, ""
    group.subscribed_topics = None  # what they say with their next joins is not known
    group.renewed_topics = frozenset()
    group.unfinished = common_pb2.RebalanceCause()
    group.unfinished.CopyFrom(record.cause)
    for state in (
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    ):  # in memory only: what follows the record is the rebalance
        group.become(state, wall_ms)
    group.weigh()
