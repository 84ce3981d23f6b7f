"""Making a cluster, and starting on one that was not made; settings."""

from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import Instance, Writer, fast, metadata_cluster
from kit.waiting import until
from muster_core.features import FEATURE_NAMES
from muster_metadata.nodes import durability
from muster_metadata.nodes.addresses import BadUrlsError, at, place_of, split_urls
from muster_metadata.nodes.durability import weaknesses, weaknesses_in
from muster_metadata.nodes.node import Node
from muster_metadata.operator.initialise import InitialiseError, initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.settings import SettingsError, load
from muster_server.dev.redis_nodes import RedisNodes
from redis.asyncio import Redis
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster


async def test_initialise_is_repeatable_and_keeps_the_identity(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    try:
        first = await initialise(nodes.url, 4)
        again = await initialise(nodes.url, 4)
        assert first.made == (1, 2, 3)
        assert (again.cluster_id, again.made, again.left) == (first.cluster_id, (), ())
        with pytest.raises(InitialiseError, match="4 shards, not 5"):
            await initialise(nodes.url, 5)
        with pytest.raises(InitialiseError, match="not to another"):
            await initialise(nodes.url, 4, "another")
        one, two, three = (node.url.removeprefix("redis://") for node in nodes)
        with pytest.raises(InitialiseError, match=f"{two} as node 1 of 3, but it is node 2 of 3"):
            await initialise(f"redis://{two},{one},{three}", 4)
        with pytest.raises(InitialiseError, match=f"{one}\\) is one of 3 nodes of a log"):
            await initialise(f"redis://{one}", 4)
    finally:
        await nodes.stop()


async def test_interrupted_initialise_goes_on(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    try:
        first = await initialise(nodes.url, 2, features=())
        client: Redis = Redis.from_url(nodes[2].url)
        await client.flushall()
        await client.aclose()
        again = await initialise(nodes.url, 2)
        assert (again.cluster_id, again.made) == (first.cluster_id, (3,))
        settings = load(MetadataSettings, redis_url=nodes.url, listen="127.0.0.1:0", **fast())
        instance = await Instance(MetadataServer(settings)).start()
        assert (
            tuple((await instance.stub.ListFeatures(metadata_pb2.ListFeaturesRequest())).enabled)
            == FEATURE_NAMES
        )
        await instance.stop()
    finally:
        await nodes.stop()


async def test_features_whose_enabling_was_interrupted_are_enabled_when_it_is_run_again(
    tmp_path: Path,
) -> None:
    """And in no cluster that somebody has used, who may want to go back to an older version."""
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    settings = load(MetadataSettings, redis_url=nodes.url, listen="127.0.0.1:0", **fast())

    async def enabled() -> tuple[str, ...]:
        instance = await Instance(MetadataServer(settings)).start()
        listed = await instance.stub.ListFeatures(metadata_pb2.ListFeaturesRequest())
        await instance.stop()
        return tuple(listed.enabled)

    try:
        await initialise(nodes.url, 2, features=FEATURE_NAMES[:1])
        await initialise(nodes.url, 2)
        assert await enabled() == FEATURE_NAMES
    finally:
        await nodes.stop()
    async with metadata_cluster(tmp_path / "used", 3, features=FEATURE_NAMES[:1]) as cluster:
        await Writer(0).claim(cluster[0])
        await until(lambda: cluster.level(4), "all nodes have the catalog")
        before = await cluster.ends(4)
        await initialise(cluster.nodes.url, 4)
        assert await cluster.ends(4) == before


@pytest.mark.parametrize("count", [1, 3])
async def test_initialise_that_was_interrupted_by_a_restart_of_the_nodes_goes_on(
    tmp_path: Path, count: int
) -> None:
    """With `everysec` they may have forgotten something, and nothing runs yet that would help them."""
    nodes = RedisNodes(tmp_path, count, fsync="everysec")
    await nodes.start()

    async def restarted(*indexes: int) -> None:
        for index in indexes:
            await nodes[index].kill()
            await nodes[index].start()

    try:
        first = await initialise(nodes.url, 2, features=FEATURE_NAMES[:1])
        await restarted(*range(count))
        assert (await initialise(nodes.url, 2)).cluster_id == first.cluster_id
        settings = load(MetadataSettings, redis_url=nodes.url, listen="127.0.0.1:0", **fast())
        instance = await Instance(MetadataServer(settings)).start()
        assert (
            tuple((await instance.stub.ListFeatures(metadata_pb2.ListFeaturesRequest())).enabled)
            == FEATURE_NAMES
        )
        await instance.stop()
    finally:
        await nodes.stop()


async def test_a_node_that_was_made_and_restarted_does_not_keep_the_others_from_being_made(
    tmp_path: Path,
) -> None:
    nodes = RedisNodes(tmp_path, 3, fsync="everysec")
    await nodes.start()
    try:
        first = await initialise(nodes.url, 2, features=())
        for index in (1, 2):
            client: Redis = Redis.from_url(nodes[index].url)
            await client.flushall()
            await client.aclose()
        await nodes[0].kill()
        await nodes[0].start()
        again = await initialise(nodes.url, 2)
        assert (again.cluster_id, again.made) == (first.cluster_id, (2, 3))
    finally:
        await nodes.stop()


async def test_used_cluster_gets_no_second_beginning(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await Writer(0).claim(cluster[0])
        await cluster[0].server.stop(0)
        async with cluster.client(2) as client:
            await client.flushall()
            result = await initialise(cluster.nodes.url, 4)
            assert (result.made, result.left) == ((), (3,))
            assert await client.keys("*") == []
        async with cluster.client(1) as client:
            await client.flushall()
        with pytest.raises(InitialiseError, match="start the nodes that have the data"):
            await initialise(cluster.nodes.url, 4)


async def test_new_cluster_needs_all_of_its_nodes(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    try:
        await nodes[1].kill()
        told: list[str] = []
        with pytest.raises(
            InitialiseError, match=r"node 2 \(127.0.0.1:\d+\): it cannot be reached; a new cluster"
        ):
            await initialise(nodes.url, 2, connect_timeout_ms=2_500, waiting=told.append)
        assert 1 <= len(told) <= 2
        assert told[0].startswith(
            f"waiting for node 2 ({place_of(nodes[1].url)}): it cannot be reached (giving up"
        )
    finally:
        await nodes.stop()


async def test_server_waits_for_a_cluster_that_is_not_made_yet(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 1)
    await nodes.start()
    server = MetadataServer(load(MetadataSettings, redis_url=nodes.url, listen="127.0.0.1:0", **fast()))
    try:
        await server.start()
        await until(lambda: "never initialised" in server.metadata.problem, "it says what is missing")
        assert not server.metadata.ready.is_set()
        await initialise(nodes.url, 2)
        await until(server.metadata.ready.is_set, "it begins by itself")
    finally:
        await server.stop(0)
        await nodes.stop()


async def test_part_of_the_nodes_is_no_log(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    part = MetadataServer(load(MetadataSettings, redis_url=nodes[0].url, listen="127.0.0.1:0", **fast()))
    try:
        await initialise(nodes.url, 2)
        await part.start()
        await until(
            lambda: "but the address of the log names" in part.metadata.problem, "it says what is wrong"
        )
        assert not part.metadata.ready.is_set()
    finally:
        await part.stop(0)
        await nodes.stop()


async def test_exported_position_must_stand_in_the_log(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await until(lambda: cluster.level(0), "level")
        position = writer.end.position.to_proto()
        stub = cluster[0].stub
        good = await stub.ReportExported(
            metadata_pb2.ReportExportedRequest(shard=0, position=position, hash=writer.end.hash)
        )
        assert good.outcome == metadata_pb2.LOG_OUTCOME_OK
        bad = await stub.ReportExported(
            metadata_pb2.ReportExportedRequest(shard=0, position=position, hash=bytes(32))
        )
        assert bad.outcome == metadata_pb2.LOG_OUTCOME_INVALID
        async with cluster.client(0) as client:
            assert await client.get("muster:{0}:exported") == b"1-2"


def test_addresses_of_nodes(tmp_path: Path) -> None:
    assert split_urls("redis://a") == ["redis://a"]
    authority = tmp_path / "ca.pem"
    authority.touch()
    tail = f"/0?ssl_ca_certs={authority}"
    assert split_urls(f"rediss://u:p@a:1,b:2,c{tail}") == [
        f"rediss://u:p@a:1{tail}", f"rediss://u:p@b:2{tail}", f"rediss://u:p@c{tail}",
    ]  # fmt: skip
    tail = f"?ssl_ca_certs={authority}"
    assert split_urls(f"rediss://a,b,c{tail}") == [f"rediss://{place}{tail}" for place in "abc"]
    assert place_of("rediss://u:p@C/0?ssl_ca_certs=ca.pem") == "c:6379"
    assert at("rediss://u:p@c/0?x=y", "d:7") == "rediss://u:p@d:7/0?x=y"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("http://a", "must begin with redis:// or rediss://"),
        ("redis://", "names an empty host"),
        ("redis://a,,b", "names an empty host"),
        ("redis://a,b", "1, 3 or 5 nodes, not 2"),
        ("redis://a,b,c,d", "1, 3 or 5 nodes, not 4"),
        ("redis://a,b,A:6379", "names one node twice: a:6379"),
        ("redis://a:x", "a port that is no number"),
        ("redis://a,rediss://b,redis://c", "names redis:// or rediss:// once"),
        ("redis://u:p@a,u:p@b,c", "names user and password once"),
        ("redis://a?ssl_ca_certs=ca.pem", "ssl_ca_certs in the address of the log needs rediss://"),
        ("rediss://a?ssl_certfile=c.pem", "ssl_certfile and ssl_keyfile"),
        ("rediss://a?ssl_cert_reqs=none", "has no option 'ssl_cert_reqs'"),
        ("rediss://a?ssl_ca_certs=missing.pem", "there is no file missing.pem"),
        ("rediss://a?ssl_check_hostname=maybe", "must be true or false"),
        ("redis://u:se#cret@a:1", "percent-encoded"),
        ("redis://u:se[cret@a:1", "percent-encoded"),
        ("redis://u:se?cret@a:1", "no option like the one that is given"),
        ("redis://u:secret/x@a:1", "a port that is no number"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(BadUrlsError, match=sentence) as caught:
        split_urls(wrong)
    assert "cret" not in str(caught.value)


async def test_default_user_that_may_not_write_is_named(tmp_path: Path) -> None:
    """Redis reads its append-only file with the rights of that user."""
    nodes = RedisNodes(tmp_path, 1)
    await nodes.start()
    client: Any = Redis.from_url(nodes.url)
    await client.execute_command("ACL", "SETUSER", "muster", "on", ">secret", "~*", "&*", "+@all")
    node = Node(1, nodes.url.replace("redis://", "redis://muster:secret@"), 2_000)
    node.start()
    try:
        await until(lambda: node.tables.connected, "connected")
        assert not any("`default`" in str(weakness) for weakness in await weaknesses(node) or ())
        await client.execute_command("ACL", "SETUSER", "default", "off")
        assert not any("`default`" in str(weakness) for weakness in await weaknesses(node) or ())
        await client.execute_command("ACL", "SETUSER", "default", "reset")
        assert any("`default`" in str(weakness) for weakness in await weaknesses(node) or ())
    finally:
        await node.stop()
        await client.aclose()
        await nodes.stop()


def test_weak_configurations_are_named() -> None:
    good = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert weaknesses_in(good) == []
    for name, value, word in (
        ("appendonly", "no", "forgets"),
        ("appendfsync", "everysec", "majority of machines"),
        ("appendfsync", "no", "more than its last second"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
        ("no-appendfsync-on-rewrite", "yes", "rewrite"),
    ):
        (weakness,) = weaknesses_in(good | {name: value})
        assert weakness.setting == name
        assert word in weakness.sentence


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("REDIS_URL", "redis://a,b", "1, 3 or 5 nodes, not 2"),
        ("LEASE_MS", "300", "must be more than twice"),
        ("POLL_MS", "900", "at least three times"),
        ("CLAIM_TIMEOUT_MS", "1500", "a claim takes several steps"),
        ("REBUILD_DELAY_MS", "500", "a claimant may count on a lost promise"),
        ("PROBE_TIMEOUT_MS", "2500", "must be below"),
    ],
)
def test_contradicting_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(f"MUSTER_METADATA_{name}", value)
    with pytest.raises(SettingsError, match=sentence):
        load(MetadataSettings)


async def test_a_node_that_is_made_to_forget_while_it_runs_raises_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "_PAUSE_S", 0.05)
    with capture_logs() as logs:
        async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:

            def said(event: str) -> list[tuple[int, str]]:
                return [(line["node"], line["remedy"][:21]) for line in logs if line["event"] == event]

            await until(lambda: len(said("log_node_weak")) == 3, "what was so at the start is said once")
            async with cluster.client(1) as client:
                await client.config_set("appendonly", "no")
                await until(lambda: said("log_node_weakened") == [(2, "`CONFIG SET appendonl")], "it is said")
                await client.config_set("maxmemory-policy", "allkeys-lru")
                await until(lambda: len(said("log_node_weakened")) == 2, "each change is said")
            await cluster.nodes[0].kill()
            await cluster.nodes[0].start()
    assert len(said("log_node_weakened")) == 2
    assert len(said("log_node_weak")) == 3
