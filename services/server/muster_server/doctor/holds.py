"""Judges groups whose moves are held back: whether somebody forgot to end that. Pure."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2

from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.shown import shown

LONG_MS = 600_000
"""A deployment that holds moves back for longer may have ended long ago, or hang."""

_WHAT = "groups"


def judge_holds(answers: Mapping[str, peer_pb2.DescribeFaultsResponse], now_ms: int) -> Iterator[Finding]:
    """Judges holds: those of settings, which nothing but an operator ends, and old ones of deployments.

    Args:
        answers: of coordinators, by name.
        now_ms: wall clock.
    """
    for answer in answers.values():
        for hold in answer.holds:
            subject = f"group {shown(hold.group_id)}"
            idle = f"{hold.idle:,} of its {hold.members:,} members have no partition"
            fix = f"`muster groups set {shown(hold.group_id)} hold=false` lets partitions move"
            if not hold.until_ms:
                detail = f"its setting `hold` keeps partitions where they are; {idle}"
                yield Finding(_WHAT, subject, CheckResult.WARNING, detail, fix)
                continue
            until = datetime.fromtimestamp(hold.until_ms / 1_000, UTC)
            detail = (
                f"{shown(hold.member_id)} holds moves back with rollout_hold_ms, for "
                f"{_minutes(now_ms - hold.began_ms)} so far and until {until:%H:%M:%S} UTC; {idle}"
            )
            is_long = now_ms - hold.began_ms >= LONG_MS
            result = CheckResult.WARNING if is_long else CheckResult.OK
            yield Finding(_WHAT, subject, result, detail, fix if is_long else "")


def _minutes(span_ms: int) -> str:
    return f"{max(span_ms, 0) / 60_000:.0f} min"
