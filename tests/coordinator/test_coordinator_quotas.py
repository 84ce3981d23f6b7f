"""Quotas at a coordinator: unary calls and streams share them, what is refused leaves nothing (LIM-39)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, group_of, owns
from coordinator.real_cluster import on_one_node
from coordinator.session_client import Session, call, stable
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2
from muster_runtime.rpc.quotas import Quota, QuotaSettings
from muster_runtime.rpc.quotas.party import BURST_S, CREATION_BURST_S

pytestmark = pytest.mark.cluster

SHARDS = 4
GROUP = group_of(0)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
OFF = dict.fromkeys((quota.value for quota in Quota), 0)


@pytest.fixture
async def caller(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Caller]:
    limits: dict[str, Any] = dict(request.param)
    if rules := limits.pop("rules", ""):
        limits["file"] = tmp_path / "quotas.toml"
        limits["file"].write_text(rules)
    async with on_one_node(SHARDS) as coordinators:
        quotas = QuotaSettings.model_validate({**OFF, **limits})
        coordinator = await coordinators.add("a", quotas=quotas)
        await owns(coordinator, SHARDS)
        yield coordinators.caller(coordinator)


def commit(group_id: str, offset: int) -> coordinator_pb2.OffsetCommitRequest:
    partition = coordinator_pb2.OffsetCommitRequest.Partition(offset=offset)
    topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=[partition])
    return coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1, topics=[topic])


async def status(answering: Any) -> grpc.StatusCode:
    try:
        await answering
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("caller", [{"commits_per_s": 1}], indirect=True)
async def test_commits_of_a_caller_count_on_streams_and_beside_them(caller: Caller) -> None:
    for offset in range(1, BURST_S):
        assert await caller.commit(GROUP, offset) == error_code.NONE
    session = await Session(caller.channel).hello()
    assert not (await session.ask(offset_commit=commit(GROUP, BURST_S))).HasField("refused")
    reply = await session.ask(offset_commit=commit(GROUP, 100))
    assert reply.refused.status == EXHAUSTED.value[0]
    assert 0 < reply.refused.retry_after_ms <= 2_000
    assert "MUSTER_QUOTA_COMMITS_PER_S" in reply.refused.message
    assert await status(caller.commit(GROUP, 101)) is EXHAUSTED
    assert await caller.fetch(GROUP) == [(error_code.NONE, BURST_S)], "calls of other kinds are served"
    await session.close()


@pytest.mark.parametrize("caller", [{"new_groups_per_s": 1}], indirect=True)
async def test_who_begins_many_groups_is_refused_and_goes_on_in_those_there_are(caller: Caller) -> None:
    names: list[str] = []
    code = grpc.StatusCode.OK
    while code is grpc.StatusCode.OK and len(names) < 10 * CREATION_BURST_S:  # the quota grows meanwhile
        names.append(group_of(0, len(names)))
        code = await status(caller.commit(names[-1], 1))
    assert code is EXHAUSTED
    assert len(names) > CREATION_BURST_S
    assert [await caller.commit(name, 2) for name in names[:CREATION_BURST_S]] == [
        error_code.NONE
    ] * CREATION_BURST_S
    assert (await stable(caller, names[0])).error_code == error_code.NONE


@pytest.mark.parametrize("caller", [{"streams": 1}], indirect=True)
async def test_streams_of_a_caller_end_at_their_limit(caller: Caller) -> None:
    first = await Session(caller.channel).hello()
    await first.beat()
    second = await Session(caller.channel).hello()
    assert await second.end() is EXHAUSTED
    await first.close()
    third = await Session(caller.channel).hello()
    await third.beat()
    await third.close()


@pytest.mark.parametrize("caller", [{"connection_calls_per_s": 4}], indirect=True)
async def test_a_stream_above_its_quota_is_refused_call_by_call_and_beats_on(caller: Caller) -> None:
    joined = await stable(caller, GROUP)
    session = await Session(caller.channel).hello()
    assert (await session.attach(GROUP, joined)).error_code == error_code.NONE
    heartbeat = coordinator_pb2.HeartbeatRequest(group_id="g")
    await session.send(*(call(100 + number, heartbeat=heartbeat) for number in range(500)))
    replies = await session.until(lambda: [r for r in session.said("reply") if r.call_id >= 100][499:])
    assert replies
    refused = [reply for reply in session.said("reply") if reply.HasField("refused")]
    assert len(refused) >= 470
    assert not (await session.beat()).unheard
    await session.close()


RULES = """
[[quota]]
groups = "g"
commits_per_s = 1
"""


@pytest.mark.parametrize("caller", [{"rules": RULES}], indirect=True)
async def test_groups_of_a_prefix_share_a_quota(caller: Caller) -> None:
    other = group_of(1)
    codes = [await status(caller.commit(name, 1)) for name in (GROUP, other) * (BURST_S + 2)]
    assert codes[:BURST_S] == [grpc.StatusCode.OK] * BURST_S
    assert EXHAUSTED in codes[BURST_S:]
    assert await caller.commit("another", 1) == error_code.NONE
