"""What a client does when a server says that it asks too often, and when to try again (LIM-41)."""

import itertools
import time

import grpc
import muster
import pytest
from client.client_scripted import Break, ScriptedCluster
from muster._session.frames import response_of
from muster._session.transport import LONGEST_RETRY_MS, Overloaded
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

pytestmark = pytest.mark.cluster

RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
AFTER_MS = 700


async def test_a_refused_call_is_repeated_when_the_server_said(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    came_s: list[float] = []

    def refuse(_: object) -> None:
        came_s.append(time.monotonic())
        raise Break(RESOURCE_EXHAUSTED, AFTER_MS)

    def answer(_: object) -> coordinator_pb2.GroupHistoryResponse:
        came_s.append(time.monotonic())
        return coordinator_pb2.GroupHistoryResponse()

    a.script["GroupHistory"].extend([refuse, refuse, answer])
    async with muster.Cluster(cluster.address) as connection:
        await connection.group_history("g")
    assert len(came_s) == 3
    assert min(later - sooner for sooner, later in itertools.pairwise(came_s)) >= AFTER_MS / 1_000


async def test_calls_of_other_kinds_do_not_wait(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    a.script["GroupHistory"].append(lambda _: refused_for_long())
    async with muster.Cluster(cluster.address, timeout_ms=20_000) as connection:
        link = connection.link("g")
        history = coordinator_pb2.GroupHistoryRequest(group_id="g")
        await link.call(history, coordinator_pb2.GroupHistoryResponse, timeout_ms=5_000)
        began_s = time.monotonic()
        heartbeat = coordinator_pb2.HeartbeatRequest(group_id="g")
        await link.call(heartbeat, coordinator_pb2.HeartbeatResponse, timeout_ms=5_000)
        assert time.monotonic() - began_s < LONGEST_RETRY_MS / 1_000


def refused_for_long() -> None:
    raise Break(RESOURCE_EXHAUSTED, 10 * LONGEST_RETRY_MS)


def test_a_refusal_on_a_stream_says_when_too() -> None:
    reply = session_pb2.Reply(call_id=1)
    reply.refused.status = RESOURCE_EXHAUSTED.value[0]
    reply.refused.retry_after_ms = 80
    with pytest.raises(Overloaded) as error:
        response_of(reply)
    assert error.value.retry_after_ms == 80
    reply.refused.retry_after_ms = 10 * LONGEST_RETRY_MS
    with pytest.raises(Overloaded) as error:
        response_of(reply)
    assert error.value.retry_after_ms == LONGEST_RETRY_MS, "no server can make a client wait for ever"
