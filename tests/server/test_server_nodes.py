"""`muster nodes`: what it shows and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster
from kit.waiting import until
from muster_metadata.nodes.addresses import place_of
from muster_metadata.nodes.problem import UNREACHABLE, ProblemKind
from muster_metadata.nodes.reply import Status
from muster_metadata.operator.replacement import REBUILD_DELAY_MS, STEP_TIMEOUT_MS
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_server.dev.redis_nodes import RedisNode
from muster_server.nodes.command import _times, app
from muster_server.nodes.survey import NodeState, survey
from typer.testing import CliRunner, Result

pytestmark = pytest.mark.cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as running:
        writer = Writer(0)
        await writer.claim(running[0])
        for number in range(5):
            assert (await writer.append(running[0], b"w:%d" % number)).outcome == metadata_pb2.LOG_OUTCOME_OK
        await until(lambda: running.level(0), "level")
        yield running


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env={"COLUMNS": "200"})


async def states(cluster: MetadataCluster) -> list[NodeState]:
    return (await survey(cluster.nodes.url)).nodes


async def test_list_shows_who_the_nodes_are_and_how_they_keep_data(cluster: MetadataCluster) -> None:
    result = await run("list", "--redis", cluster.nodes.url, "-o", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["healthy"], told["configuration"], told["shard_count"]) == (True, 1, 4)
    assert [node["address"] for node in told["nodes"]] == [
        place_of(cluster.nodes[index].url) for index in range(3)
    ]
    for index, node in enumerate(told["nodes"], 1):
        assert node["identity"] == f"{told['cluster_id']}/4/{index} of 3/1"
        assert (node["persistence"], node["eviction"]) == ("everysec", "noeviction")
        assert node["server"].startswith("valkey ")
        assert node["memory_bytes"] > 0
        assert (node["missing_logs"], node["lagging_logs"], node["apart_promises"]) == (0, 0, 0)
        assert [weakness["setting"] for weakness in node["weaknesses"]] == ["appendfsync"]
    shown = await run("list", "--redis", cluster.nodes.url)
    assert shown.exit_code == 0
    assert place_of(cluster.nodes[0].url) in shown.stdout


async def test_list_shows_what_is_wrong_with_a_node(cluster: MetadataCluster) -> None:
    nodes = cluster[0].server.metadata.quorum.nodes
    await cluster[0].stop()
    async with cluster.client(0) as client:
        await client.config_set("maxmemory", "1")
    async with cluster.client(1) as client:
        await client.delete("muster:{1}:log")
        await client.xdel("muster:{0}:log", "1-7", "1-6", "1-3")
    await cluster.nodes[2].kill()
    found = await states(cluster)
    assert [str(problem) for problem in found[0].problems] == [
        "it is out of memory: it answers reads and refuses writes"
    ]
    assert (found[1].missing_logs, found[1].lagging_logs, found[1].lag_entries) == (1, 1, 2)
    assert [str(problem) for problem in found[1].problems] == [
        "it lacks 1 of 5 logs",
        "1 of its logs lack entries in the middle: `muster verify` names them",
    ]
    assert found[2].problems == [UNREACHABLE]
    result = await run("list", "--redis", cluster.nodes.url)
    assert result.exit_code == 1
    assert "node 3: it cannot be reached" in result.stdout
    assert nodes


async def test_list_shows_a_promise_that_stands_apart(cluster: MetadataCluster) -> None:
    node = cluster[0].server.metadata.quorum.nodes[2]
    assert (await node.prepare(0, 9, b"x" * 16, b"tag")).status is Status.OK
    assert [state.apart_promises for state in await states(cluster)] == [0, 0, 1]


async def test_list_names_servers_that_are_not_the_nodes(cluster: MetadataCluster, tmp_path: Path) -> None:
    one, two, three = (place_of(cluster.nodes[index].url) for index in range(3))
    swapped = await survey(f"redis://{two},{one},{three}")
    assert f"names {two} as node 1 of 3, but it is node 2 of 3" in swapped.problem
    stranger = RedisNode(tmp_path / "stranger")
    await stranger.start()
    found = await survey(f"redis://{one},{two},{place_of(stranger.url)}")
    empty, not_a_node = found.nodes[2].problems
    assert empty.kind is ProblemKind.EMPTY
    assert not_a_node.kind is ProblemKind.NOT_A_NODE
    assert f"names {three} as this node" in not_a_node.sentence
    await stranger.stop()


async def test_replace_says_what_it_would_do_and_does_it(cluster: MetadataCluster, tmp_path: Path) -> None:
    new = RedisNode(tmp_path / "new")
    await new.start()
    old, url = place_of(cluster.nodes[1].url), cluster.nodes.url
    dry = await run("replace", old, place_of(new.url), "--redis", url, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert f"node 2: {old} is replaced by {place_of(new.url)} in configuration 2" in dry.stdout
    assert "nothing was changed" in dry.stdout
    assert [state.identity[-1] for state in await states(cluster)] == ["1", "1", "1"]
    done = await run("replace", old, place_of(new.url), "--redis", url)
    assert done.exit_code == 0, done.output
    assert "5 of 5 logs are copied" in done.stdout
    changed = url.replace(old, place_of(new.url)).removeprefix("redis://")
    assert f"MUSTER_METADATA_REDIS_URL must name {changed}" in done.stdout
    again = await run("replace", old, place_of(new.url), "--redis", url)
    assert again.exit_code == 0, again.output
    assert "going on" in again.stdout
    assert (await survey(f"redis://{changed}")).healthy
    stale = await survey(url)
    assert f"was replaced by {place_of(new.url)} in configuration 2" in stale.problem
    await new.stop()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "--redis", "redis://a,b"], "1, 3 or 5 nodes, not 2"),
        (["list", "--redis", "redis://a", "-o", "yaml"], "use table or json"),
        (
            ["replace", "a", "b", "--redis", "redis://c,d,e"],
            "a:6379 is no node of the log, which has c:6379, d:6379",
        ),
        (["replace", "a", "b", "--redis", "redis://a"], "a log of one node has no others"),
        (["list", "--data", "/nowhere"], "name the nodes with --redis or MUSTER_METADATA_REDIS_URL"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.delenv("MUSTER_METADATA_REDIS_URL", raising=False)
    result = await run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_replace_waits_as_long_as_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may count for so long on what a server said before it lost its data."""
    assert _times() == (STEP_TIMEOUT_MS, REBUILD_DELAY_MS)
    for name, value in (("STEP", "30000"), ("CLAIM", "60000")):
        monkeypatch.setenv(f"MUSTER_METADATA_{name}_TIMEOUT_MS", value)
    monkeypatch.setenv("MUSTER_METADATA_REBUILD_DELAY_MS", "60000")
    assert _times() == (30_000, 60_000)
