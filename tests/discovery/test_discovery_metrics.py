from collections.abc import Callable

import grpc
import pytest
from kit.metadata.metadata_stand_in import DEAD, LIVE, MetadataStandIn, catalog, cluster
from kit.scrape import Scrape, scrape
from kit.waiting import until
from muster_discovery.role import Discovery
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.telemetry import TelemetrySettings
from muster_runtime.telemetry.process_telemetry import ProcessTelemetry

pytestmark = pytest.mark.cluster


async def tells(port: int, holds: Callable[[Scrape], bool]) -> Scrape:
    async def read() -> Scrape | None:
        told = await scrape(port)
        return told if holds(told) else None

    return await until(read, "the numbers")


async def test_view_watchers_and_shards_that_nobody_owns_are_told() -> None:
    listen = Address("127.0.0.1", 0)
    telemetry = ProcessTelemetry(
        TelemetrySettings(prometheus_listen=listen, collect_timeout_ms=20_000), ["discovery"], "1"
    )
    port = await telemetry.start()
    metadata = MetadataStandIn()
    await metadata.start()
    metadata.push(cluster({0: (1, "a"), 1: (1, "b")}), catalog({"t": 3}, 1))
    discovery = Discovery(
        DiscoverySettings(listen=listen, metadata=(Address("127.0.0.1", metadata.port),)), telemetry=telemetry
    )
    await discovery.start()
    await discovery.ready()
    shards = 4
    async with grpc.aio.insecure_channel(f"127.0.0.1:{discovery.port}") as channel:
        stub: discovery_pb2_grpc.CoordinatorDiscoveryServiceAsyncStub = (
            discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        )
        await stub.FindCoordinator(discovery_pb2.FindCoordinatorRequest(group_ids=["g"]))
        watch = stub.WatchCluster(discovery_pb2.WatchClusterRequest())
        await watch.read()
        told = await scrape(port)
        assert told.value("muster_watchers") == 1
        assert told.value("muster_topics") == 1
        assert told.value("muster_coordinators", state="live") == 2
        assert told.value("muster_shards_unowned", role="discovery") == shards - 2
        method = "CoordinatorDiscoveryService/FindCoordinator"
        assert told.value("muster_rpcs_total", method=method, status="OK") == 1
        assert told.value("muster_view_age_seconds") == 0

        metadata.push(cluster({0: (1, "a"), 1: (1, "b")}, {"a": LIVE, "b": DEAD}))
        told = await tells(port, lambda told: told.value("muster_shards_unowned") == shards - 1)
        before = told.value("muster_shard_unowned_seconds_total")
        told = await tells(port, lambda told: told.value("muster_shard_unowned_seconds_total") > before + 0.1)
        metadata.push(cluster(dict.fromkeys(range(shards), (2, "a")), {"a": LIVE, "b": DEAD}))
        told = await tells(port, lambda told: told.value("muster_shards_unowned") == 0)
        settled = told.value("muster_shard_unowned_seconds_total")
        assert (await scrape(port)).value("muster_shard_unowned_seconds_total") == settled

        watch.cancel()
        await metadata.stop()
        await tells(port, lambda told: told.value("muster_view_age_seconds") > 0)
    await discovery.stop()
    await telemetry.stop()
