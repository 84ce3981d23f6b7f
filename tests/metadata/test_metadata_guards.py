"""Guards that only matter when two instances work at once, or when a node holds what the others never had."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster, records
from kit.waiting import until
from metadata.test_metadata_failures import node_of
from metadata.test_metadata_restarts import claimed
from metadata.test_metadata_rules import batch, behind, ends, one_node
from muster_metadata.cluster.leases import LeaseRow
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.nodes.node import Answer
from muster_metadata.nodes.reply import LOST, NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster


async def without_upkeep(cluster: MetadataCluster) -> None:
    """Nothing is repaired by itself from now on."""
    for instance in cluster.instances:
        await instance.server.metadata._patrol.stop()
        await instance.server.metadata.upkeep.stop()


async def test_a_repair_continues_the_very_entry_that_it_names(tmp_path: Path) -> None:
    """A node whose entry is another one under the same id keeps what it has."""
    async with one_node(tmp_path) as (cluster, writer, node):
        claim = writer.end
        await writer.append(cluster[0], b"w:kept")
        another = LogEnd(claim.position, bytes(32))
        missing = behind(another, 1, b"w:of another log")
        reply = await node.repair(0, 1, writer.nonce, ends(writer.end, another), missing)
        assert (reply.status, reply.end) == (Status.MISMATCH, writer.end)
        assert records(await cluster[0].read(0, writer)) == [b"w:kept"]


async def test_two_instances_that_copy_a_log_at_once_leave_no_gap(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, writer, node):
        entries = behind(writer.end, 1, b"w:1", b"w:2", b"w:3")
        held, begin = (0, 1, writer.nonce), ("", b"")
        assert (await node.stage(*held, begin, entries[:2])).status is Status.OK
        assert (await node.stage(*held, begin, entries[:1])).status is Status.OK  # the other one begins anew
        after = (entries[1].end.position.stream_id, entries[1].hash)
        assert (await node.stage(*held, after, entries[2:])).status is Status.MISMATCH
        assert (await node.copy_end(0)).values[0][0][0] == entries[0].position.stream_id.encode()


async def test_without_a_claim_a_log_is_read_where_what_was_acknowledged_is(tmp_path: Path) -> None:
    """A node may hold an entry that nobody acknowledged, in the place of one that was."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = await claimed(cluster)
        await without_upkeep(cluster)
        async with node_of(cluster, 0) as node:
            stray = batch(writer.end, behind(writer.end, writer.epoch, b"w:stray"))
            assert (await node.append(0, writer.epoch, writer.nonce, stray)).status is Status.OK
        await cluster.nodes[0].kill()
        successor = Writer(0, "c-2")
        assert (await successor.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
        await successor.append(cluster[0], b"w:1")
        await successor.append(cluster[0], b"w:2")
        await cluster.nodes[0].start()
        first, _, third = cluster[0].server.metadata.quorum.nodes
        await until(lambda: first.steps.connected and first.bulk.connected, "node 1 is back")
        await cluster.nodes[2].kill()
        await until(lambda: not third.steps.connected, "node 3 is away, so node 1 is heard")
        assert records(await cluster[0].read(0)) == [b"w:1"]


async def test_a_claim_stands_on_a_majority_of_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that took the Claim first is replaced while another one is brought to it."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        await claimed(cluster, b"w:1")
        await without_upkeep(cluster)
        quorum = cluster[0].server.metadata.quorum
        first, second, third = quorum.nodes
        inspect, prepare, repair = first.inspect, third.prepare, second.repair

        def lost(*_: Any, **__: Any) -> Answer:
            answer: asyncio.Future[NodeReply] = asyncio.get_running_loop().create_future()
            answer.set_result(LOST)
            return answer

        def silent_to_a_repair(*arguments: Any, vote: bool = True, **options: Any) -> Answer:
            if vote:
                return prepare(*arguments, vote=vote, **options)
            monkeypatch.setattr(third, "prepare", prepare)
            return asyncio.get_running_loop().create_future()

        def replaced_meanwhile(*arguments: Any, **options: Any) -> Answer:
            monkeypatch.setattr(first, "inspect", inspect)

            async def answer() -> NodeReply:
                reply = await inspect(*arguments, **options)
                await cluster.nodes[0].kill()
                quorum.configuration += 1
                return reply

            return asyncio.ensure_future(answer())

        def written(*arguments: Any, **options: Any) -> Answer:
            monkeypatch.setattr(first, "inspect", replaced_meanwhile)
            return repair(*arguments, **options)

        for node in (second, third):
            monkeypatch.setattr(node, "append", lost)
        monkeypatch.setattr(third, "prepare", silent_to_a_repair)
        monkeypatch.setattr(second, "repair", written)
        claimant = Writer(0, "c-2")
        assert (await claimant.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
        for index in (1, 2):
            async with cluster.client(index) as client:
                rows: Any = await client.xrevrange("muster:{0}:log", count=1)
                assert rows[0][0] == claimant.end.position.stream_id.encode()


async def test_what_was_cut_is_not_waited_for(tmp_path: Path) -> None:
    """A majority forgot it: the next claim does not stop the shard for what no node has any more."""
    async with one_node(tmp_path) as (cluster, writer, node):
        claim = writer.end
        await writer.append(cluster[0], b"w:1")
        await writer.append(cluster[0], b"w:2")
        await without_upkeep(cluster)
        last = (writer.end.position.stream_id, writer.end.hash)
        assert (await node.acknowledge(0, 1, writer.nonce, *last)).status is Status.OK
        successor = Writer(0, "c-2")
        assert (await node.prepare(0, 2, successor.nonce)).status is Status.OK
        shorter = behind(claim, 2, b"w:later")
        cut = await node.repair(0, 2, successor.nonce, ends(writer.end, claim), shorter)
        assert cut.status is Status.OK
        assert (await Writer(0, "c-3").claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK


async def test_a_name_keeps_the_number_of_its_last_run_when_two_nodes_were_filled_again(
    tmp_path: Path,
) -> None:
    """With a lower number its next process would hold a lease that everybody takes for another's."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        await claimed(cluster, b"w:1")
        tables = cluster[0].server.metadata.tables
        row = LeaseRow("c-1", "s-1", run=4, counter=7, host="127.0.0.1", port=1)
        assert (await tables.renew(row, 1_000))[0] is Status.OK
        for index in (1, 2):
            async with cluster.client(index) as client:
                await client.flushall()
            await until(lambda: cluster.level(0), "it is filled again")
        cluster.nodes[0].pause()
        assert await tables.lease("c-1", 5_000) == row


async def test_a_node_without_data_does_not_say_that_nobody_had_a_name(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await without_upkeep(cluster)
        tables = cluster[0].server.metadata.tables
        async with cluster.client(1) as client:
            await client.flushall()
        cluster.nodes[0].pause()
        with pytest.raises(TimeoutError):
            await tables.lease("c-1", 300)
