"""M3: a member is removed for its silence only after its time-out."""

from dataclasses import dataclass

from muster_protos.muster.log.v1 import records_pb2

from muster_core import cause_kind
from muster_core.audit.invariants import Findings
from muster_core.position import Position

_TOLERANCE_MS = 100  # between two times of one writer


@dataclass(frozen=True, slots=True)
class OtherTimeout:
    """A removal that states another time-out than the member's last record does.

    It is right only where the member asked for another one in a join that no record shows, so while a join
    phase was under way: then this removal is not what started the next generation.

    Attributes:
        position: place of the removal.
        message: the removal.
        known_ms: the time-out that the member's last record says.
    """

    position: Position
    message: records_pb2.MemberLeft
    known_ms: int

    def check(self, started: records_pb2.GenerationStarted, findings: Findings) -> None:
        """Judges the removal by the generation that follows it."""
        mine = self.message.cause
        findings.expect(
            "M3",
            (started.cause.kind, started.cause.member_id) != (mine.kind, mine.member_id),
            self.position,
            f"group {started.group_id!r}: {self.message.member_id} was removed after {mine.silence_ms} ms of "
            f"silence; its time-out is {self.known_ms} ms",
        )


def check_silence(
    position: Position,
    message: records_pb2.MemberLeft,
    member: records_pb2.Member,
    silent_ms: int,
    findings: Findings,
) -> OtherTimeout | None:
    """Judges a removal; returns it where only the next generation can tell.

    Args:
        position: place of the removal.
        message: the removal.
        member: the member's last record.
        silent_ms: since when the log shows nothing of the member.
        findings: takes the result.
    """
    stated_ms = message.cause.silence_ms
    if not stated_ms:
        return None  # not removed for its silence, or by version 0.1, which did not store the number
    findings.expect(
        "M3",
        silent_ms < 0 or silent_ms >= stated_ms - _TOLERANCE_MS,  # below 0: the clock was set back
        position,
        f"group {message.group_id!r}: {message.member_id} was removed {silent_ms} ms after it was heard "
        f"of; its time-out is {stated_ms} ms",
    )
    known_ms = {
        cause_kind.SESSION_EXPIRED: member.session_timeout_ms,
        cause_kind.DISCONNECTED: member.disconnect_grace_ms,
    }.get(message.cause.kind, 0)
    return None if stated_ms == known_ms else OtherTimeout(position, message, known_ms)
