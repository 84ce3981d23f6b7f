"""Features of a cluster at metadata: who knows them, who is refused, and how one is enabled."""

import asyncio
import itertools
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.metadata.metadata_instances import PATIENCE_S, WATCH, Instance, fast, metadata_cluster
from kit.waiting import until
from muster_core.features import FEATURE_NAMES
from muster_metadata.cluster.leases import LeaseRow
from muster_metadata.cluster.servers import SILENT_MS, ServerRow, Servers
from muster_metadata.nodes import keys
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1.records_pb2 import Record
from muster_runtime.settings import load

pytestmark = pytest.mark.cluster

SHARDS = 2
COORDINATOR: dict[str, Any] = {
    "node_id": "c-1",
    "session": "s-1",
    "host": "127.0.0.1",
    "port": 1,
    "number": 1,
}


async def renewed(instance: Instance, **request: Any) -> metadata_pb2.LeaseResponse:
    """The answer to the first renewal of a coordinator."""
    call = instance.stub.Lease()
    try:
        await call.write(metadata_pb2.LeaseRequest(**COORDINATOR, **request))
        response: metadata_pb2.LeaseResponse = await call.read()
        return response
    finally:
        call.cancel()


async def enabled(instance: Instance) -> tuple[str, ...]:
    return tuple((await instance.stub.ListFeatures(metadata_pb2.ListFeaturesRequest())).enabled)


async def rest_of(watch: Any) -> None:
    """Reads a stream to its end."""
    async with asyncio.timeout(PATIENCE_S):
        while await watch.read() is not grpc.aio.EOF:
            """What was sent before."""


async def test_a_new_cluster_has_every_feature_and_tells_its_servers(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, instances=2, shards=SHARDS) as cluster:
        assert await enabled(cluster[1]) == FEATURE_NAMES
        catalog = [Record.FromString(entry.record) for entry in await cluster[0].read(SHARDS)]
        stored = [record for record in catalog if record.HasField("feature_enabled")]
        assert tuple(record.feature_enabled.name for record in stored) == FEATURE_NAMES
        assert all(record.critical for record in stored)
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
        assert "that this server (version 0.1.0) does not know;" in response.message
        assert FEATURE_NAMES[0] in response.message
        watcher = metadata_pb2.Server(role="discovery", name="d", version="0.1.0", features=known)
        with pytest.raises(grpc.aio.AioRpcError, match=FEATURE_NAMES[0]) as refused:
            await cluster[0].stub.Watch(metadata_pb2.WatchRequest(watcher=watcher)).read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_cluster_without_features_serves_servers_that_know_none(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, features=()) as cluster:
        assert (await renewed(cluster[0])).renewed
        watch = cluster[0].stub.Watch(metadata_pb2.WatchRequest())
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
        await rest_of(watch)


async def enable(instance: Instance, name: str) -> metadata_pb2.EnableFeatureResponse:
    response: metadata_pb2.EnableFeatureResponse = await instance.stub.EnableFeature(
        metadata_pb2.EnableFeatureRequest(name=name)
    )
    return response


async def test_a_feature_is_enabled_once_every_server_knows_it(tmp_path: Path) -> None:
    """An old discovery, an old coordinator and an old metadata instance are named, one after the other."""
    first, *_ = FEATURE_NAMES
    async with metadata_cluster(tmp_path, instances=2, features=()) as cluster:
        here, there = cluster.instances

        async def lacking() -> list[str]:
            response = await enable(here, first)
            if response.outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_NOT_AVAILABLE:
                return []  # a node was slow
            assert response.outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_SERVER_LACKS_IT, response.message
            return [f"{server.role} {server.name} {server.version}" for server in response.lacking]

        old = metadata_pb2.Server(role="discovery", name="d-1", version="0.1.0")
        watch = there.stub.Watch(metadata_pb2.WatchRequest(watcher=old))
        await watch.read()
        # Until the nodes have its row nobody lacks the feature, and the request would enable it.
        await until(lambda: _is_listed(here, "d-1"), "the old discovery is known")
        await until(lambda: _is(lacking(), ["discovery d-1 0.1.0"]), "the old discovery is named")
        watch.cancel()
        metadata_of_tomorrow = metadata_pb2.Server(
            role="metadata", name="m-9", version="0.9.0", features=["x"]
        )
        with there.server.metadata.servers.watching(metadata_of_tomorrow):
            await until(lambda: _is(lacking(), ["metadata m-9 0.9.0"]), "only the metadata instance is left")
            lease, numbers = there.stub.Lease(), itertools.count(1)
            await until(lambda: _stored(lease, numbers, version="0.1.0"), "the old coordinator has a lease")
            both = ["coordinator c-1 0.1.0", "metadata m-9 0.9.0"]
            await until(lambda: _is(lacking(), both), "the old coordinator is named")
            await until(lambda: _stored(lease, numbers, release=True), "the old coordinator has gone")

        async def done() -> bool:
            return (await enable(here, first)).outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_ENABLED

        await until(done, "nobody lacks it")
        assert await enabled(here) == (first,)

        async def refused() -> bool:
            # Before it has heard of the feature it finds no leases where they were: that is no refusal.
            return (await renewed(there)).message.endswith(f": {first}")

        async def served() -> bool:
            return (await renewed(there, features=[first])).renewed

        await until(refused, "the other instance refuses who lacks it")
        await until(served, "it serves who knows it")


async def _is(found: Awaitable[list[str]], wanted: list[str]) -> bool:
    return await found == wanted


async def _is_listed(instance: Instance, name: str) -> bool:
    response = await instance.stub.ListFeatures(metadata_pb2.ListFeaturesRequest())
    return any(server.name == name for server in response.servers)


async def _stored(lease: Any, numbers: Iterator[int], **request: Any) -> bool:
    """Whether a majority stored one more renewal in time."""
    await lease.write(metadata_pb2.LeaseRequest(**COORDINATOR | {"number": next(numbers)}, **request))
    return bool((await lease.read()).renewed)


async def test_what_metadata_does_not_know_is_not_enabled(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        response = await enable(cluster[0], "of-tomorrow")
        assert response.outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_UNKNOWN_FEATURE
        assert response.message
        assert (
            await enable(cluster[0], FEATURE_NAMES[0])
        ).outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_ENABLED


async def test_a_watch_ends_when_a_feature_is_enabled_that_the_watcher_lacks(tmp_path: Path) -> None:
    """Who came while the feature was being enabled gets no more news."""
    async with metadata_cluster(tmp_path, 1, features=()) as cluster:
        watch = cluster[0].stub.Watch(metadata_pb2.WatchRequest())
        await watch.read()
        assert await cluster[0].server.metadata.catalog.enable(FEATURE_NAMES[0], "test")
        with pytest.raises(grpc.aio.AioRpcError, match=FEATURE_NAMES[0]):
            await rest_of(watch)


async def test_metadata_of_before_features_finds_no_leases(tmp_path: Path) -> None:
    """Its renewals fail at every node on the only table that it knows; what was there has moved."""
    async with metadata_cluster(tmp_path, features=()) as cluster:
        lease = cluster[0].stub.Lease()
        await lease.write(metadata_pb2.LeaseRequest(**COORDINATOR, features=FEATURE_NAMES))
        assert (await lease.read()).renewed
        assert await cluster[0].server.metadata.catalog.enable(FEATURE_NAMES[0], "test")

        async def sealed() -> bool:
            nodes = cluster[0].server.metadata.quorum.nodes
            row = ("c-old", "s", 1, 1, LeaseRow("c-old", "s", 1, 1).to_json())
            table = (keys.LEASES_BEFORE_FEATURES, keys.NODE)
            renewals = [await node.table("renew", table, node.identity, *row) for node in nodes]
            return all(renewal.status is Status.BROKEN for renewal in renewals)

        await until(sealed, "no node takes such a renewal")
        moved = await cluster[0].server.metadata.tables.lease("c-1", 1_000)
        assert moved is not None
        assert moved.session == "s-1"
        await lease.write(metadata_pb2.LeaseRequest(**COORDINATOR | {"number": 2}, features=FEATURE_NAMES))
        assert (await lease.read()).renewed
        lease.cancel()


async def test_a_node_that_lost_its_data_is_sealed_again(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster, cluster.client(0) as client:

        async def sealed() -> bool:
            return await client.get(keys.LEASES_BEFORE_FEATURES) == keys.LEASES.encode()

        await until(sealed, "it is sealed at first")
        await client.flushall()
        await until(sealed, "it is sealed again", 30)


async def test_nobody_is_served_before_the_catalog_was_read(tmp_path: Path) -> None:
    """Who lacks a feature gets no lease from an instance that does not know yet what is enabled."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        settings = load(MetadataSettings, redis_url=cluster.nodes.url, listen="127.0.0.1:0", **fast())
        server = MetadataServer(settings)
        server.metadata._monitor._on_catalog = lambda _: None
        port = await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            await until(lambda: bool(server.metadata.view.cluster.version), "it has read everything else")
            with pytest.raises(grpc.aio.AioRpcError, match="the catalog was not read yet"):
                await asyncio.wait_for(stub.Lease().read(), PATIENCE_S)
            assert not server.metadata.ready.is_set()
        await server.stop(0)


class StandInQuorum:
    """Nodes of which now these and now those answer first."""

    nodes = ()
    majority = 2

    def __init__(self) -> None:
        self.rows: list[ServerRow] = []

    async def ask(self, *_: object) -> tuple[bool, list[NodeReply]]:
        table = [part for row in self.rows for part in (row.key.encode(), row.to_json().encode())]
        return True, [NodeReply(Status.OK, (table,))]


async def test_a_row_that_one_node_kept_makes_nobody_alive_each_time_it_is_read() -> None:
    """The node was away when the server ended, and nothing of it is on the others."""
    quorum, now_ms = StandInQuorum(), 1_000
    me = metadata_pb2.Server(role="metadata", name="m-1")
    servers = Servers(cast("Quorum", quorum), "me", me, lambda: now_ms)
    kept = ServerRow("gone", 7, "discovery", "d-1", "0.1.0", ())

    async def names() -> list[str]:
        return [row.name for row in await servers.alive() or ()]

    quorum.rows = [kept]
    assert await names() == ["d-1", "m-1"]
    now_ms += SILENT_MS
    for quorum.rows in ([], [kept], [], [kept]):
        assert await names() == ["m-1"]
