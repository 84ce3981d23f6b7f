"""O3 and O4: whose commits count in an incremental group."""

from collections.abc import Collection

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.groups.incremental.state import GroupState
from muster_core.audit.groups.kept_tokens import Given
from muster_core.audit.invariants import Findings
from muster_core.incremental.partitions import TopicPartition
from muster_core.log.commits import CommitRow
from muster_core.position import NOWHERE, Position


def check_commit(
    position: Position, commit: CommitRow, data: bytes, group: GroupState, findings: Findings
) -> None:
    """Takes a commit.

    Args:
        position: its place.
        commit: the commit.
        data: its record.
        group: what is known of its group; the number of the commit is noted.
        findings: takes the results; that O3 was looked at is counted already.
    """
    group_id, member_id, epoch, seq, _ = commit
    if not member_id and epoch < 0:
        if group.members:
            findings.broke("O3", position, f"group {group_id!r}: a commit from outside while it has members")
        return
    member = group.members.get(member_id)
    record = records_pb2.Record.FromString(data).offset_committed
    named = {(topic_of(entry.topic), entry.partition) for entry in record.offsets}
    if record.by_token:
        others = sorted(one for one in named if group.owners.get(one) != member_id)
        if others:
            findings.broke(
                "O3", position, f"group {group_id!r}: a commit of {member_id} in {others[:5]} of others"
            )
    elif member is not None and group.converted != NOWHERE and epoch == group.converted_generation:
        named = {(topic_of(entry.topic), entry.partition) for entry in record.offsets}
        since = {one: member.held[one].token for one in named if one in member.held}
        later = sorted(one for one in named if one not in since or since[one] >= group.converted)
        if later and epoch not in (member.epoch, group.derived_epoch(member)):
            text = (
                f"group {group_id!r}: a commit of {member_id} in {later[:5]}, got later than the conversion"
            )
            findings.broke("O3", position, text)
    elif member is None or epoch not in (member.epoch, group.derived_epoch(member)):
        at = "is no member" if member is None else f"is at epoch {member.epoch}"
        text = f"group {group_id!r}: a commit of {member_id} in epoch {epoch}; it {at}"
        findings.broke("O3", position, text)
    else:
        _check_without_token(position, member_id, named, group, group_id, findings)
    if member is not None:
        gone = sorted(one for one in named if group.is_stale(member, one))
        if gone:
            text = f"group {group_id!r}: a commit of {member_id} in {gone[:5]} of a topic that was deleted"
            findings.broke("O3", position, text)
    if member is not None and seq:
        text = f"group {group_id!r}: a commit of {member_id}: number {seq} after number {member.commit_seq}"
        findings.expect("O4", seq > member.commit_seq, position, text)
        member.commit_seq = max(seq, member.commit_seq)


def check_reverted(
    position: Position, commit: CommitRow, data: bytes, given: Given, findings: Findings
) -> None:
    """Takes a commit in a group that is classic again: until it has an assignment the owners' tokens count.

    Args:
        position: its place.
        commit: the commit.
        data: its record.
        given: who has what.
        findings: takes the results; that O3 was looked at is counted already.
    """
    group_id, member_id, _, _, _ = commit
    record = records_pb2.Record.FromString(data).offset_committed
    named = {(topic_of(entry.topic), entry.partition) for entry in record.offsets}
    others = sorted(one for one in named if given.get(one, ("",))[0] != member_id)
    if not record.by_token or others:
        what = f"in {others[:5]} of others" if record.by_token else "without a token"
        text = f"group {group_id!r}: a commit of {member_id} {what} while the group has no assignment"
        findings.broke("O3", position, text)


def _check_without_token(
    position: Position,
    member_id: str,
    named: Collection[TopicPartition],
    group: GroupState,
    group_id: str,
    findings: Findings,
) -> None:
    """Without a token a commit counts for any partition, as in Kafka, but none of a stream member (WK-10)."""
    for partition in sorted(named):
        owner = group.members.get(group.owners.get(partition, ""))
        if owner is not None and owner.told.on_session:
            text = f"a commit of {member_id} without a token in {partition}, which {owner.told.member_id} has"
            findings.broke("O3", position, f"group {group_id!r}: {text} on a stream")
