"""Rows that need a coordinator around the core: loading, other shards, failed loads; discovery's hash."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, group_of, owns
from kit.metadata.metadata_in_memory import MemoryMetadata
from kit.waiting import until, until_equal
from muster._cluster.discovery import DiscoveryClient, FoundCoordinator
from muster._session.transport import ConnectionLost
from muster_coordinator.shard.phase import Phase
from muster_core import error_code
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.sharding import java_hash, shard_of
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster

LOADING = error_code.COORDINATOR_LOAD_IN_PROGRESS
UNAVAILABLE = error_code.COORDINATOR_NOT_AVAILABLE
SLOW = 1
JOINED = coordinator_pb2.JoinGroupResponse(member_id="m", generation=1)
VECTORS = Path(__file__).parents[1] / "conformance/vectors"
HASHES = json.loads((VECTORS / "shards.json").read_text())["vectors"]


class Reads:
    """What happens to reads of the log of one shard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        self.outcome = metadata_pb2.LOG_OUTCOME_OK
        self.fail_first = 0
        self.nothing = False
        original = MemoryMetadata.ReadLog

        async def read(metadata: MemoryMetadata, request: Any, context: Any) -> AsyncIterator[Any]:
            if request.shard == SLOW:
                await self.go_on.wait()
                if self.fail_first:
                    self.fail_first -= 1
                    raise ConnectionError("planted")
                if self.outcome != metadata_pb2.LOG_OUTCOME_OK or self.nothing:
                    yield metadata_pb2.ReadLogResponse(outcome=self.outcome, message="planted")
                    return
            async for page in original(metadata, request, context):
                yield page

        monkeypatch.setattr(MemoryMetadata, "ReadLog", read)


@pytest.fixture
async def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
async def halted(reads: Reads, cluster: MemoryCluster) -> AsyncIterator[Caller]:
    """A coordinator that loads one of its shards for ever, and serves the others."""
    await cluster.stop()
    cluster.metadata.clear()
    await cluster.start()
    only = await cluster.add("a", load_wait_ms=0)
    await owns(only, SHARDS - 1)
    await until(lambda: SLOW in only.shards and only.shards[SLOW].phase is Phase.LOADING)
    yield cluster.caller(only)
    reads.go_on.set()


@pytest.mark.row("GV-10")
@pytest.mark.row("GV-11")
@pytest.mark.row("GV-12")
@pytest.mark.row("GV-13")
@pytest.mark.row("GV-14")
@pytest.mark.row("GV-18")
@pytest.mark.row("GV-19")
async def test_calls_while_a_shard_loads(halted: Caller, reads: Reads, cluster: MemoryCluster) -> None:
    group, other = group_of(SLOW), group_of(2)
    assert (await halted.join(group)).error_code == LOADING
    assert (await halted.sync(group, JOINED)).error_code == error_code.REBALANCE_IN_PROGRESS
    assert (await halted.heartbeat(group, JOINED)).error_code == LOADING
    assert await halted.commit(group, 1) == LOADING
    assert await halted.fetch(group) == [(LOADING, -2)]
    assert await halted.commit(other, 7) == error_code.NONE
    assert (await halted.join(other)).error_code == error_code.NONE
    reads.go_on.set()
    await owns(cluster.running[-1], SHARDS)
    assert await halted.fetch(group) == [(error_code.NONE, -1)]


@pytest.mark.row("GV-15")
@pytest.mark.row("GV-16")
@pytest.mark.row("GV-17")
@pytest.mark.row("OF-10")
@pytest.mark.row("LS-08")
async def test_each_group_of_a_batch_has_its_own_error(halted: Caller) -> None:
    group, other = group_of(SLOW), group_of(2)
    assert await halted.commit(other, 7) == error_code.NONE
    assert await halted.fetch(other, group) == [(error_code.NONE, 7), (LOADING, -2)]
    described = await halted.stub.DescribeGroups(
        coordinator_pb2.DescribeGroupsRequest(group_ids=[group, other])
    )
    assert [(entry.group_id, entry.error_code) for entry in described.groups] == [
        (group, LOADING),
        (other, 0),
    ]
    listed = await halted.stub.ListGroups(coordinator_pb2.ListGroupsRequest())
    assert (listed.error_code, [entry.group_id for entry in listed.groups]) == (LOADING, [other])
    deleted = await halted.stub.DeleteGroups(coordinator_pb2.DeleteGroupsRequest(group_ids=[group, other]))
    assert [(entry.group_id, entry.error_code) for entry in deleted.results] == [(group, LOADING), (other, 0)]


@pytest.mark.row("GV-20")
async def test_an_unforeseen_error_is_an_answer_and_hurts_nobody(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSTER_FAULT_FOLDER", str(tmp_path))
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller, group = cluster.caller(only), group_of(2)
    joined = await caller.join(group)

    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(Rebalancer, "touch", broken)
        assert (await caller.heartbeat(group, joined)).error_code == UNAVAILABLE
    await owns(only, SHARDS)
    assert (await caller.heartbeat(group, joined)).error_code == error_code.NONE


@pytest.mark.row("LS-07")
@pytest.mark.row("LS-09")
@pytest.mark.row("LS-11")
async def test_a_process_lists_the_groups_of_its_own_shards(cluster: MemoryCluster) -> None:
    first = await cluster.add("a", settle_ms=3_600_000)
    await owns(first, SHARDS)
    second = await cluster.add("b", settle_ms=3_600_000)
    assert await cluster.caller(first).commit(group_of(0), 1) == error_code.NONE
    listed = await cluster.caller(first).stub.ListGroups(coordinator_pb2.ListGroupsRequest())
    assert [group.group_id for group in listed.groups] == [group_of(0)]
    assert (
        await cluster.caller(second).stub.ListGroups(coordinator_pb2.ListGroupsRequest())
        == coordinator_pb2.ListGroupsResponse()
    )


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"nothing": True}, marks=[pytest.mark.row("LD-10"), pytest.mark.row("LD-30")]),
        pytest.param({"outcome": metadata_pb2.LOG_OUTCOME_NO_LOG}, marks=pytest.mark.row("LD-27")),
        pytest.param({"outcome": metadata_pb2.LOG_OUTCOME_TRUNCATED}, marks=pytest.mark.row("LD-30")),
    ],
    ids=["nothing", "no log", "truncated"],
)
async def test_a_log_that_cannot_be_loaded_is_not_taken_for_empty(
    halted: Caller, reads: Reads, cluster: MemoryCluster, planted: dict[str, Any]
) -> None:
    for name, value in planted.items():
        setattr(reads, name, value)
    reads.go_on.set()
    shards = cluster.running[-1].shards
    await until_equal(lambda: shards[SLOW].phase, Phase.FAILED)
    assert await halted.fetch(group_of(SLOW)) == [(UNAVAILABLE, -2)]
    assert (await halted.heartbeat(group_of(SLOW), JOINED)).error_code == UNAVAILABLE
    assert await halted.fetch(group_of(2)) == [(error_code.NONE, -1)]


@pytest.mark.row("LD-32")
async def test_a_read_that_fails_is_repeated(halted: Caller, reads: Reads, cluster: MemoryCluster) -> None:
    reads.fail_first = 2
    reads.go_on.set()
    await owns(cluster.running[-1], SHARDS)
    assert reads.fail_first == 0
    assert await halted.commit(group_of(SLOW), 1) == error_code.NONE


@pytest.mark.row("LD-28")
async def test_a_process_that_stops_does_not_wait_for_its_loads(
    halted: Caller, cluster: MemoryCluster
) -> None:
    only = cluster.running.pop()
    await asyncio.wait_for(only.abort(), 60)
    assert SLOW not in only.serving


@pytest.mark.row("UL-07")
async def test_giving_up_a_shard_that_was_never_loaded(halted: Caller, cluster: MemoryCluster) -> None:
    shard = cluster.running[-1].shards[SLOW]
    shard.unload(None)
    assert shard.phase is Phase.GONE
    shard.unload(None)
    assert shard.open_calls == 0
    assert await halted.commit(group_of(2), 1) == error_code.NONE


@pytest.mark.row("FC-08")
@pytest.mark.parametrize("vector", HASHES, ids=[str(number) for number in range(len(HASHES))])
def test_the_shard_of_a_group(vector: dict[str, Any]) -> None:
    assert java_hash(vector["group_id"]) == vector["hash"]
    for field, value in vector.items():
        if field.startswith("partition_of_"):
            assert shard_of(vector["group_id"], int(field.removeprefix("partition_of_"))) == value


@pytest.mark.row("FC-10")
@pytest.mark.parametrize(
    ("named", "good"), [([], 0), (["g"], 1), (["x"], 0), (["h", "g"], 0), (["g", "x"], 1), (["g", "h"], 2)]
)
async def test_a_client_needs_an_entry_for_what_it_asked(
    monkeypatch: pytest.MonkeyPatch, named: list[str], good: int
) -> None:
    found = [discovery_pb2.FindCoordinatorResponse.Result(group_id=group_id) for group_id in named]

    async def answer(*_: Any) -> discovery_pb2.FindCoordinatorResponse:
        return discovery_pb2.FindCoordinatorResponse(results=found)

    discovery = DiscoveryClient(("127.0.0.1:1",), cast(Any, None))
    monkeypatch.setattr(discovery, "_ask", answer)
    answers = await asyncio.gather(discovery.find("g", 0), discovery.find("h", 0), return_exceptions=True)
    assert [answer.result for answer in answers[:good] if isinstance(answer, FoundCoordinator)] == found[
        :good
    ]
    assert all(isinstance(answer, ConnectionLost) for answer in answers[good:])
