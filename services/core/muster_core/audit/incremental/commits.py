"""O3 and O4: whose commits count in an incremental group."""

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.incremental.state import GroupState
from muster_core.audit.invariants import Findings
from muster_core.log.commits import CommitRow
from muster_core.position import Position


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
    if record.by_token:
        named = {(topic_of(entry.topic), entry.partition) for entry in record.offsets}
        others = sorted(one for one in named if group.owners.get(one) != member_id)
        if others:
            findings.broke(
                "O3", position, f"group {group_id!r}: a commit of {member_id} in {others[:5]} of others"
            )
    elif member is None or epoch not in (member.epoch, group.derived_epoch(member)):
        at = "is no member" if member is None else f"is at epoch {member.epoch}"
        text = f"group {group_id!r}: a commit of {member_id} in epoch {epoch}; it {at}"
        findings.broke("O3", position, text)
    if member is not None and seq:
        text = f"group {group_id!r}: a commit of {member_id}: number {seq} after number {member.commit_seq}"
        findings.expect("O4", seq > member.commit_seq, position, text)
        member.commit_seq = max(seq, member.commit_seq)
