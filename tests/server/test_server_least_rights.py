"""A cluster whose user of the log has the documented rights: everything works, and nothing more than that."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.test_cluster_snapshots import GROUP, Writer
from kit import forked
from kit.clusters.server_cluster import FAST_GROUPS, all_served
from kit.waiting import until
from muster_core.sharding import shard_of
from muster_metadata.nodes.addresses import place_of
from muster_server.dev.cluster import DevCluster
from muster_server.dev.redis_nodes import RedisNode, RedisNodes
from muster_server.nodes.survey import survey
from muster_server.verify.verifier import verify
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

ROOT = Path(__file__).resolve().parents[2]
ADMIN, USER, PASSWORD = "operator", "muster", "secret"
SHARD = shard_of(GROUP, 50)
SNAPSHOTS = {
    **FAST_GROUPS,
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100",
    "MUSTER_SHARD_LOG_RETENTION_MS": "1",
}

DANGER = (
    "FLUSHALL", "FLUSHDB", "SHUTDOWN", "SAVE", "BGSAVE", "BGREWRITEAOF", "KEYS *", "SCAN 0", "RANDOMKEY",
    "CONFIG SET appendonly no", "CONFIG SET dir /tmp", "CONFIG REWRITE", "CONFIG RESETSTAT",
    "DEBUG SLEEP 0", "MONITOR", "SWAPDB 0 1", "REPLICAOF localhost 1", "PSYNC ? -1", "SYNC", "FAILOVER",
    "ACL SETUSER muster +@all", "ACL LIST", "ACL DELUSER muster", "ACL LOAD", "ACL LOG",
    "CLIENT KILL ID 1", "CLIENT LIST", "CLIENT PAUSE 1", "CLIENT UNPAUSE",
    "MODULE LOAD /tmp/x", "MIGRATE localhost 1 muster:x 0 1", "RESTORE muster:x 0 x", "DUMP muster:node",
    "CLUSTER RESET", "LATENCY RESET", "SLOWLOG RESET", "SORT muster:x", "OBJECT ENCODING muster:node",
    "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION FLUSH", "FUNCTION LOAD x", "FUNCTION STATS", "FCALL x 0",
    "SUBSCRIBE muster:x", "PUBLISH muster:x x", "EXPIRE muster:node 1", "PEXPIRE muster:node 1",
    "COPY muster:node muster:x", "MOVE muster:node 1", "XGROUP CREATE muster:x g $", "XSETID muster:x 9-0",
    "EVAL return 0", "GETDEL muster:x", "APPEND muster:x x", "LPUSH muster:x x",
)  # fmt: skip
"""What the user must not be able to do. It can write the log's keys without a script, as Redis checks the
commands of a script as those of its caller."""

FOREIGN = (
    "GET other",
    "SET other x",
    "XRANGE other - +",
    "DEL other",
    "EVALSHA {sha} 1 other",
    "HGETALL x",
)
"""Keys that are not Muster's."""


def rights() -> list[str]:
    """The rights as docs/security.md has them."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    found = re.search(r"```\n(~muster:\* .+?)\n```", page, re.DOTALL)
    assert found is not None
    return found[1].split()


def test_the_rights_name_every_command_of_the_scripts() -> None:
    """Redis checks them when a script runs, which may be on a path that is taken once a year."""
    lua = ROOT / "services" / "metadata" / "muster_metadata" / "lua"
    called = {
        name.lower()
        for file in lua.glob("*.lua")
        for name in re.findall(r"call\('([A-Z]+)'", file.read_text("utf-8"))
    }
    assert called
    allowed = {right.removeprefix("+").partition("|")[0] for right in rights()}
    assert called - allowed == set()


async def prepare(node: RedisNode) -> None:
    """Makes the users of a node; nobody logs in as `default` from then on."""
    client: Any = Redis.from_url(node.url)
    await client.execute_command("ACL", "SETUSER", ADMIN, "on", f">{PASSWORD}", "~*", "&*", "+@all")
    await client.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rights())
    await client.execute_command("ACL", "SETUSER", "default", "off")
    await client.aclose()


@asynccontextmanager
async def logged_in(node: RedisNode, user: str) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(node.url, username=user, password=PASSWORD)
    try:
        yield client
    finally:
        await client.aclose()


async def refused(node: RedisNode) -> list[str]:
    """The commands that the node refused to the user."""
    async with logged_in(node, ADMIN) as client:
        return [
            f"{entry['reason']} {entry['object']}"
            for entry in await client.acl_log()
            if entry["username"] == USER and entry["reason"] != "auth"
        ]


async def holds(node: RedisNode, check: Callable[[Any], Awaitable[bool]]) -> None:
    async with logged_in(node, ADMIN) as client:
        await until(lambda: check(client), f"{node.url} has it")


async def snapshot_there(client: Any) -> bool:
    return bool(await client.exists(f"muster:{{{SHARD}}}:snapshots"))


async def trimmed(client: Any) -> bool:
    first = await client.xrange(f"muster:{{{SHARD}}}:log", count=1)
    return bool(first) and first[0][0] != b"1-1"


async def is_well(url: str) -> bool:
    return (await survey(url)).healthy


@pytest.mark.cluster
async def test_everything_works_with_the_documented_rights_and_nothing_more(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path / "nodes", 3)
    spare = RedisNode(tmp_path / "spare")
    await nodes.start()
    await spare.start()
    try:
        for node in (*nodes, spare):
            await prepare(node)
        url = nodes.url.replace("redis://", f"redis://{USER}:{PASSWORD}@")
        async with DevCluster(tmp_path / "c", redis_url=url, coordinators=2, settings=SNAPSHOTS) as cluster:
            await all_served(cluster.servers)
            writer = Writer(cluster.servers)
            for _ in range(260):
                await writer.commit()
            for node in nodes:
                await holds(node, snapshot_there)
                await holds(node, trimmed)

            async with logged_in(nodes[2], ADMIN) as client:  # its data are lost: it is filled again
                await client.flushall()
            await holds(nodes[2], snapshot_there)
            await writer.commit()
            await until(lambda: is_well(url), "the node is filled again")

            old, new = place_of(nodes[1].url), place_of(spare.url)
            command = ["muster", "nodes", "replace", old, new, "--redis", url]
            replaced = await forked.run_beside(command, {**os.environ, "COLUMNS": "200"})
            assert replaced.returncode == 0, replaced.stderr + replaced.stdout
            url = url.replace(old, new)
            for _ in range(120):
                await writer.commit()

            await until(lambda: is_well(url), "all nodes are well")
            await writer.close()
        assert (await asyncio.to_thread(verify, url)).clean
        for node in (nodes[0], nodes[2], spare):
            assert await refused(node) == []
        await nothing_more(nodes[0])
    finally:
        await spare.stop()
        await nodes.stop()


async def nothing_more(node: RedisNode) -> None:
    """Each command of danger is refused for want of rights, and each key that is not Muster's."""
    async with logged_in(node, USER) as client, logged_in(node, ADMIN) as operator:
        sha = await client.script_load("return redis.call('GET', KEYS[1])")
        allowed = []
        for text in (*DANGER, *(text.format(sha=sha) for text in FOREIGN)):
            words = text.split()
            try:
                await client.execute_command(*words)
            except NoPermissionError:
                continue
            except ResponseError:  # it may be refused for another reason first, such as a setting
                if await operator.execute_command("ACL", "DRYRUN", USER, *words) != b"OK":
                    continue
            allowed.append(text)
        assert allowed == []
