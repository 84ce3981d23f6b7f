"""What `muster doctor` says of groups whose moves are held back."""

from typing import Any

import pytest
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.holds import LONG_MS, judge_holds

NOW_MS = 1_800_000_000_000


def judged(**hold: Any) -> list[Finding]:
    answer = peer_pb2.DescribeFaultsResponse()
    if hold:
        answer.holds.append(peer_pb2.DescribeFaultsResponse.Hold(group_id="orders", **hold))
    return list(judge_holds({"c-1": answer}, NOW_MS))


@pytest.mark.parametrize(
    ("age_ms", "result"), [(LONG_MS - 1, CheckResult.OK), (LONG_MS, CheckResult.WARNING)]
)
def test_a_hold_of_a_deployment_is_warned_of_once_it_is_old(age_ms: int, result: CheckResult) -> None:
    (found,) = judged(
        member_id="worker-1",
        began_ms=NOW_MS - age_ms,
        until_ms=NOW_MS - age_ms + 3_600_000,
        members=4,
        idle=2,
    )
    assert (found.subject, found.result) == ("group orders", result)
    assert "worker-1 holds moves back with rollout_hold_ms, for 10 min so far" in found.detail
    assert "2 of its 4 members have no partition" in found.detail
    assert bool(found.fix) is (result is CheckResult.WARNING)


def test_a_hold_that_only_an_operator_ends_is_always_warned_of() -> None:
    (found,) = judged(members=3)
    assert found.result is CheckResult.WARNING
    assert "its setting `hold` keeps partitions where they are; 0 of its 3" in found.detail
    assert found.fix == "`muster groups set orders hold=false` lets partitions move"


def test_what_a_member_says_does_nothing_to_a_terminal() -> None:
    (found,) = judged(member_id="\x1b[31mred", began_ms=NOW_MS, until_ms=NOW_MS + 1, members=1)
    assert "\\x1b[31mred holds" in found.detail


def test_nothing_is_said_where_nothing_is_held() -> None:
    assert judged() == []
