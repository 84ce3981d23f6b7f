"""The topic catalog through two instances."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.metadata.metadata_instances import WATCH, Instance, MetadataCluster, metadata_cluster
from kit.waiting import until
from muster_metadata.log import patrol
from muster_metadata.log.states import Repaired
from muster_metadata.nodes.reply import Status
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[1, 3], ids=["1-node", "3-nodes"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    async with metadata_cluster(tmp_path, request.param, instances=2) as running:
        yield running


async def create(
    instance: Instance, name: str, partitions: int = 3, change_id: bytes = b"", *, only_writer: bool = False
) -> metadata_pb2.ChangeTopicResponse:
    request = metadata_pb2.ChangeTopicRequest(
        create=discovery_pb2.Topic(name=name, partitions=partitions),
        change_id=change_id,
        only_writer=only_writer,
    )
    response: metadata_pb2.ChangeTopicResponse = await instance.stub.ChangeTopic(request)
    return response


async def delete(instance: Instance, name: str, change_id: bytes = b"") -> metadata_pb2.ChangeTopicResponse:
    response: metadata_pb2.ChangeTopicResponse = await instance.stub.ChangeTopic(
        metadata_pb2.ChangeTopicRequest(delete=name, change_id=change_id)
    )
    return response


async def entries(instance: Instance) -> int:
    """How many the catalog's log has."""
    described = await instance.stub.DescribeLog(metadata_pb2.DescribeLogRequest())
    catalog = max(replica.shard for replica in described.replicas)
    return max(int(replica.entries) for replica in described.replicas if replica.shard == catalog)


async def alter(instance: Instance, name: str, partitions: int) -> metadata_pb2.ChangeTopicResponse:
    topic = discovery_pb2.Topic(name=name, partitions=partitions)
    response: metadata_pb2.ChangeTopicResponse = await instance.stub.ChangeTopic(
        metadata_pb2.ChangeTopicRequest(alter=topic)
    )
    return response


async def topics(instance: Instance) -> dict[str, int]:
    call = instance.stub.Watch(WATCH)
    message = await call.read()
    call.cancel()
    return {topic.name: topic.partitions for topic in message.catalog.topics}


async def test_changes_through_two_instances_follow_each_other(cluster: MetadataCluster) -> None:
    assert (await create(cluster[0], "a")).error_code == common_pb2.ERROR_CODE_NONE
    response = await create(cluster[1], "a", 9)
    assert response.error_code == common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
    assert response.topic.partitions == 3
    created = (await create(cluster[1], "b", 5)).topic
    assert (created.name, created.partitions) == ("b", 5)
    assert (await alter(cluster[0], "b", 7)).topic.partitions == 7
    shrunk = await alter(cluster[1], "b", 6)
    assert shrunk.error_code == common_pb2.ERROR_CODE_INVALID_PARTITIONS
    deleted = await cluster[0].stub.ChangeTopic(metadata_pb2.ChangeTopicRequest(delete="a"))
    assert deleted.error_code == common_pb2.ERROR_CODE_NONE
    gone = await cluster[1].stub.ChangeTopic(metadata_pb2.ChangeTopicRequest(delete="a"))
    assert gone.error_code == common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION

    async def everywhere() -> bool:
        return [await topics(instance) for instance in cluster.instances] == [{"b": 7}, {"b": 7}]

    await until(everywhere, "both instances show the catalog")


async def test_a_change_with_an_id_is_carried_out_once_at_whatever_instance_it_is_repeated(
    cluster: MetadataCluster,
) -> None:
    first, again, removal = b"a" * 16, b"b" * 16, b"c" * 16
    created = await create(cluster[0], "t", 3, first)
    deleted = await delete(cluster[0], "t", removal)
    second = await create(cluster[1], "t", 7, again)
    assert second.error_code == common_pb2.ERROR_CODE_NONE
    for instance in cluster.instances:
        assert await delete(instance, "t", removal) == deleted
        assert await create(instance, "t", 3, first) == created
    positions = [(one.version.epoch, one.version.offset) for one in (created, deleted, second)]
    assert positions == sorted(set(positions))
    assert second.topic.incarnation == second.version.offset > created.topic.incarnation
    altered = await alter(cluster[0], "t", 9)
    assert (altered.topic.partitions, altered.topic.incarnation) == (9, second.topic.incarnation)


async def test_the_id_of_another_change_is_refused(cluster: MetadataCluster) -> None:
    await create(cluster[0], "t", 3, b"a" * 16)
    for other in (await delete(cluster[1], "t", b"a" * 16), await create(cluster[1], "u", 3, b"a" * 16)):
        assert other.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await create(cluster[0], "v", 3, b"short")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_who_does_not_write_the_catalog_says_so_and_leaves_it_to_the_writer(
    cluster: MetadataCluster,
) -> None:
    assert (await create(cluster[0], "a", only_writer=True)).not_writer
    assert (await create(cluster[0], "a")).error_code == common_pb2.ERROR_CODE_NONE
    before = await entries(cluster[0])
    for number in range(3):
        assert (await create(cluster[1], f"b-{number}", only_writer=True)).not_writer
        created = await create(cluster[0], f"b-{number}", only_writer=True)
        assert created.error_code == common_pb2.ERROR_CODE_NONE
        exists = await create(cluster[0], f"b-{number}", only_writer=True)
        assert exists.error_code == common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
    assert await entries(cluster[0]) == before + 3
    assert (await create(cluster[1], "c")).error_code == common_pb2.ERROR_CODE_NONE
    assert (await create(cluster[0], "d", only_writer=True)).not_writer


async def test_change_is_pushed_with_a_growing_version(cluster: MetadataCluster) -> None:
    call = cluster[1].stub.Watch(WATCH)
    while not (first := await call.read()).HasField("catalog"):
        pass
    await create(cluster[0], "pushed")
    while True:
        message = await call.read()
        if message.HasField("catalog") and message.catalog.topics:
            break
    before, after = first.catalog.version, message.catalog.version
    assert (after.epoch, after.offset) > (before.epoch, before.offset)
    call.cancel()


async def test_catalog_survives_a_new_instance_and_a_dead_node(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await create(cluster[0], "kept")
        await cluster.nodes[0].kill()
        assert (await create(cluster[0], "later")).error_code == common_pb2.ERROR_CODE_NONE
        late = await cluster.add_instance()

        async def shown() -> bool:
            return await topics(late) == {"kept": 3, "later": 3}

        await until(shown, "a new instance reads the catalog")


async def test_a_new_instance_shows_no_catalog_before_it_has_read_it(tmp_path: Path) -> None:
    """An empty one would tell a leader that its topics are gone."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        await create(cluster[0], "kept")
        for _ in range(5):
            call = (await cluster.add_instance()).stub.Watch(WATCH)
            while not (message := await call.read()).HasField("catalog"):
                assert message.HasField("cluster")
            assert [topic.name for topic in message.catalog.topics] == ["kept"]
            call.cancel()


async def test_without_a_majority_the_catalog_is_not_available(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, change_timeout_ms=1_000) as cluster:
        cluster.nodes[0].pause()
        cluster.nodes[1].pause()
        response = await create(cluster[0], "a")
        assert response.error_code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        cluster.nodes[0].resume()
        cluster.nodes[1].resume()

        async def created() -> bool:
            return (await create(cluster[0], "a")).error_code in (
                common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS,
            )  # fmt: skip

        await until(created, "the catalog can be changed again")


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "a\n"])
async def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(cluster[0], name)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_partition_counts_have_bounds(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        for partitions in (0, 100_001):
            response = await create(cluster[0], "t", partitions)
            assert response.error_code == common_pb2.ERROR_CODE_INVALID_PARTITIONS
        assert (await create(cluster[0], "t", 100_000)).error_code == common_pb2.ERROR_CODE_NONE


async def test_a_node_that_cannot_be_filled_brings_nobody_to_claim_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim is a record more, and takes the log from the instance that holds it."""
    monkeypatch.setattr(patrol, "_PAUSE_S", 0.1)
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        await create(cluster[0], "kept")
        before = await entries(cluster[0])
        async with cluster.client(2) as node:
            await node.config_set("maxmemory", "1mb")
            await node.flushall()
        waited = [watched.server.metadata.upkeep.repairs for watched in cluster.instances]
        await until(lambda: all(repairs[Repaired.LATER] > 100 for repairs in waited), "it is not filled")
        assert await entries(cluster[0]) == before
        assert (await create(cluster[0], "later", only_writer=True)).error_code == common_pb2.ERROR_CODE_NONE


@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "restarted"])
async def test_a_catalog_without_a_claim_on_a_majority_is_claimed_and_the_third_node_votes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wiped: bool
) -> None:
    """Nobody asks for its claim, as owners of shards do, and without one no node is repaired."""
    monkeypatch.setattr(patrol, "_PAUSE_S", 0.1)
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        await create(cluster[0], "kept")
        metadata = cluster[0].server.metadata
        catalog = metadata.shard_count
        promised = await metadata.quorum.nodes[1].prepare(catalog, 9, bytes(16), b"of one that died")
        assert promised.status is Status.OK
        if wiped:
            async with cluster.client(2) as node:
                await node.flushall()
        else:
            await cluster.nodes[2].kill()
            await cluster.nodes[2].start()
        await until(lambda: cluster.level(catalog), "all nodes vote")
        assert await topics(cluster[0]) == {"kept": 3}


async def test_a_claim_of_the_catalog_looks_at_nothing_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Claim that a node had to look at for the nonce would make the next claim slower, without bound."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        await create(cluster[0], "t", 3)
        asked: list[metadata_pb2.ClaimStep] = []
        catalog = cluster[0].server.metadata.catalog
        claim = catalog._logs.claim

        async def noted(shard: int, step: metadata_pb2.ClaimStep) -> Any:
            asked.append(step)
            return await claim(shard, step)

        monkeypatch.setattr(catalog._logs, "claim", noted)
        await catalog.hold()
        await catalog.hold()
        assert [step.above_epoch for step in asked] == [2, 3]
        assert (await create(cluster[0], "u", 3)).error_code == common_pb2.ERROR_CODE_NONE
