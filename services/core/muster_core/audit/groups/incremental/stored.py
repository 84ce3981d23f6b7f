"""I3 to I6: what the snapshot that a trimmed log begins with says of an incremental group, by itself."""

from muster_core.audit.invariants import Findings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position


def check_stored(group_id: str, group: IncrementalGroup, position: Position, findings: Findings) -> None:
    """Checks that a group can be as it is said to be; what is said is believed then.

    That no partition has two owners is seen to where the snapshot is read.

    Args:
        group_id: the group.
        group: as the snapshot has it.
        position: where the snapshot ends.
        findings: takes the results.
    """
    where = f"group {group_id!r}, by the oldest snapshot:"
    epochs = f"its target is of epoch {group.target_epoch}, and it is in epoch {group.epoch}"
    findings.expect("I4", group.target_epoch <= group.epoch, position, f"{where} {epochs}")
    wanted: set[TopicPartition] = set()
    for member_id, member in group.members.items():
        text = f"{where} {member_id} is at epoch {member.epoch}, beyond the target's {group.target_epoch}"
        findings.expect("I3", member.epoch <= group.target_epoch, position, text)
        may_be_away = bool(member.told.group_instance_id) or member.epoch != AWAY
        text = f"{where} {member_id} is away and no static member"
        findings.expect("I6", may_be_away, position, text)
        double = sorted(wanted & member.target)
        text = f"{where} {member_id} is to have {double[:5]}, and so is another one"
        findings.expect("I5", not double, position, text)
        wanted |= member.target
