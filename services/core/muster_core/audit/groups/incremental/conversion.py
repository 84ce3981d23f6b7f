"""I9: what becomes of a group when its kind changes."""

from collections.abc import Mapping

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2

from muster_core.audit.groups.incremental.state import GroupState, MemberState, Since
from muster_core.audit.groups.kept_tokens import Given
from muster_core.audit.invariants import Findings
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position


def converted(
    position: Position,
    message: incremental_pb2.GroupConverted,
    generation: int,
    members: Mapping[str, tuple[records_pb2.Member, int]],
    given: Mapping[TopicPartition, tuple[str, Position]],
    now_ms: int,
    findings: Findings,
) -> GroupState:
    """Judges a conversion; returns what is known of the group after it.

    Args:
        position: its place.
        message: the record.
        generation: of the classic group.
        members: what the log knows of its members, with the numbers of their last commits.
        given: who has what by its last assignment, and since which record.
        now_ms: when it was written.
        findings: takes the results.
    """
    group = GroupState(message.generation, message.generation)
    group.converted, group.converted_generation = position, message.generation
    name = f"group {message.group_id!r} is converted"
    text = f"{name} in generation {message.generation}; it is in {generation}"
    findings.expect("I9", message.generation == generation, position, text)
    named = {told.member_id: told for told in message.members}
    others = sorted(named.keys() ^ members.keys())
    findings.expect(
        "I9", not others, position, f"{name}: only before or only after it are members: {others[:5]}"
    )
    for member_id, told in named.items():
        known, commit_seq = members.get(member_id, (None, 0))
        if known is not None and (fault := _fault(told, known)):
            findings.broke("I9", position, f"{name}: {member_id} {fault}")
        member = group.members[member_id] = MemberState(told, message.generation, commit_seq=commit_seq)
        member.heard_ms, member.shortest_ms = now_ms, told.rebalance_timeout_ms
    for partition, (owner, token) in given.items():
        if owner in group.members:
            group.owners[partition] = group.wanted[partition] = owner
            group.members[owner].held[partition] = Since(token)
            group.members[owner].target.add(partition)
    return group


def reverted(
    position: Position,
    message: records_pb2.GroupReverted,
    group: GroupState,
    findings: Findings,
) -> Given:
    """Judges that an incremental group became classic again; returns who has what from then on.

    Args:
        position: place of the record.
        message: the record.
        group: what is known of the group.
        findings: takes the results.
    """
    name = f"group {message.group_id!r} is classic again"
    text = f"{name} in epoch {message.generation}; it is in {group.epoch}"
    findings.expect("I9", message.generation == group.epoch, position, text)
    named = {member.member_id: member for member in message.members}
    others = sorted(named.keys() ^ group.members.keys())
    findings.expect(
        "I9", not others, position, f"{name}: only before or only after it are members: {others[:5]}"
    )
    for member_id, member in named.items():
        known = group.members.get(member_id)
        if known is not None and (fault := _fault_of_reverted(member, known.told)):
            findings.broke("I9", position, f"{name}: {member_id} {fault}")
    stale = sorted(
        partition
        for one in group.members.values()
        for partition in one.held
        if group.is_stale(one, partition)
    )
    findings.expect("I9", not stale, position, f"{name}: {stale[:5]} are of a topic that was deleted")
    return {
        partition: (member_id, since.token)
        for member_id, member in group.members.items()
        for partition, since in member.held.items()
    }


def _fault_of_reverted(member: records_pb2.Member, told: incremental_pb2.IncrementalMember) -> str:
    """What the record says of a member that this did not; empty: nothing."""
    if not told.can_be_classic:
        return "did not say that it can be classic"
    if (member.member_seq, member.process_id) != (told.member_seq, told.process_id):
        return f"is of join {member.member_seq}, and has made join {told.member_seq}, or of another process"
    if member.group_instance_id != told.group_instance_id:
        return f"has the static id {member.group_instance_id!r}, and had {told.group_instance_id!r}"
    if (member.identity, member.secret_hash) != (told.identity, told.secret_hash):
        return "belongs to another identity, or has another secret"
    return ""


def _fault(told: incremental_pb2.IncrementalMember, known: records_pb2.Member) -> str:
    """What a conversion says of a member that its join did not; empty: nothing."""
    if not known.process_id or told.process_id != known.process_id:
        return "did not say that it can be incremental, or is of another process"
    if told.member_seq < known.member_seq:
        return f"is of join {told.member_seq}, and has made join {known.member_seq}"
    if told.group_instance_id != known.group_instance_id:
        return f"has the static id {told.group_instance_id!r}, and had {known.group_instance_id!r}"
    if (told.weight or 1) != (known.weight or 1):
        return f"has a weight of {told.weight or 1}, and joined with {known.weight or 1}"
    if known.identity not in ("", told.identity) or known.secret_hash not in (b"", told.secret_hash):
        return "belongs to another identity, or has another secret"
    return ""
