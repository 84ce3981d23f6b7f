"""A client with several discovery addresses does not stay with one whose answers lead nowhere."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import muster
import pytest
from client.client_scripted import Coordinator, ScriptedCluster
from muster._cluster.discovery import OLD_VIEW_MS
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster

GROUP = "g"


def named(where: common_pb2.Coordinator, view_age_ms: int = 0) -> discovery_pb2.FindCoordinatorResponse:
    result = discovery_pb2.FindCoordinatorResponse.Result(group_id=GROUP, coordinator=where)
    return discovery_pb2.FindCoordinatorResponse(results=[result], view_age_ms=view_age_ms)


def nobody() -> discovery_pb2.FindCoordinatorResponse:
    code = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
    result = discovery_pb2.FindCoordinatorResponse.Result(group_id=GROUP, error_code=code)
    return discovery_pb2.FindCoordinatorResponse(results=[result])


def moved(request: coordinator_pb2.OffsetFetchRequest) -> coordinator_pb2.OffsetFetchResponse:
    code = common_pb2.ERROR_CODE_NOT_COORDINATOR
    group = coordinator_pb2.OffsetFetchResponse.Group(group_id=request.groups[0].group_id, error_code=code)
    return coordinator_pb2.OffsetFetchResponse(groups=[group])


class Frozen(ScriptedCluster):
    """A discovery server whose view stands still."""

    answer: Any = None

    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        return self.answer


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Frozen, ScriptedCluster]]:
    """Two discovery servers: one that stands still, and one that knows where the coordinator is."""
    frozen, fresh = Frozen([]), ScriptedCluster([Coordinator("c-2", shard_epoch=2)])
    await frozen.start()
    await fresh.start()
    yield frozen, fresh
    await frozen.stop()
    await fresh.stop()


async def committed(frozen: ScriptedCluster, fresh: ScriptedCluster) -> None:
    async with muster.Cluster([frozen.address, fresh.address]) as client, asyncio.timeout(30):
        await client.committed(GROUP, [muster.TopicPartition("t", 0)])


async def test_a_server_that_knows_no_owner_is_not_the_only_one_asked(
    pair: tuple[Frozen, ScriptedCluster],
) -> None:
    frozen, fresh = pair
    frozen.answer = nobody()
    await committed(frozen, fresh)
    assert len(frozen.asked) == 1


async def test_a_server_that_names_a_dead_coordinator_is_not_the_only_one_asked(
    pair: tuple[Frozen, ScriptedCluster],
) -> None:
    frozen, fresh = pair
    dead = Coordinator("c-1")
    await dead.start()
    frozen.answer = named(dead.where())
    await dead.stop()
    await committed(frozen, fresh)
    assert fresh.asked


async def test_a_server_that_names_one_who_says_it_is_another_is_not_the_only_one_asked(
    pair: tuple[Frozen, ScriptedCluster],
) -> None:
    frozen, fresh = pair
    deposed = Coordinator("c-1")
    await deposed.start()
    for _ in range(100):
        deposed.script["OffsetFetch"].append(moved)
    frozen.answer = named(deposed.where())
    await committed(frozen, fresh)
    await deposed.stop()
    assert fresh.asked


async def test_a_server_with_an_old_view_is_asked_last(pair: tuple[Frozen, ScriptedCluster]) -> None:
    frozen, fresh = pair
    fresh.coordinators[0].shard_epoch = 1
    frozen.answer = named(fresh.coordinators[0].where(), view_age_ms=OLD_VIEW_MS + 1)
    async with muster.Cluster([frozen.address, fresh.address]) as client, asyncio.timeout(30):
        for _ in range(3):
            await client.link(GROUP).ask()
    assert (len(frozen.asked), len(fresh.asked)) == (1, 2)
