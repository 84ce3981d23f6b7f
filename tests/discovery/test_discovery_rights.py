"""What discovery answers callers who may do some things, over real connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.callers_by_header import HEADER, NamedCallers
from kit.metadata.metadata_stand_in import MetadataStandIn, catalog, cluster
from kit.waiting import until
from muster_discovery.role import Discovery
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.verbs import Kind
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

NO_GROUP = common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED
NO_TOPIC = common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED
RULES = """
[[rule]]
who = ["worker"]
verbs = ["join"]
groups = ["mine"]

[[rule]]
who = ["worker"]
verbs = ["describe"]
topics = ["t*"]

[[rule]]
who = ["owner"]
verbs = ["create", "alter", "delete"]
topics = ["t*"]

[[rule]]
who = ["watcher"]
verbs = ["describe"]
cluster = true
"""
TOPICS = {"t1": 1, "t2": 2, "u": 3}


class Asked:
    """A discovery with rules, its metadata, and calls in somebody's name."""

    def __init__(self, metadata: MetadataStandIn, discovery: Discovery, channel: grpc.aio.Channel) -> None:
        self.metadata = metadata
        self.discovery = discovery
        self._stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)

    def call(self, who: str, method: str, request: Any, timeout_s: float = 60) -> Any:
        return getattr(self._stub, method)(request, timeout=timeout_s, metadata=((HEADER, who),))


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    metadata = await MetadataStandIn().start()
    settings = DiscoverySettings(
        listen=Address("127.0.0.1", 0), metadata=(Address("127.0.0.1", metadata.port),)
    )
    discovery = Discovery(settings, trust=NamedCallers.with_rules(file))
    await discovery.start()
    metadata.push(cluster(dict.fromkeys(range(4), (1, "a"))), catalog(TOPICS, 1))
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{discovery.port}")
    try:
        async with asyncio.timeout(60):
            await discovery.ready()
        yield Asked(metadata, discovery, channel)
    finally:
        await channel.close()
        await discovery.stop()
        await metadata.stop()


@pytest.mark.row("FC-07")
async def test_who_may_do_nothing_with_a_group_does_not_learn_who_serves_it(asked: Asked) -> None:
    request = discovery_pb2.FindCoordinatorRequest(group_ids=["yours", "mine"])
    yours, mine = (await asked.call("worker", "FindCoordinator", request)).results
    assert (yours.group_id, yours.error_code, yours.HasField("coordinator")) == ("yours", NO_GROUP, False)
    assert (mine.group_id, mine.error_code, mine.coordinator.node_id) == ("mine", 0, "a")
    for result in (await asked.call("", "FindCoordinator", request)).results:
        assert result.error_code == NO_GROUP


async def test_the_cluster_is_shown_to_who_may_see_it(asked: Asked) -> None:
    describe = discovery_pb2.DescribeClusterRequest()
    assert (await asked.call("watcher", "DescribeCluster", describe)).cluster.shard_count == 4
    with pytest.raises(
        grpc.aio.AioRpcError, match="no rule allows the caller `describe` of the cluster"
    ) as caught:
        await asked.call("worker", "DescribeCluster", describe)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    watch = discovery_pb2.WatchClusterRequest()
    stream = asked.call("watcher", "WatchCluster", watch)
    assert (await stream.read()).cluster.shard_count == 4
    stream.cancel()
    with pytest.raises(
        grpc.aio.AioRpcError, match="no rule allows the caller `describe` of the cluster"
    ) as caught:
        await asked.call("worker", "WatchCluster", watch).read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_who_loses_the_right_to_see_the_cluster_is_shown_no_change_of_it(
    asked: Asked, tmp_path: Path
) -> None:
    stream = asked.call("watcher", "WatchCluster", discovery_pb2.WatchClusterRequest())
    assert (await stream.read()).cluster.shard_count == 4
    (tmp_path / "access.toml").write_text(RULES.replace('"watcher"', '"other"'))

    async def refused() -> bool:
        try:
            await asked.call("watcher", "DescribeCluster", discovery_pb2.DescribeClusterRequest())
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.PERMISSION_DENIED
        return False

    await until(refused)
    asked.metadata.push(cluster(dict.fromkeys(range(4), (2, "b"))), catalog(TOPICS, 1))
    with pytest.raises(
        grpc.aio.AioRpcError, match="no rule allows the caller `describe` of the cluster"
    ) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_topics_are_listed_as_far_as_they_may_be_seen(asked: Asked) -> None:
    async def listed(who: str, *names: str) -> list[str]:
        answer = await asked.call(who, "ListTopics", discovery_pb2.ListTopicsRequest(names=names))
        return [topic.name for topic in answer.topics]

    assert await listed("worker") == ["t1", "t2"]
    assert await listed("worker", "u", "t2") == ["t2"]
    assert await listed("watcher") == []
    assert await listed("") == []


async def test_what_a_caller_sees_of_all_topics_is_looked_up_once_for_each_change(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand it takes a fortieth of a second: twenty calls a second had discovery to themselves."""
    looks, see = list[str](), Access.sees

    def noted(access: Access, who: str, kind: Kind, name: str = "") -> bool:
        looks.append(name)
        return see(access, who, kind, name)

    monkeypatch.setattr(Access, "sees", noted)
    waiting = asyncio.Event()
    monkeypatch.setattr(LoopShare, "taken_s", 1.0)
    monkeypatch.setattr(LoopShare, "rest", lambda _: waiting.wait())

    async def listed(who: str) -> list[str]:
        answer = await asked.call(who, "ListTopics", discovery_pb2.ListTopicsRequest())
        return [topic.name for topic in answer.topics]

    first = [asyncio.create_task(listed(who)) for who in ("worker", "worker", "owner")]
    await until(lambda: looks.count("") == 3, "callers who want the list")
    assert looks.count("u") == 1, "one looks, and has left the loop to others"
    waiting.set()
    assert await asyncio.gather(*first) == [["t1", "t2"]] * 3
    assert await listed("worker") == ["t1", "t2"]
    assert looks.count("u") == 2, "once for each of the two"
    asked.metadata.push(cluster(dict.fromkeys(range(4), (1, "a"))), catalog({**TOPICS, "t3": 1}, 2))
    await until(lambda: _are(listed("worker"), ["t1", "t2", "t3"]), "the new topic")
    assert looks.count("u") == 3


async def _are(listing: Awaitable[list[str]], names: list[str]) -> bool:
    return await listing == names


async def test_no_list_of_topics_outlives_the_rights_that_it_shows(asked: Asked, tmp_path: Path) -> None:
    request = discovery_pb2.ListTopicsRequest()
    assert len((await asked.call("worker", "ListTopics", request)).topics) == 2
    (tmp_path / "access.toml").write_text(RULES.replace('topics = ["t*"]', 'topics = ["u"]'))

    async def names() -> list[str]:
        return [topic.name for topic in (await asked.call("worker", "ListTopics", request)).topics]

    await until(lambda: _are(names(), ["u"]), "the list by the new rights")
    (tmp_path / "access.toml").write_text(RULES.replace('topics = ["t*"]', 'topics = ["*"]'))
    await until(lambda: _are(names(), ["t1", "t2", "u"]), "all topics, which the rights name none of")


@pytest.mark.parametrize("name", ["t1", "u"])
async def test_a_topic_is_changed_by_who_may(asked: Asked, name: str) -> None:
    topic = discovery_pb2.Topic(name=name, partitions=9)
    changes = {
        "CreateTopic": discovery_pb2.CreateTopicRequest(topic=topic),
        "AlterTopic": discovery_pb2.AlterTopicRequest(topic=topic),
        "AlterPartitions": discovery_pb2.AlterPartitionsRequest(topic=name),
        "DeleteTopic": discovery_pb2.DeleteTopicRequest(name=name),
    }
    for method, request in changes.items():
        for who in ("worker", "watcher", ""):
            refusal = await asked.call(who, method, request)
            assert refusal.error_code == NO_TOPIC
            verb = method.removesuffix("Topic").removesuffix("Partitions").lower()
            assert f"no rule allows the caller `{verb}` of this topic" in refusal.error_message
    assert not asked.metadata.changes
    changes.pop("AlterPartitions")  # for topics with names, which this catalog has none of
    version = common_pb2.Position(epoch=1, offset=1)
    asked.metadata.on_change = lambda _: metadata_pb2.ChangeTopicResponse(version=version)
    with capture_logs() as lines:
        for method, request in changes.items():
            refused = (await asked.call("owner", method, request)).error_code == NO_TOPIC
            assert refused is (name == "u")
    told = [(t["action"], t["who"], t["what"], t["outcome"]) for t in lines if t["event"] == "audit"]
    assert {t["where"] for t in lines if t["event"] == "audit"} == {"127.0.0.1"}, "as a coordinator tells it"
    if name == "u":
        assert told == [(verb, "owner", ["topic:u"], "refused") for verb in ("create", "alter", "delete")]
    else:
        assert told == [(method, "owner", ["topic:t1"], "done") for method in changes]
    assert len(asked.metadata.changes) == (0 if name == "u" else 3)


async def test_a_change_that_was_not_answered_in_time_is_told_as_one_that_may_be_made(asked: Asked) -> None:
    asked.metadata.answers.clear()
    with capture_logs() as lines:
        request = discovery_pb2.DeleteTopicRequest(name="t1")
        call = asked.call("owner", "DeleteTopic", request, timeout_s=2)
        with suppress(grpc.aio.AioRpcError):  # or COORDINATOR_NOT_AVAILABLE, where that comes first
            await call
        told = await until(lambda: [line for line in lines if line["event"] == "audit"])
    assert asked.metadata.changes
    assert [(t["action"], t["what"], t["outcome"]) for t in told] == [
        ("DeleteTopic", ["topic:t1"], "unknown")
    ]


async def test_who_leaves_before_a_topic_is_changed_is_told_of_all_the_same(asked: Asked) -> None:
    version = common_pb2.Position(epoch=1, offset=1)
    asked.metadata.on_change = lambda _: metadata_pb2.ChangeTopicResponse(version=version)
    asked.metadata.answers.clear()
    with capture_logs() as lines:
        call = asked.call("owner", "DeleteTopic", discovery_pb2.DeleteTopicRequest(name="t1"))
        await until(lambda: asked.metadata.changes, "metadata is asked")
        call.cancel()
        await until(lambda: asked.discovery._server._open_calls.number == 0, "the caller has left")
        asked.metadata.answers.set()
        told = await until(lambda: [line for line in lines if line["event"] == "audit"])
    assert [(t["action"], t["who"], t["what"], t["outcome"]) for t in told] == [
        ("DeleteTopic", "owner", ["topic:t1"], "done")
    ]
