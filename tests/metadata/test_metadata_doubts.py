"""A node whose append-only file was switched off while it ran comes back with the file of that moment."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster, records
from kit.waiting import until, until_equal
from muster_metadata.cluster.refill import refill_of
from muster_metadata.nodes.doubts import MAX_RUNS_PER_NODE, Doubts, copy_doubts
from muster_metadata.nodes.node import Answer, Node, Vetted
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster

KEY = "muster:doubts"


async def level_writer(cluster: MetadataCluster) -> Writer:
    """A writer whose log is level at all nodes."""
    writer = Writer(0)
    assert (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
    await writer.append(cluster[0], b"w:1")
    await until(lambda: cluster.level(0), "level")
    return writer


async def without_file(cluster: MetadataCluster, index: int) -> None:
    """Switches the append-only file of a node off, and lets each instance look at the nodes."""
    async with cluster.client(index) as client:
        await client.config_set("appendonly", "no")
    for instance in cluster.instances:
        if not instance.stopped:
            await instance.server.metadata._patrol._round()


async def noted(cluster: MetadataCluster, index: int) -> dict[bytes, bytes]:
    async with cluster.client(index) as client:
        found: Any = await client.hgetall(KEY)
    return dict(found)


async def run_of(cluster: MetadataCluster, index: int) -> bytes:
    async with cluster.client(index) as client:
        return str((await client.info("server"))["run_id"]).encode()


async def noted_at(cluster: MetadataCluster, run: bytes, indexes: Iterable[int]) -> bool:
    return all([run in await noted(cluster, index) for index in indexes])


def unreached(*_: Any, **__: Any) -> Answer:
    answer: Answer = asyncio.get_running_loop().create_future()
    answer.set_result(NodeReply(Status.DOWN))
    return answer


@pytest.mark.parametrize("later", [False, True])
async def test_an_acknowledged_record_outlives_a_node_that_comes_back_with_its_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Nodes 2 and 3 acknowledged it, node 3 had no file any more, and then only nodes 1 and 3 are heard.

    With `later` an instance hears of it that never saw node 3 without its file.
    """
    async with metadata_cluster(tmp_path, 3, instances=2, claim_timeout_ms=4_000) as cluster:
        writer = await level_writer(cluster)
        run = await run_of(cluster, 2)
        await without_file(cluster, 2)
        with monkeypatch.context() as patched:
            patched.setattr(cluster[0].server.metadata.quorum.nodes[0], "append", unreached)
            assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
            assert [count for count, _ in await cluster.ends(0)] == [3, 4, 4]
            await until(lambda: noted_at(cluster, run, (0, 1)), "the others know")
            await cluster[0].stop()
        await cluster.nodes[2].kill()
        if later:
            await cluster[1].stop()
            await cluster.add_instance()
        instance = cluster.instances[-1]
        quorum = instance.server.metadata.quorum
        cluster.nodes[1].pause()
        await cluster.nodes[2].start()
        await until_equal(
            lambda: [node.steps.connected for node in quorum.nodes], [True, False, True], "1 and 3 answer"
        )
        successor = Writer(0, "c-2")
        assert (await successor.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        await until(
            lambda: quorum.nodes[2].vetted == Vetted(quorum.nodes[2].steps.run_id, (run.decode(),)), ""
        )
        assert (await quorum.nodes[2].inspect(0)).status is Status.RESTARTED
        cluster.nodes[1].resume()

        async def owned() -> bool:
            successor.nonce = Writer(0).nonce
            return (await successor.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(owned, "the successor has the log")
        assert records(await instance.read(0, successor)) == [b"w:1", b"w:2"]
        await until_equal(lambda: votes(quorum), [Status.OK] * 3, "node 3 votes again when it has everything")


async def votes(quorum: Quorum) -> list[Status]:
    return [(await node.inspect(0)).status for node in quorum.nodes]


def is_connected(node: Node) -> bool:
    return node.steps.connected and node.tables.connected


@asynccontextmanager
async def nodes_of(cluster: MetadataCluster) -> AsyncIterator[Quorum]:
    """Connections of their own, after all instances have ended."""
    metadata = cluster[0].server.metadata
    for instance in cluster.instances:
        await instance.stop()
    quorum = Quorum(
        [Node(node.index, node.url, 500) for node in metadata.quorum.nodes], metadata.quorum.step_timeout_ms
    )
    for node in quorum.nodes:
        node.belongs_to(metadata.cluster_id, 4, 3)
    quorum.start()
    try:
        for node in quorum.nodes:
            await until(partial(is_connected, node), "connected")
        yield quorum
    finally:
        await quorum.stop()


async def test_a_node_that_syncs_each_write_votes_when_the_others_were_asked_and_not_before(
    tmp_path: Path,
) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await level_writer(cluster)
        await cluster[0].stop()
        await cluster.nodes[2].kill()
        await cluster.nodes[2].start()
        async with nodes_of(cluster) as quorum:
            doubts = Doubts(quorum)
            assert await votes(quorum) == [Status.OK, Status.OK, Status.LOADING]
            await doubts.look()
            assert await votes(quorum) == [Status.OK] * 3


async def test_a_node_is_filled_with_the_doubts_of_the_others(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await level_writer(cluster)
        async with nodes_of(cluster) as quorum:
            async with cluster.client(0) as client:
                await client.flushall()
            async with cluster.client(1) as client:
                await client.hset(KEY, "somerun", "3/1000")
            assert await refill_of(quorum)(quorum.nodes[0])
            assert await noted(cluster, 0) == {b"somerun": b"3/1000"}


async def test_a_node_that_lost_its_data_answers_for_nobody_before_it_knows_what_the_others_do(
    tmp_path: Path,
) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await level_writer(cluster)
        run = await run_of(cluster, 2)
        await without_file(cluster, 2)
        await until(lambda: noted_at(cluster, run, (0, 1, 2)), "all know")
        quorum = cluster[0].server.metadata.quorum
        doubts = cluster[0].server.metadata._doubts
        async with cluster.client(0) as client:
            await client.flushall()
        # Only the empty node and node 3 answer: that says nothing about node 3.
        cluster.nodes[1].pause()
        await until(lambda: not quorum.nodes[1].steps.connected, "node 2 is away")
        quorum.nodes[2].vetted = Vetted()
        await doubts.look()
        assert quorum.nodes[2].vetted == Vetted()
        assert not await copy_doubts(quorum, quorum.nodes[0])
        cluster.nodes[1].resume()
        await until(lambda: cluster.level(0), "node 1 is filled")
        assert run in await noted(cluster, 0)


async def test_of_each_node_the_latest_doubts_are_kept_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        many: dict[Any, Any] = {
            f"run{number:03}": f"2/{1_000 + number}" for number in range(MAX_RUNS_PER_NODE + 1)
        }
        async with cluster.client(0) as client:
            await client.hset(KEY, mapping=many)
        async with cluster.client(1) as client:
            await client.hset(KEY, mapping={"of another node": "9", "run": "none", "x" * 65: "1/1"})
        async with cluster.client(2) as client:
            await client.set(KEY, "something else")
        await cluster[0].server.metadata._doubts.look()
        kept = {run.encode(): value.encode() for run, value in list(many.items())[1:]}
        assert await noted(cluster, 0) == kept
        assert kept.items() <= (await noted(cluster, 1)).items()
        node = cluster[0].server.metadata.quorum.nodes[1]
        assert node.vetted is not None
        assert len(node.vetted.doubted) == MAX_RUNS_PER_NODE
