"""Features of a cluster at metadata: who knows them, who is refused, and how one is enabled."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.metadata_instances import WATCH, Instance, metadata_cluster
from kit.waiting import until
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.internal.v1 import metadata_pb2 as pb

COORDINATOR: dict[str, Any] = {
    "node_id": "c-1",
    "session": "s-1",
    "host": "127.0.0.1",
    "port": 1,
    "number": 1,
}


async def renewed(instance: Instance, **request: Any) -> pb.LeaseResponse:
    """The answer to the first renewal of a coordinator."""
    call = instance.stub.Lease()
    try:
        await call.write(pb.LeaseRequest(**COORDINATOR, **request))
        response: pb.LeaseResponse = await call.read()
        return response
    finally:
        call.cancel()


async def enabled(instance: Instance) -> tuple[str, ...]:
    return tuple((await instance.stub.ListFeatures(pb.ListFeaturesRequest())).enabled)


async def test_a_new_cluster_has_every_feature_and_tells_its_servers(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, instances=2) as cluster:
        assert await enabled(cluster[1]) == FEATURE_NAMES
        response = await renewed(cluster[0], features=FEATURE_NAMES)
        assert response.renewed, response.message
        assert tuple(response.features) == FEATURE_NAMES
        watch = cluster[1].stub.Watch(WATCH)
        assert tuple((await watch.read()).catalog.features) == FEATURE_NAMES
        watch.cancel()


@pytest.mark.parametrize("known", [(), FEATURE_NAMES[1:]], ids=["none", "not all"])
async def test_a_server_that_lacks_an_enabled_feature_is_refused(
    tmp_path: Path, known: tuple[str, ...]
) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        response = await renewed(cluster[0], features=known, version="0.1.0")
        assert not response.renewed
        assert f"(version 0.1.0) does not know {FEATURE_NAMES[0]}" in response.message
        watcher = pb.Server(role="discovery", name="d", version="0.1.0", features=known)
        with pytest.raises(grpc.aio.AioRpcError, match=FEATURE_NAMES[0]) as refused:
            await cluster[0].stub.Watch(pb.WatchRequest(watcher=watcher)).read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_cluster_without_features_serves_servers_that_know_none(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, features=()) as cluster:
        assert (await renewed(cluster[0])).renewed
        watch = cluster[0].stub.Watch(pb.WatchRequest())
        assert (await watch.read()).HasField("cluster")
        watch.cancel()


async def test_metadata_that_lacks_an_enabled_feature_serves_nobody(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, instances=2) as cluster:
        watch = cluster[1].stub.Watch(WATCH)
        await watch.read()
        assert not await cluster[0].server.metadata.catalog.enable("of-tomorrow", "9.0.0")
        for instance in cluster.instances:
            health: Any = health_pb2_grpc.HealthStub(instance.channel)

            async def not_serving(health: Any = health) -> bool:
                state = (await health.Check(health_pb2.HealthCheckRequest())).status
                return bool(state == health_pb2.HealthCheckResponse.NOT_SERVING)

            await until(not_serving, "it noticed that it is too old")
            for call in (instance.stub.Watch(WATCH), instance.stub.Log(), instance.stub.Lease()):
                with pytest.raises(grpc.aio.AioRpcError, match="of-tomorrow") as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        while await watch.read() is not grpc.aio.EOF:
            """What was sent before."""
