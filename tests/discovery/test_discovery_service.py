import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from abuse.http2 import Connection
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.metadata.metadata_stand_in import DEAD, DRAINING, LIVE, MetadataStandIn, catalog, cluster
from kit.waiting import until, until_equal
from muster_core.features import Feature
from muster_core.sharding import shard_of
from muster_discovery import _topics as topics_module
from muster_discovery.role import Discovery
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.rpc.quotas import QuotaSettings
from muster_runtime.rpc.quotas.party import BURST_S, CREATION_BURST_S
from muster_runtime.rpc.server import ServerSettings
from muster_runtime.rpc.unread import TimedWrites

pytestmark = pytest.mark.cluster

NONE = common_pb2.ERROR_CODE_NONE
NOT_AVAILABLE = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
EXISTS = common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
UNKNOWN_TOPIC = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION

GROUP = "crawlers"
SHARD = shard_of(GROUP, 4)


class Setup:
    """Two metadata stand-ins, one discovery, a client."""

    def __init__(self, first: MetadataStandIn, second: MetadataStandIn, discovery: Discovery) -> None:
        self.first = first
        self.second = second
        self.discovery = discovery
        self.channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{discovery.port}")
        self.stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(self.channel)

    def push(
        self, new_cluster: discovery_pb2.Cluster, topics: metadata_pb2.TopicCatalog | None = None
    ) -> None:
        """Both say the same."""
        self.first.push(new_cluster, topics)
        self.second.push(new_cluster, topics)

    @property
    def watched(self) -> MetadataStandIn:
        return self.first if self.first.watchers else self.second

    async def find(
        self, group_id: str = GROUP, seen: int = 0
    ) -> discovery_pb2.FindCoordinatorResponse.Result:
        request = discovery_pb2.FindCoordinatorRequest(group_ids=[group_id], seen_epochs=[seen])
        response: discovery_pb2.FindCoordinatorResponse = await self.stub.FindCoordinator(request, timeout=60)
        return response.results[0]

    async def found(self, epoch: int) -> discovery_pb2.FindCoordinatorResponse.Result:
        """Asks until the owner of this epoch is named."""

        async def found() -> discovery_pb2.FindCoordinatorResponse.Result | None:
            result = await self.find()
            return result if result.coordinator.shard_epoch == epoch else None

        return await until(found, f"the owner of epoch {epoch} is named")

    async def refused(self, method: str, request: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(self.stub, method)(request, timeout=60)
        return caught.value

    async def topics(self, *names: str) -> dict[str, int]:
        response = await self.stub.ListTopics(discovery_pb2.ListTopicsRequest(names=names), timeout=60)
        return {topic.name: topic.partitions for topic in response.topics}

    async def create(self, name: str, partitions: int) -> discovery_pb2.CreateTopicResponse:
        topic = discovery_pb2.Topic(name=name, partitions=partitions)
        response: discovery_pb2.CreateTopicResponse = await self.stub.CreateTopic(
            discovery_pb2.CreateTopicRequest(topic=topic), timeout=60
        )
        return response


@asynccontextmanager
async def started(max_watchers: int, server: ServerSettings | None = None) -> AsyncIterator[Setup]:
    first, second = await MetadataStandIn().start(), await MetadataStandIn().start()
    discovery = Discovery(
        DiscoverySettings(
            listen=Address("127.0.0.1", 0),
            metadata=(Address("127.0.0.1", first.port), Address("127.0.0.1", second.port)),
            max_watchers=max_watchers,
            stop_grace_ms=60_000,
        ),
        server=server,
    )
    await discovery.start()
    parts = Setup(first, second, discovery)
    yield parts
    async with asyncio.timeout(30):
        await discovery.stop()
    await parts.channel.close()
    await first.stop()
    await second.stop()


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async with started(max_watchers=2) as parts:
        yield parts


async def ready(parts: Setup) -> None:
    async with asyncio.timeout(60):
        await parts.discovery.ready()


def violations(error: grpc.aio.AioRpcError) -> list[tuple[str, str]]:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad)
    return [(v.field, v.description) for v in bad.field_violations]


@pytest.mark.row("FC-01")
async def test_names_the_owner_by_hash(setup: Setup) -> None:
    setup.push(cluster({shard: (shard + 1, f"n{shard}") for shard in range(4)}))
    await ready(setup)
    groups = [f"group-{number}" for number in range(1_000)]
    response = await setup.stub.FindCoordinator(
        discovery_pb2.FindCoordinatorRequest(group_ids=groups), timeout=60
    )
    assert [result.group_id for result in response.results] == groups
    for result in response.results:
        shard = shard_of(result.group_id, 4)
        assert result.error_code == NONE
        assert result.error_message == ""
        assert result.coordinator == common_pb2.Coordinator(
            node_id=f"n{shard}", host=f"n{shard}.test", port=7410, shard=shard, shard_epoch=shard + 1
        )


@pytest.mark.row("FC-09")
async def test_is_not_serving_before_the_first_view(setup: Setup) -> None:
    health: Any = health_pb2_grpc.HealthStub(setup.channel)
    check = health_pb2.HealthCheckRequest()
    assert (await health.Check(check, timeout=60)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    result = await setup.find()
    assert result.error_code == NOT_AVAILABLE
    assert "has no view from metadata" in result.error_message
    for method, request in (
        ("DescribeCluster", discovery_pb2.DescribeClusterRequest()),
        ("ListTopics", discovery_pb2.ListTopicsRequest()),
    ):
        error = await setup.refused(method, request)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    setup.push(cluster({SHARD: (1, "a")}))
    await ready(setup)
    assert (await health.Check(check, timeout=60)).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.row("FC-06")
@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (cluster({}), f"shard {SHARD} has no owner"),
        (cluster({SHARD: (3, "")}), f"shard {SHARD} has no owner"),
        (cluster({SHARD: (3, "a")}, {"a": DEAD}), f"the owner of shard {SHARD} is not alive"),
        (cluster({SHARD: (3, "a")}, {}), f"the owner of shard {SHARD} is not alive"),
    ],
)
async def test_says_why_nobody_can_be_named(setup: Setup, view: discovery_pb2.Cluster, reason: str) -> None:
    setup.push(view)
    await ready(setup)
    result = await setup.find()
    assert result.error_code == NOT_AVAILABLE
    assert reason in result.error_message
    assert result.coordinator == common_pb2.Coordinator(shard=SHARD)


@pytest.mark.parametrize("state", [LIVE, DRAINING])
async def test_a_draining_owner_is_still_the_owner(setup: Setup, state: Any) -> None:
    setup.push(cluster({SHARD: (3, "a")}, {"a": state}))
    await ready(setup)
    assert (await setup.find()).coordinator.node_id == "a"


async def test_an_older_epoch_than_the_client_saw_is_not_named(setup: Setup) -> None:
    setup.push(cluster({SHARD: (3, "a")}))
    await ready(setup)
    result = await setup.find(seen=4)
    assert result.error_code == NOT_AVAILABLE
    assert "knows epoch 3" in result.error_message
    assert (await setup.find(seen=3)).error_code == NONE


async def test_never_names_an_owner_of_a_lower_epoch_than_before(setup: Setup) -> None:
    """Rule E6, over the change to an instance of metadata that knows less."""
    setup.first.push(cluster({SHARD: (5, "new")}, {"new": LIVE, "old": LIVE}))
    setup.second.push(cluster({SHARD: (5, "new")}, {"new": LIVE, "old": LIVE}))
    await setup.found(5)
    other = setup.second if setup.watched is setup.first else setup.first
    other.push(cluster({SHARD: (4, "old")}, {"new": LIVE, "old": LIVE}))
    await setup.watched.stop()
    await until_equal(lambda: other.watchers, 1)
    for _ in range(50):
        result = await setup.find()
        assert (result.coordinator.shard_epoch, result.coordinator.node_id) == (5, "new")
    other.push(cluster({SHARD: (6, "newer")}))
    await setup.found(6)


async def test_bad_keys_are_refused(setup: Setup) -> None:
    setup.push(cluster(dict.fromkeys(range(4), (1, "a"))))
    await ready(setup)
    find = discovery_pb2.FindCoordinatorRequest
    limit = [("group_ids", "must have 1 to 1,000 entries, has 0")]
    assert violations(await setup.refused("FindCoordinator", find())) == limit
    too_many = find(group_ids=["x"] * 1_001)
    assert "1 to 1,000" in violations(await setup.refused("FindCoordinator", too_many))[0][1]
    too_long = find(group_ids=["fine", "ü" * 128])
    assert violations(await setup.refused("FindCoordinator", too_long)) == [
        ("group_ids[1]", "must be at most 255 bytes long")
    ]
    for unfit in ("a\x1b[2Jb", "a\nb", "a\u202eb", "a\u200bb"):
        refused = violations(await setup.refused("FindCoordinator", find(group_ids=["fine", unfit])))
        assert [field for field, _ in refused] == ["group_ids[1]"]
        assert "control characters" in refused[0][1]
    assert violations(await setup.refused("FindCoordinator", find(group_ids=["x"], seen_epochs=[1, 2])))
    assert (await setup.find("ü" * 127)).error_code == NONE
    empty = await setup.find("")
    assert empty.error_code == common_pb2.ERROR_CODE_INVALID_GROUP_ID
    assert empty.error_message


async def test_describes_the_cluster(setup: Setup) -> None:
    setup.push(cluster({0: (3, "a")}))
    await ready(setup)
    response = await setup.stub.DescribeCluster(discovery_pb2.DescribeClusterRequest(), timeout=60)
    assert response.cluster.shards[0].shard_epoch == 3
    assert response.cluster.shard_count == 4


async def test_watchers_are_told_of_changes_and_bounded(setup: Setup) -> None:
    watches = [setup.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60) for _ in range(2)]
    setup.push(cluster({0: (1, "a")}))
    assert [(await watch.read()).cluster.shards[0].node_id for watch in watches] == ["a", "a"]
    third = setup.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await third.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    setup.push(cluster({0: (2, "b")}))
    versions = [(await watch.read()).cluster.version for watch in watches]
    assert versions == [2, 2]
    watches[0].cancel()
    async with asyncio.timeout(60):
        while True:
            fourth = setup.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60)
            try:
                assert (await fourth.read()).cluster.shards[0].node_id == "b"
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)


async def test_a_change_is_encoded_once_and_watchers_are_told_of_it_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand watchers of a cluster of 4,096 shards held all others for a second."""
    watchers, ticks = 20, 0
    told: list[tuple[int, bytes]] = []
    real = TimedWrites.write

    async def write(writes: TimedWrites, message: bytes, context: Any) -> None:
        told.append((ticks, message))
        time.sleep(0.003)  # noqa: ASYNC251  # each write takes the loop
        await real(writes, message, context)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async with started(max_watchers=watchers) as parts:
        parts.push(cluster({0: (1, "a")}))
        watches = [
            parts.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60) for _ in range(watchers)
        ]
        assert {(await watch.read()).cluster.version for watch in watches} == {1}
        monkeypatch.setattr(TimedWrites, "write", write)
        ticking = asyncio.create_task(tick())
        parts.push(cluster({0: (2, "b")}))
        assert {(await watch.read()).cluster.shards[0].node_id for watch in watches} == {"b"}
        ticking.cancel()
    assert len(told) == watchers
    assert len({id(message) for _, message in told}) == 1
    assert max(Counter(at for at, _ in told).values()) <= 2


async def test_a_watcher_that_does_not_read_loses_its_connection() -> None:
    async with started(max_watchers=1, server=ServerSettings(read_timeout_ms=300)) as parts:
        parts.push(cluster({0: (1, "a")}))
        await ready(parts)
        deaf = await asyncio.to_thread(Connection, f"127.0.0.1:{parts.discovery.port}", 0)

        def ended() -> bool:
            deaf.poll(0.05)
            return deaf.dead

        deaf.poll(1)  # the server takes the window in with its settings
        deaf.open("/muster.v1.CoordinatorDiscoveryService/WatchCluster", b"")
        await until(ended, "the connection is cut")
        deaf.close()

        async def watched() -> bool:
            watch = parts.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60)
            try:
                return bool((await watch.read()).cluster.version)
            except grpc.aio.AioRpcError:
                return False

        await until(watched, "its place is free")


async def test_the_list_of_all_topics_is_put_together_once(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand take five milliseconds: who asked two hundred times a second had discovery to himself."""
    made: list[object] = []
    real = topics_module._listed

    def listed(*given: Any) -> discovery_pb2.ListTopicsResponse:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(topics_module, "_listed", listed)
    setup.push(cluster({0: (1, "a")}), catalog({"t": 1, "u": 2}, 1))
    await ready(setup)
    assert [await setup.topics() for _ in range(3)] == [{"t": 1, "u": 2}] * 3
    assert len(made) == 1
    setup.push(cluster({0: (1, "a")}), catalog({"t": 1}, 2))
    await until_equal(setup.topics, {"t": 1})
    assert len(made) == 2


async def test_stop_ends_watchers_before_the_grace_is_over(setup: Setup) -> None:
    setup.push(cluster({0: (1, "a")}))
    watch = setup.stub.WatchCluster(discovery_pb2.WatchClusterRequest(), timeout=60)
    await watch.read()
    async with asyncio.timeout(60):
        await setup.discovery.stop()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "is stopping" in str(caught.value.details())


def created(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
    return metadata_pb2.ChangeTopicResponse(
        topic=request.create, version=common_pb2.Position(epoch=1, offset=7)
    )


def exists(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
    stored = discovery_pb2.Topic(name=request.create.name, partitions=12)
    return metadata_pb2.ChangeTopicResponse(error_code=EXISTS, topic=stored, error_message="it exists")


async def with_topics(setup: Setup, topics: dict[str, int], offset: int) -> None:
    setup.push(cluster({0: (1, "a")}), catalog(topics, offset))
    await ready(setup)


async def test_a_read_waits_for_what_was_acknowledged_here_and_gives_one_version(setup: Setup) -> None:
    await with_topics(setup, {"old": 1}, 5)
    setup.first.on_change = setup.second.on_change = created
    answer = await setup.create("sites", 12)
    assert (answer.error_code, answer.catalog_version) == (NONE, 7)
    reading = asyncio.create_task(first_read(setup))
    setup.push(cluster({0: (2, "a")}), catalog({"old": 1, "other": 2}, 6))
    await until_epoch(setup, 2)
    setup.push(cluster({0: (3, "a")}), catalog({"old": 1, "other": 2, "sites": 12}, 7))
    response = await reading
    assert {topic.name for topic in response.topics} == {"old", "other", "sites"}
    assert response.catalog_version == 7
    assert await setup.topics("sites", "absent") == {"sites": 12}


async def test_a_read_is_refused_where_what_was_acknowledged_here_is_not_heard_of(setup: Setup) -> None:
    await with_topics(setup, {"old": 1}, 6)
    setup.first.on_change = setup.second.on_change = created
    await setup.create("sites", 12)
    error = await setup.refused("ListTopics", discovery_pb2.ListTopicsRequest())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    setup.push(cluster({0: (2, "a")}), catalog({"sites": 12}, 7))
    await until_epoch(setup, 2)
    assert await setup.topics() == {"sites": 12}


async def first_read(setup: Setup) -> discovery_pb2.ListTopicsResponse:
    """Reads until it is answered."""
    while True:
        try:
            response: discovery_pb2.ListTopicsResponse = await setup.stub.ListTopics(
                discovery_pb2.ListTopicsRequest(), timeout=60
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        else:
            return response


async def until_epoch(setup: Setup, epoch: int) -> None:
    async def told() -> int:
        request = discovery_pb2.DescribeClusterRequest()
        response: discovery_pb2.DescribeClusterResponse = await setup.stub.DescribeCluster(
            request, timeout=60
        )
        return response.cluster.shards[0].shard_epoch

    await until_equal(told, epoch, "the epoch of shard 0")


async def test_a_change_whose_place_is_not_told_is_in_any_later_catalog(setup: Setup) -> None:
    """As instances of an older version answer."""
    await with_topics(setup, {"old": 1}, 6)

    def told_nothing(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        setup.push(cluster({0: (1, "a")}), catalog({"old": 1, "sites": 12}, 7))
        return metadata_pb2.ChangeTopicResponse(topic=request.create)

    setup.first.on_change = setup.second.on_change = told_nothing
    await setup.create("sites", 12)
    assert await setup.topics() == {"old": 1, "sites": 12}


async def test_alters_and_deletes(setup: Setup) -> None:
    await with_topics(setup, {"sites": 1}, 6)

    def change(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        removed = request.HasField("delete")
        offset = 8 if removed else 7
        setup.push(cluster({0: (1, "a")}), catalog({} if removed else {"sites": 5}, offset))
        place = common_pb2.Position(epoch=1, offset=offset)
        return metadata_pb2.ChangeTopicResponse(topic=None if removed else request.alter, version=place)

    setup.first.on_change = setup.second.on_change = change
    topic = discovery_pb2.Topic(name="sites", partitions=5)
    response = await setup.stub.AlterTopic(discovery_pb2.AlterTopicRequest(topic=topic), timeout=60)
    assert (response.error_code, response.topic, response.catalog_version) == (NONE, topic, 7)
    assert await setup.topics() == {"sites": 5}
    response = await setup.stub.DeleteTopic(discovery_pb2.DeleteTopicRequest(name="sites"), timeout=60)
    assert (response.error_code, response.catalog_version) == (NONE, 8)
    assert await setup.topics() == {}


async def test_outcomes_of_metadata_are_passed_on(setup: Setup) -> None:
    await with_topics(setup, {}, 1)
    setup.first.on_change = setup.second.on_change = exists
    response = await setup.create("sites", 12)
    assert (response.error_code, response.topic.partitions, response.error_message) == (
        EXISTS,
        12,
        "it exists",
    )
    assert len(setup.first.changes) + len(setup.second.changes) == 1


async def test_a_change_goes_to_the_next_instance_when_one_fails(setup: Setup) -> None:
    await with_topics(setup, {}, 1)
    other = setup.second if setup.watched is setup.first else setup.first
    other.on_change = created
    assert (await setup.create("sites", 12)).error_code == NONE
    assert len(setup.watched.changes) == 1


async def test_every_attempt_at_a_change_has_its_id(setup: Setup) -> None:
    await with_topics(setup, {}, 1)
    other = setup.second if setup.watched is setup.first else setup.first
    other.on_change = exists
    assert (await setup.create("sites", 12)).error_code == EXISTS
    (failed,), (answered,) = setup.watched.changes, other.changes
    assert failed.change_id == answered.change_id != b""
    await setup.create("sites", 12)
    assert other.changes[-1].change_id != answered.change_id


async def test_the_caller_s_id_of_a_change_is_that_of_all_its_attempts(setup: Setup) -> None:
    await with_topics(setup, {}, 1)
    setup.first.on_change = setup.second.on_change = exists
    for name in ("mine", "mine", "other"):
        request = discovery_pb2.DeleteTopicRequest(name="sites", request_id=name)
        await setup.stub.DeleteTopic(request, timeout=60)
    first, again, other = [change.change_id for change in setup.first.changes + setup.second.changes]
    assert first == again != other
    error = await setup.refused(
        "DeleteTopic", discovery_pb2.DeleteTopicRequest(name="a", request_id="x" * 256)
    )
    assert violations(error)[0][0] == "request_id"


async def test_the_instance_that_writes_is_found_and_asked_first_from_then_on(setup: Setup) -> None:
    def does_not_write(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        assert request.only_writer
        return metadata_pb2.ChangeTopicResponse(error_code=NOT_AVAILABLE, not_writer=True)

    await with_topics(setup, {}, 1)
    watched = setup.watched
    other = setup.second if watched is setup.first else setup.first
    watched.on_change, other.on_change = does_not_write, exists
    for _ in range(3):
        assert (await setup.create("sites", 12)).error_code == EXISTS
    assert (len(watched.changes), len(other.changes)) == (1, 3)


async def test_where_nobody_writes_one_instance_is_told_to(setup: Setup) -> None:
    def writes_if_told(request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        if request.only_writer:
            return metadata_pb2.ChangeTopicResponse(error_code=NOT_AVAILABLE, not_writer=True)
        return exists(request)

    await with_topics(setup, {}, 1)
    setup.first.on_change = setup.second.on_change = writes_if_told
    assert (await setup.create("sites", 12)).error_code == EXISTS
    told = [change.only_writer for change in setup.first.changes + setup.second.changes]
    assert sorted(told) == [False, True, True]


async def test_a_change_whose_instance_dies_before_it_is_settled_goes_to_the_next_one(setup: Setup) -> None:
    """The dead one is not asked again and again for as long as the caller waits."""
    await with_topics(setup, {}, 1)
    watched = setup.watched
    other = setup.second if watched is setup.first else setup.first

    def waits_and_dies(_: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        watched.on_change = None
        return metadata_pb2.ChangeTopicResponse(error_code=NOT_AVAILABLE, pending=True)

    watched.on_change, other.on_change = waits_and_dies, exists
    assert (await setup.create("sites", 12)).error_code == EXISTS
    assert len(watched.changes) == 2


async def test_a_change_is_retriable_when_nobody_answers(setup: Setup) -> None:
    await with_topics(setup, {}, 1)
    response = await setup.create("sites", 12)
    assert response.error_code == NOT_AVAILABLE
    assert "no metadata instance answers" in response.error_message
    await setup.first.stop()
    await setup.second.stop()
    response = await setup.create("sites", 12)
    assert response.error_code == NOT_AVAILABLE
    assert await setup.topics() == {}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "a\n", "x" * 250])
async def test_bad_names_are_refused(setup: Setup, name: str) -> None:
    await with_topics(setup, {}, 1)
    topic = discovery_pb2.Topic(name=name, partitions=1)
    for method, request, field in (
        ("CreateTopic", discovery_pb2.CreateTopicRequest(topic=topic), "topic.name"),
        ("AlterTopic", discovery_pb2.AlterTopicRequest(topic=topic), "topic.name"),
        ("DeleteTopic", discovery_pb2.DeleteTopicRequest(name=name), "name"),
        ("ListTopics", discovery_pb2.ListTopicsRequest(names=[name]), "names[0]"),
    ):
        [(where, what)] = violations(await setup.refused(method, request))
        assert where == field
        assert "1 to 249 letters" in what
    assert not setup.first.changes + setup.second.changes


@pytest.mark.parametrize("partitions", [0, 100_001])
async def test_bad_numbers_of_partitions_are_refused(setup: Setup, partitions: int) -> None:
    topic = discovery_pb2.Topic(name="x" * 249, partitions=partitions)
    for method, request in (
        ("CreateTopic", discovery_pb2.CreateTopicRequest(topic=topic)),
        ("AlterTopic", discovery_pb2.AlterTopicRequest(topic=topic)),
    ):
        assert violations(await setup.refused(method, request)) == [
            ("topic.partitions", "must be from 1 to 100,000")
        ]


async def test_a_request_without_a_topic_is_refused(setup: Setup) -> None:
    found = violations(await setup.refused("CreateTopic", discovery_pb2.CreateTopicRequest()))
    assert [field for field, _ in found] == ["topic.name", "topic.partitions"]


async def test_too_many_names_are_refused(setup: Setup) -> None:
    request = discovery_pb2.ListTopicsRequest(names=["t"] * 1_001)
    assert violations(await setup.refused("ListTopics", request)) == [
        ("names", "must have at most 1,000 entries")
    ]


async def test_garbage_leaves_the_process_alive(setup: Setup) -> None:
    setup.push(cluster({SHARD: (1, "a")}))
    await ready(setup)
    for method in ("FindCoordinator", "CreateTopic", "ListTopics"):
        call = setup.channel.unary_unary(f"/muster.v1.CoordinatorDiscoveryService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff", timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await setup.find()).error_code == NONE


async def test_two_instances_serve_side_by_side_and_keep_their_last_view(setup: Setup) -> None:
    setup.push(cluster({SHARD: (1, "a")}))
    await ready(setup)
    other = Discovery(
        DiscoverySettings(
            listen=Address("127.0.0.1", 0),
            metadata=(Address("127.0.0.1", setup.first.port),),
            advertise=Address("discovery.example", 7400),
        )
    )
    try:
        assert await other.start() != setup.discovery.port
        assert str(other.address) == "discovery.example:7400"
        assert setup.discovery.address == Address("127.0.0.1", setup.discovery.port)
        await setup.first.stop()
        await setup.second.stop()
        assert (await setup.find()).coordinator.node_id == "a"
    finally:
        await other.stop()


async def test_zones_wait_for_their_feature_since_older_metadata_drops_them(setup: Setup) -> None:
    setup.push(cluster({SHARD: (1, "a")}), catalog({}, 1))
    await setup.found(1)
    topic = discovery_pb2.Topic(name="t", partitions=3)
    topic.zones.zones.add(name="eu", partitions=[0])
    for method, request in (
        ("CreateTopic", discovery_pb2.CreateTopicRequest(topic=topic)),
        ("AlterTopic", discovery_pb2.AlterTopicRequest(topic=topic)),
    ):
        error = await setup.refused(method, request)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "topic.zones: needs the feature partition-zones" in str(error.details())


async def test_names_wait_for_their_feature_since_older_metadata_drops_them(setup: Setup) -> None:
    setup.push(cluster({SHARD: (1, "a")}), catalog({}, 1))
    await setup.found(1)
    topic = discovery_pb2.Topic(name="t", partitions=1)
    topic.names.partitions.add(name="acme")
    for method, request in (
        ("CreateTopic", discovery_pb2.CreateTopicRequest(topic=topic)),
        ("AlterPartitions", discovery_pb2.AlterPartitionsRequest(topic="t", remove=["acme"])),
    ):
        error = await setup.refused(method, request)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "needs the feature partition-names" in str(error.details())


async def asked_until_refused(ask: Callable[[], Awaitable[Any]], most: int) -> tuple[int, str]:
    """How many calls of at most so many were answered before a quota refused one, and what it said."""
    for answered in range(most):
        try:
            await ask()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return answered, error.details() or ""
    raise AssertionError("none was refused")


async def test_a_change_costs_what_it_names(setup: Setup) -> None:
    topics = catalog({"sites": 1}, 6)
    topics.features.append(Feature.PARTITION_NAMES)
    setup.push(cluster({0: (1, "a")}), topics)
    await ready(setup)

    def change(_: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        return metadata_pb2.ChangeTopicResponse(error_code=common_pb2.ERROR_CODE_INVALID_REQUEST)

    setup.first.on_change = setup.second.on_change = change
    names = common_pb2.PartitionNames(partitions=[common_pb2.PartitionNames.Partition(name="n")] * 50_000)
    topic = discovery_pb2.Topic(name="t", partitions=50_000, names=names)
    request = discovery_pb2.CreateTopicRequest(topic=topic)
    limit = QuotaSettings().topic_changes_per_s * CREATION_BURST_S
    made, _ = await asked_until_refused(lambda: setup.stub.CreateTopic(request, timeout=60), limit)
    assert limit // 51 <= made < limit // 10


async def test_who_finds_many_groups_at_a_time_is_refused(setup: Setup) -> None:
    many = discovery_pb2.FindCoordinatorRequest(group_ids=[f"g{number}" for number in range(1_000)])
    most = QuotaSettings().connection_partitions_per_s * BURST_S // 1_000
    found, text = await asked_until_refused(
        lambda: setup.stub.FindCoordinator(many, timeout=60),
        20 * most,  # the quota grows meanwhile
    )
    assert found >= most
    assert "PARTITIONS_PER_S" in text
    await setup.stub.FindCoordinator(discovery_pb2.FindCoordinatorRequest(group_ids=["g"]), timeout=60)


async def test_who_changes_many_topics_is_refused(setup: Setup) -> None:
    await with_topics(setup, {"sites": 1}, 6)
    changed = 0

    def change(_: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        nonlocal changed
        changed += 1
        return metadata_pb2.ChangeTopicResponse(error_code=common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)

    setup.first.on_change = setup.second.on_change = change
    limit = QuotaSettings().topic_changes_per_s * CREATION_BURST_S
    for _ in range(3):
        await setup.create("sites", 1)  # it is there, which costs nothing
    request = discovery_pb2.DeleteTopicRequest(name="gone")
    statuses = Counter[str]()

    async def delete() -> None:
        try:
            await setup.stub.DeleteTopic(request, timeout=60)
            statuses["OK"] += 1
        except grpc.aio.AioRpcError as error:
            statuses[error.code().name] += 1

    for _ in range(10 + 3 * limit // 100):  # the quota grows meanwhile
        await asyncio.gather(*(delete() for _ in range(100)))
        if statuses["RESOURCE_EXHAUSTED"]:
            break
    assert statuses["RESOURCE_EXHAUSTED"]
    assert statuses["OK"] == changed - 3 >= limit
    assert await setup.topics() == {"sites": 1}
    assert (await setup.create("sites", 1)).error_code, "metadata was asked"
