"""`muster doctor` on real processes and real servers, each failure made for real."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import forked
from kit.clusters.linked_cluster import inside
from kit.clusters.server_cluster import all_served, running
from kit.waiting import until_equal
from muster_metadata.operator.initialise import initialise
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_server.dev.cluster import DevCluster
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess
from muster_server.doctor.cluster import judge_clocks, judge_versions
from muster_server.doctor.findings import CheckResult
from muster_server.doctor.nodes import judge_replicas
from redis.asyncio import Redis
from redis.exceptions import ResponseError

pytestmark = pytest.mark.cluster

NOBODY = f"{LOOPBACK}:1"
SECONDS = 60


async def doctor(*arguments: str, **settings: str) -> tuple[int, str, str]:
    """Runs the command; exit code, output, errors."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    done = await forked.run_beside(["muster", "doctor", *arguments], {**clean, "COLUMNS": "200", **settings})
    return done.returncode, done.stdout, done.stderr


class Diagnosis:
    """What the command told as JSON."""

    def __init__(self, code: int, out: str) -> None:
        self.code = code
        self.told: dict[str, Any] = json.loads(out)

    def found(self, result: CheckResult, check: str) -> list[dict[str, str]]:
        return [
            finding
            for finding in self.told["findings"]
            if finding["result"] == result and finding["check"] == check
        ]

    def only(self, result: CheckResult, check: str) -> dict[str, str]:
        (finding,) = self.found(result, check)
        return finding


async def diagnose(*arguments: str, **settings: str) -> Diagnosis:
    code, out, errors = await doctor("-o", "json", *arguments, **settings)
    assert errors == ""
    return Diagnosis(code, out)


def config_set(node: int, cluster: DevCluster | RedisNodes, name: str, value: str) -> Any:
    nodes = cluster if isinstance(cluster, RedisNodes) else cluster.nodes
    assert nodes is not None
    return _execute(nodes[node].url, "CONFIG", "SET", name, value)


async def _execute(url: str, *command: str | int) -> None:
    client: Redis = Redis.from_url(url)
    try:
        await client.execute_command(*command)
    finally:
        await client.aclose()


async def test_cluster_that_is_well_and_what_goes_wrong_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, redis_nodes=3, coordinators=3) as cluster:
        assert cluster.nodes is not None
        for index in range(3):
            await config_set(index, cluster, "appendfsync", "always")
        await all_served(cluster.servers)
        well = await diagnose("--data", str(tmp_path))
        assert (well.code, well.told["healthy"]) == (0, True), well.told["findings"]
        assert (well.told["warning"], well.told["failed"], well.told["skipped"]) == (1, 0, 0)
        assert "no file of rights" in well.only(CheckResult.WARNING, "rights")["detail"]
        assert len(well.found(CheckResult.OK, "coordinator")) == 3
        assert len(well.found(CheckResult.OK, "durability")) == 3
        assert "3 different servers" in well.only(CheckResult.OK, "log")["detail"]
        assert well.only(CheckResult.OK, "clocks")["subject"] == "8 clocks"

        await config_set(0, cluster, "maxmemory-policy", "allkeys-lru")
        await config_set(1, cluster, "appendonly", "no")
        await config_set(2, cluster, "appendfsync", "everysec")
        weak = await diagnose("--data", str(tmp_path))
        assert weak.code == 1
        eviction, no_file = weak.found(CheckResult.FAILED, "durability")
        assert (eviction["subject"][:6], no_file["subject"][:6]) == ("node 1", "node 2")
        assert "CONFIG SET maxmemory-policy noeviction" in eviction["fix"]
        assert "CONFIG SET appendonly yes" in no_file["fix"]
        assert "`everysec`" in weak.only(CheckResult.WARNING, "durability")["detail"]
        await config_set(0, cluster, "maxmemory-policy", "noeviction")
        await config_set(1, cluster, "appendonly", "yes")

        await cluster.coordinators[0].kill()
        await cluster.nodes[2].kill()
        hurt = await diagnose("--data", str(tmp_path))
        assert hurt.code == 1
        assert "coordinator-1" in hurt.only(CheckResult.FAILED, "coordinator")["subject"]
        node = hurt.only(CheckResult.FAILED, "log node")
        assert (node["subject"][:6], node["detail"]) == ("node 3", "it cannot be reached")
        assert "muster nodes replace" in node["fix"]
        code, table, _ = await doctor("--data", str(tmp_path))
        assert code == 1
        assert f"→ {node['fix']}" in table

        through = await diagnose("--servers", cluster.servers, "--metadata", cluster.metadata[0].address)
        assert through.only(CheckResult.FAILED, "log node")["subject"] == "node 3"
        assert len(through.found(CheckResult.OK, "lag")) == 2
        assert "--redis" in through.only(CheckResult.SKIPPED, "durability")["fix"]

        await cluster.metadata[0].kill()
        await cluster.discovery.kill()
        gone = await diagnose("--data", str(tmp_path))
        assert "--servers" in gone.only(CheckResult.FAILED, "discovery")["fix"]
        assert "--metadata" in gone.only(CheckResult.FAILED, "metadata")["fix"]
        assert gone.only(CheckResult.SKIPPED, "cluster")["detail"]
        assert len(gone.found(CheckResult.FAILED, "log node")) == 1


async def test_processes_that_do_not_fit_together(tmp_path: Path) -> None:
    """A coordinator whose address leads nowhere, one of another version whose clock is wrong."""
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster:
        common = {"MUSTER_COORDINATOR_METADATA": cluster.metadata[0].address}
        ports = free_ports(2)
        lost = RoleProcess(
            "lost",
            "coordinator",
            ports[0],
            tmp_path,
            {
                **common,
                "MUSTER_COORDINATOR_LISTEN": f"{LOOPBACK}:{ports[0]}",
                "MUSTER_COORDINATOR_ADVERTISE": NOBODY,
                "MUSTER_COORDINATOR_NODE_ID": "lost",
            },
        )
        skewed = RoleProcess(
            "skewed",
            "coordinator",
            ports[1],
            tmp_path,
            {
                **common,
                "MUSTER_COORDINATOR_LISTEN": f"{LOOPBACK}:{ports[1]}",
                "MUSTER_COORDINATOR_NODE_ID": "skewed",
                **inside(SKEWED_CLOCK_MS="90000", SKEWED_VERSION="0.4.0"),
            },
        )
        try:
            await lost.start()
            await skewed.start()
            found = await diagnose("--data", str(tmp_path / "cluster"))
        finally:
            await lost.kill()
            await skewed.kill()
        assert found.code == 1
        assert "MUSTER_COORDINATOR_ADVERTISE" in found.only(CheckResult.FAILED, "coordinator")["fix"]
        versions = found.only(CheckResult.FAILED, "versions")
        assert "1 × 0.4.0" in versions["detail"]
        clock = found.only(CheckResult.FAILED, "clocks")
        assert clock["subject"].startswith("skewed ")
        assert "90.0 s ahead" in clock["detail"]
        assert "only copy" in found.only(CheckResult.WARNING, "log")["detail"]


@asynccontextmanager
async def made(folder: Path, cluster_id: str, count: int = 3) -> AsyncIterator[RedisNodes]:
    """Initialised servers of a log that no process uses."""
    nodes = RedisNodes(folder, count)
    await nodes.start()
    try:
        await initialise(nodes.url, 4, cluster_id)
        yield nodes
    finally:
        await nodes.stop()


async def test_servers_that_are_no_log(tmp_path: Path) -> None:
    async with made(tmp_path / "one", "one") as nodes, made(tmp_path / "two", "two") as others:
        one, two, three = (f"{LOOPBACK}:{node.port}" for node in nodes)
        twice = f"redis://{one},{two},localhost:{nodes[0].port}"
        same = await diagnose("--servers", NOBODY, "--redis", twice)
        assert "are one server" in same.only(CheckResult.FAILED, "log")["detail"]
        assert "each a server of its own" in same.only(CheckResult.FAILED, "log")["fix"]

        mixed = f"redis://{one},{two},{LOOPBACK}:{others[2].port}"
        foreign = await diagnose("--servers", NOBODY, "--redis", mixed)
        assert "belong to different clusters" in foreign.only(CheckResult.FAILED, "log")["detail"]

        swapped = await diagnose("--servers", NOBODY, "--redis", f"redis://{two},{one},{three}")
        assert "in the order in which they were made" in swapped.only(CheckResult.FAILED, "log")["detail"]


async def test_nodes_that_are_not_well(tmp_path: Path) -> None:
    async with made(tmp_path, "one", 5) as nodes:
        for number in range(2, 6):
            for index in (0, 1, 3, 4):
                await _execute(
                    nodes[index].url, "XADD", "muster:{2}:log", f"0-{number}", "r", "x", "n", "", "h", ""
                )
        await _execute(nodes[0].url, "DEL", "muster:{1}:log")
        await config_set(1, nodes, "maxmemory", "1")
        await _execute(nodes[3].url, "REPLICAOF", LOOPBACK, nodes[4].port)
        found = await diagnose("--servers", NOBODY, "--redis", nodes.url)
        assert found.code == 1
        behind = found.only(CheckResult.FAILED, "lag")
        assert behind["subject"].startswith("node 3")
        assert "1 logs, by 4 entries" in behind["detail"]
        told = found.found(CheckResult.FAILED, "log node")
        for node, problem, fix in (
            ("node 1", "it lacks 1 of 5 logs", ""),
            ("node 2", "out of memory", "maxmemory"),
            # and, when it has the other's data by then, that it is no node 4
            ("node 4", "replica", "REPLICAOF NO ONE"),
        ):
            its = [one for one in told if one["subject"].startswith(node)]
            assert any(problem in one["detail"] and fix in one["fix"] for one in its), told


async def test_node_on_which_a_script_runs_is_busy_and_lacks_no_right(tmp_path: Path) -> None:
    async with made(tmp_path, "one", 3) as nodes:
        await config_set(2, nodes, "busy-reply-threshold", "10")
        script = asyncio.create_task(_execute(nodes[2].url, "EVAL", "while true do end", 0))
        try:
            await until_equal(lambda: _is_busy(nodes[2].url), True, "the script runs")
            found = await diagnose("--servers", NOBODY, "--redis", nodes.url)
        finally:
            await _execute(nodes[2].url, "SCRIPT", "KILL")
            await asyncio.gather(script, return_exceptions=True)
        (told,) = (
            one for one in found.found(CheckResult.FAILED, "log node") if one["subject"].startswith("node 3")
        )
        assert "it runs a script" in told["detail"]
        assert "SCRIPT KILL" in told["fix"]


async def _is_busy(url: str) -> bool:
    try:
        await _execute(url, "PING")
    except ResponseError as error:
        return str(error).startswith("BUSY ")
    return False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "yaml"], "use table or json"),
        (["--servers", "nowhere"], "--servers: 'nowhere' is not an address of the form host:port"),
        (["--metadata", "a:0"], "--metadata: 'a:0': the port must be a number from 1 to 65535"),
        (["--redis", "redis://a,b"], "1, 3 or 5 nodes, not 2"),
    ],
)
async def test_what_makes_no_sense_is_refused(arguments: list[str], sentence: str) -> None:
    code, _, errors = await doctor(*arguments)
    assert code == 2
    assert sentence in errors


@pytest.mark.parametrize(
    ("versions", "result"),
    [
        (("0.4.1", "0.4.1"), [CheckResult.OK]),
        (("0.4.1", "0.4.2"), [CheckResult.WARNING]),
        (("0.4.1", "0.5.0"), [CheckResult.WARNING]),
        (("0.4.1", "0.6.0"), [CheckResult.FAILED]),
        (("0.9.0", "1.0.0"), [CheckResult.FAILED]),
        (("0.4.1", "unknown"), [CheckResult.SKIPPED, CheckResult.OK]),
    ],
)
def test_versions_may_be_one_minor_apart(versions: tuple[str, str], result: list[CheckResult]) -> None:
    found = judge_versions({"a": versions[0], "b": versions[1]})
    assert [finding.result for finding in found] == result


def test_a_node_that_does_not_vote_is_not_well_for_who_asks_metadata() -> None:
    """And not said twice of one that metadata does not reach at all."""
    ok, unknown = metadata_pb2.LOG_OUTCOME_OK, metadata_pb2.LOG_OUTCOME_UNKNOWN
    replicas = [
        metadata_pb2.DescribeLogResponse.Replica(shard=shard, node=node, outcome=outcome)
        for node, outcome in ((1, ok), (2, unknown), (3, unknown))
        for shard in range(4)
    ]
    found = {one.subject: one for one in judge_replicas(replicas, replicas, {3})}
    assert {subject: one.result for subject, one in found.items()} == {
        "node 1": CheckResult.OK,
        "node 2": CheckResult.FAILED,
    }
    assert "does not vote on 4 logs" in found["node 2"].detail


@pytest.mark.parametrize(
    ("ahead_ms", "result"),
    [
        (1_999, CheckResult.OK),
        (-2_001, CheckResult.WARNING),
        (60_001, CheckResult.FAILED),
        (None, CheckResult.SKIPPED),
    ],
)
def test_clocks_may_be_seconds_apart(ahead_ms: int | None, result: CheckResult) -> None:
    assert [finding.result for finding in judge_clocks({"a": ahead_ms})] == [result]
