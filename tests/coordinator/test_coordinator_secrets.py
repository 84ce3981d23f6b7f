"""Secrets of members at the edge of a coordinator: their bounds, and who tries to do without."""

from collections import Counter
from typing import Any

import pytest
from coordinator.coordinator_cluster import MemoryCluster, group_of
from coordinator.session_client import Session
from coordinator.test_coordinator_metrics import counted
from muster_coordinator.shard.strangers import Strangers
from muster_coordinator.validation import violations
from muster_core import error_code
from muster_protos.limits import MEMBER_SECRET_MAX_BYTES, MEMBER_SECRET_MIN_BYTES
from muster_protos.muster.v1 import coordinator_pb2, session_pb2
from muster_runtime.logs import SELDOM_S
from structlog.testing import capture_logs

SECRET = b"a member's secret"
LEAVER = coordinator_pb2.LeaveGroupRequest.Member


def calls_with(secret: bytes) -> dict[str, Any]:
    """The field at fault of each call that brings a secret, and the call."""
    leaving = [LEAVER(member_id="m", member_secret=SECRET), LEAVER(member_id="n", member_secret=secret)]
    of_member = (
        coordinator_pb2.JoinGroupRequest,
        coordinator_pb2.SyncGroupRequest,
        coordinator_pb2.HeartbeatRequest,
        coordinator_pb2.OffsetCommitRequest,
    )
    return {
        **{kind.DESCRIPTOR.name: kind(group_id="g", member_secret=secret) for kind in of_member},
        "LeaveGroupRequest": coordinator_pb2.LeaveGroupRequest(group_id="g", members=leaving),
    }


@pytest.mark.parametrize("kind", calls_with(b""))
def test_a_secret_has_16_to_64_bytes(kind: str) -> None:
    assert (MEMBER_SECRET_MIN_BYTES, MEMBER_SECRET_MAX_BYTES) == (16, 64)
    for length in (0, 16, 64):
        assert violations(calls_with(bytes(length))[kind]) == []
    for length in (1, 15, 65):
        (violation,) = violations(calls_with(bytes(length))[kind])
        assert violation.field.endswith("member_secret")
        assert "16 to 64 bytes" in violation.description


def test_who_tries_ids_is_counted_and_does_not_fill_the_log() -> None:
    now_ms, counts, told = [50_000], [0], Counter[tuple[str, ...]]()

    def count() -> None:
        counts[0] += 1

    strangers = Strangers(lambda: now_ms[0], count, lambda *who: told.update([who]))
    with capture_logs() as lines:
        for _ in range(1_000):
            strangers.spoke("g", "m", "ann", "10.0.0.9")
        now_ms[0] += round(SELDOM_S * 1_000)
        strangers.spoke("h", "n", "", "")
    assert counts == [1_001]
    assert told == {("g", "m", "ann", "10.0.0.9"): 1_000, ("h", "n", "", ""): 1}
    assert [(line["event"], line["group_id"], line["host"], line["calls"]) for line in lines] == [
        ("member_secret_wrong", "g", "10.0.0.9", 1),
        ("member_secret_wrong", "h", "", 1_000),
    ]


@pytest.mark.cluster
async def test_calls_without_the_secret_are_counted_logged_and_refused(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        with capture_logs() as lines:
            joined = await one.caller.join(group_id, member_secret=SECRET)
            assert joined.error_code == error_code.NONE
            assert (await one.read()).value("muster_member_secrets_wrong_total") == 0
            answer = await one.caller.heartbeat(group_id, joined)
            assert answer.error_code == error_code.UNKNOWN_MEMBER_ID
            session = await Session(one.caller.channel).hello()
            assert (await session.attach(group_id, joined)).error_code == error_code.UNKNOWN_MEMBER_ID
            reply = await session.ask(
                heartbeat=coordinator_pb2.HeartbeatRequest(
                    group_id=group_id,
                    member_id=joined.member_id,
                    generation=joined.generation,
                    member_secret=SECRET,
                )
            )
            assert reply.heartbeat.error_code == error_code.NONE
            attach = session_pb2.Attach(
                group_id=group_id,
                member_id=joined.member_id,
                generation=joined.generation,
                member_secret=bytes(MEMBER_SECRET_MAX_BYTES + 1),
            )
            await session.send(session_pb2.ClientFrame(attach=attach))
            results = await session.until(lambda: session.said("attach_result")[1:])
            assert results[0].error_code == error_code.INVALID_REQUEST
            await session.close()
            assert (await one.read()).value("muster_member_secrets_wrong_total") == 2
    (line,) = [line for line in lines if line["event"] == "member_secret_wrong"]
    assert (line["group_id"], line["member_id"], line["host"]) == (group_id, joined.member_id, "127.0.0.1")
    events = [line for line in lines if line["event"] == "audit"]
    assert [(line["what"], line["where"], line["outcome"]) for line in events] == [
        ([f"member:{group_id}/{joined.member_id}"], "127.0.0.1", "refused")
    ] * 2
    assert SECRET.decode() not in str(lines)
