"""M3 and I8: members of incremental groups are removed only after their time."""

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core import cause_kind
from muster_core.audit.groups.incremental.state import MemberState
from muster_core.audit.invariants import Findings
from muster_core.position import Position

_TOLERANCE_MS = 100  # between two times of one writer


def check_removal(
    position: Position,
    message: incremental_pb2.MemberRemoved,
    member: MemberState,
    now_ms: int,
    findings: Findings,
) -> None:
    """Judges a removal by the times of the records before it, where one owner wrote them by one clock.

    Args:
        position: its place.
        message: the removal.
        member: what is known of the member.
        now_ms: when it was removed.
        findings: takes the results.
    """
    name = f"group {message.group_id!r}: {message.member_id} was removed"
    stated_ms = message.cause.silence_ms
    if stated_ms and member.heard_ms is not None and not message.clock_moved:
        passed_ms = now_ms - member.heard_ms
        text = f"{name} {passed_ms} ms after it was heard of; its time-out is {stated_ms} ms"
        findings.expect("M3", _over(passed_ms, stated_ms), position, text)
    least_ms = _granted_ms(message.cause.kind, member.told)
    text = f"{name} after {stated_ms} ms of silence; it was granted {least_ms} ms when it joined"
    findings.expect("M3", stated_ms >= least_ms, position, text)
    timed_out = message.cause.kind == cause_kind.REBALANCE_TIMEOUT
    text = f"{name} for what it did not give back, and owes nothing"
    findings.expect("I8", member.owes or not timed_out, position, text)
    if timed_out and member.owes and member.taken_ms is not None and not message.clock_moved:
        passed_ms, time_out_ms = now_ms - member.taken_ms, member.shortest_ms
        text = f"{name} {passed_ms} ms after something was taken; its time-out is {time_out_ms} ms"
        findings.expect("I8", _over(passed_ms, time_out_ms), position, text)


def _granted_ms(kind: cause_kind.Kind, told: incremental_pb2.IncrementalMember) -> int:
    """How long a member that asked for it may be silent at least (docs/safety.md, INC-104); 0: not known."""
    if kind == cause_kind.SESSION_EXPIRED:
        return told.session_timeout_ms
    if kind == cause_kind.DISCONNECTED:
        return min(told.disconnect_grace_ms, told.session_timeout_ms)
    return 0


def _over(passed_ms: int, time_out_ms: int) -> bool:
    """Whether a time was over; below 0: the clock was set back."""
    return passed_ms < 0 or passed_ms >= time_out_ms - _TOLERANCE_MS
