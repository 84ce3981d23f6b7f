"""docs/backup.md for real: copies of the nodes' files, taken under load, put back into fresh nodes."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import muster
import pytest
from kit.clusters.server_cluster import FAST_GROUPS
from kit.waiting import until
from muster_metadata.operator.initialise import InitialiseError, initialise
from muster_server.child_process import ChildProcess
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNode, RedisNodes, server_binary
from muster_server.nodes.command import app
from muster_server.nodes.survey import survey
from muster_server.verify.verifier import verify
from redis.asyncio import Redis
from typer.testing import CliRunner

pytestmark = pytest.mark.cluster

GROUP, TOPIC = "workers", "work"
PARTITIONS = [muster.TopicPartition(TOPIC, number) for number in range(4)]
FILES = "appendonlydir"
SESSION_MS, SHARDS, READY_S = 10_000, 4, 120.0


async def tell(node: RedisNode, *command: str) -> Any:
    client: Redis = Redis.from_url(node.url)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


async def rewritten(node: RedisNode) -> bool:
    """Whether its append-only file is there, and nobody rewrites it."""
    told = await tell(node, "INFO", "persistence")
    return bool(told["aof_enabled"] and not told["aof_rewrite_in_progress"])


async def copy_files(node: RedisNode, target: Path) -> None:
    """The append-only file of a server that runs, as docs/backup.md says."""
    await tell(node, "CONFIG", "SET", "auto-aof-rewrite-percentage", "0")

    await until(lambda: rewritten(node), "no rewrite runs")
    shutil.copytree(node.folder / FILES, target / FILES)
    await tell(node, "CONFIG", "SET", "auto-aof-rewrite-percentage", "100")


async def copy_dump(node: RedisNode, target: Path) -> None:
    """A dump of a server that runs."""
    await tell(node, "SAVE")
    os.makedirs(target)
    shutil.copy(node.folder / "dump.rdb", target)


async def restore_dump(node: RedisNode, folder: Path) -> None:
    """Makes an append-only file of a dump: a server with `appendonly yes` does not look at a dump."""
    arguments = ["--port", str(node.port), "--dir", str(folder), "--save", "", "--appendonly", "no"]
    server = ChildProcess("restore", [server_binary(), *arguments], folder / "restore.log")
    server.start()
    await until(node.answers, "the server has read the dump")
    await tell(node, "CONFIG", "SET", "appendonly", "yes")

    await until(lambda: rewritten(node), "the append-only file is written")
    await server.terminate()


class Running:
    """The nodes of a folder, initialised, and one process with all roles."""

    def __init__(self, folder: Path) -> None:
        self.nodes = RedisNodes(folder, 3)
        discovery, coordinator, metadata = free_ports(3)
        self.servers = f"{LOOPBACK}:{discovery}"
        self._ready_file = folder / "ready"
        self._ready_file.unlink(missing_ok=True)
        self.process = ChildProcess(
            "services",
            [sys.executable, "-m", "muster_server", "--roles", "all", "--ready-file", str(self._ready_file)],
            folder / "services.log",
            environment={
                **FAST_GROUPS,
                "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100",
                "MUSTER_METADATA_REDIS_URL": self.nodes.url,
                "MUSTER_METADATA_LISTEN": f"{LOOPBACK}:{metadata}",
                "MUSTER_DISCOVERY_LISTEN": self.servers,
                "MUSTER_COORDINATOR_LISTEN": f"{LOOPBACK}:{coordinator}",
            },
            removed=("MUSTER_",),
        )

    async def start(self) -> None:
        await self.nodes.start()
        await initialise(self.nodes.url, SHARDS)
        self.process.start()
        await self.process.wait_until(self._ready_file.exists, READY_S)

    async def stop(self) -> None:
        await self.process.terminate()
        await self.nodes.stop()

    async def well(self) -> bool:
        """Whether every node has everything."""
        return (await survey(self.nodes.url)).healthy


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Running]:
    running = Running(folder)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def worker(cluster: Running) -> AsyncIterator[muster.Member]:
    async with muster.Cluster(cluster.servers) as client:
        # A member that the backup knows and that lives no more is waited for as long as its session.
        member = muster.Member(client, group_id=GROUP, topics=TOPIC, session_timeout_ms=SESSION_MS)
        await member.start()
        await until(lambda: len(member.partitions) == len(PARTITIONS), "it has all partitions", READY_S)
        try:
            yield member
        finally:
            await member.close("the test is over")


def replace_data(node: RedisNode, copy: Path | None) -> None:
    """What a fresh machine of the same name has: nothing, or a copy."""
    for name in (FILES, "dump.rdb"):
        path = node.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if copy is not None:
        shutil.copytree(copy, node.folder, dirs_exist_ok=True)


async def restored(url: str) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, app, ["restored", "--redis", url])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("by", ["files", "dump"])
@pytest.mark.timeout(300)
async def test_a_majority_of_copies_is_the_cluster_as_it_was(tmp_path: Path, by: str) -> None:
    copies = [tmp_path / "backup" / str(index) for index in range(2)]
    async with cluster(tmp_path / "cluster") as running:
        async with muster.Cluster(running.servers) as client:
            await client.create_topic(TOPIC, len(PARTITIONS))
        async with worker(running) as member:
            for offset in range(1, 60):
                await member.commit(dict.fromkeys(PARTITIONS, offset))
            generation = member.generation
            for index, copy in enumerate(copies):
                await (copy_files if by == "files" else copy_dump)(running.nodes[index], copy)
            for offset in range(60, 80):  # lost: nobody copied it
                await member.commit(dict.fromkeys(PARTITIONS, offset))
        async with worker(running) as member:  # tokens of which the backup knows nothing
            lost_tokens = {partition: member.token(partition) for partition in PARTITIONS}

    nodes = RedisNodes(tmp_path / "cluster", 3)
    for index, node in enumerate(nodes):
        replace_data(node, copies[index] if index < len(copies) else None)
        if by == "dump" and index < len(copies):
            await restore_dump(node, node.folder)
    await nodes.start()
    assert "node 3 has no data" in await restored(nodes.url)
    await nodes.stop()

    async with cluster(tmp_path / "cluster") as running:
        async with muster.Cluster(running.servers) as client:
            assert [topic.name for topic in await client.topics()] == [TOPIC]
            offsets = await client.committed(GROUP)
            assert {at.offset for at in offsets.values()} == {59}
            assert (await client.group_history(GROUP))[-1].generation == generation
        async with worker(running) as member:
            assert member.generation > generation
            for partition, token in lost_tokens.items():
                assert member.token(partition) > token
            await member.commit(dict.fromkeys(PARTITIONS, 60))
        await until(running.well, "the third node is rebuilt", READY_S)
        report = verify(running.nodes.url)
        assert report.clean, report.evidence
        assert report.nodes == 3


async def test_a_minority_is_no_cluster_and_nothing_begins_anew(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    await initialise(nodes.url, SHARDS, "old")
    await restored(nodes.url)  # it was used
    await copy_files(nodes[0], tmp_path / "backup")
    await nodes.stop()
    for index, node in enumerate(nodes):
        replace_data(node, tmp_path / "backup" if index == 0 else None)
    await nodes.start()
    try:
        done = await asyncio.to_thread(CliRunner().invoke, app, ["restored", "--redis", nodes.url])
        assert done.exit_code == 2
        assert "2 of 3 nodes have no data of a cluster" in done.output
        with pytest.raises(InitialiseError, match="start the nodes that have the data"):
            await initialise(nodes.url, SHARDS)
        assert "start the nodes that have the data" in (await survey(nodes.url)).problem
    finally:
        await nodes.stop()


@pytest.mark.timeout(300)
async def test_an_old_copy_of_one_node_in_a_living_cluster_is_repaired(tmp_path: Path) -> None:
    """As after a power cut: it has less than the others. What the others have is not undone."""
    async with cluster(tmp_path / "cluster") as running:
        async with muster.Cluster(running.servers) as client:
            await client.create_topic(TOPIC, len(PARTITIONS))
        async with worker(running) as member:
            await member.commit(dict.fromkeys(PARTITIONS, 1))
            await copy_files(running.nodes[0], tmp_path / "backup")
            for offset in range(2, 30):
                await member.commit(dict.fromkeys(PARTITIONS, offset))
            generation = member.generation
            await running.nodes[0].stop()
            replace_data(running.nodes[0], tmp_path / "backup")
            await running.nodes[0].start()
            await member.commit(dict.fromkeys(PARTITIONS, 30))
            assert member.generation == generation
            await until(running.well, "the node is repaired", READY_S)
        report = verify(running.nodes.url)
        assert report.clean, report.evidence


@pytest.mark.timeout(300)
async def test_old_copies_of_all_nodes_under_living_services_are_not_served(tmp_path: Path) -> None:
    """The owner knows what was acknowledged: it answers that, or stops with an alarm at the next record."""
    async with (
        cluster(tmp_path / "cluster") as running,
        muster.Cluster(running.servers, timeout_ms=3_000) as client,
    ):
        await client.create_topic(TOPIC, len(PARTITIONS))
        async with worker(running) as member:
            await member.commit(dict.fromkeys(PARTITIONS, 1))
        for index, node in enumerate(running.nodes):
            await copy_files(node, tmp_path / "backup" / str(index))
        async with worker(running) as member:
            await member.commit(dict.fromkeys(PARTITIONS, 2))
        # All are down before the first comes back: one that has everything would repair the others.
        await running.nodes.stop()
        for index, node in enumerate(running.nodes):
            replace_data(node, tmp_path / "backup" / str(index))
        await running.nodes.start()

        async def stopped() -> bool:
            try:
                offsets = await client.committed(GROUP)
            except muster.MusterError:
                return "shard_failed" in running.process.log.read_text()
            assert {at.offset for at in offsets.values()} == {2}
            return False

        joining = asyncio.create_task(muster.Member(client, group_id=GROUP, topics=TOPIC).start())
        await until(stopped, "the shard stops with an alarm", READY_S)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert "the log was acknowledged up to" in running.process.log.read_text()
        await running.process.kill()
