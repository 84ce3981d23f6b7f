"""G13, I3 to I7: what the snapshot that a trimmed log begins with says of a group, by itself."""

from collections.abc import Iterator

from muster_core.audit.invariants import Findings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import Position
from muster_core.state.group import Group


def check_tokens(group: Group, position: Position, findings: Findings) -> None:
    """Checks that nobody has a token of a record after the end of the snapshot.

    Args:
        group: as the snapshot has it, of either kind.
        position: where the snapshot ends.
        findings: takes the results.
    """
    late = sorted({name for name, token in _tokens(group) if token > position})
    text = f"group {group.group_id!r}, by the oldest snapshot: {late[:5]} by tokens from after its end"
    findings.expect("G13" if group.incremental is None else "I7", not late, position, text)


def _tokens(group: Group) -> Iterator[tuple[str, Position]]:
    """Members and partitions, with the records that they have their tokens from."""
    for (topic, number), (_, since) in group.owners.items():
        yield f"{topic}/{number}", since
    for classic in group.members.values():
        yield classic.member_id, classic.token
        for kept in classic.kept_tokens:
            yield classic.member_id, Position.from_proto(kept.position)
    if group.incremental is not None:
        for member in group.incremental.members.values():
            yield member.member_id, max(member.joined, member.version)
            for (topic, number), held in member.held.items():
                yield f"{topic}/{number}", max(held)


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
