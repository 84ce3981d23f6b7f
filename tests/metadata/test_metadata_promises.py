"""Nodes that restart with a promise to a claimant that died, and floors that must not get lost."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import Writer, metadata_cluster, records
from kit.waiting import until, until_equal
from metadata.test_metadata_restarts import claimed, forget, node_of, stopped, voting, written_bytes
from muster_metadata.log import upkeep
from muster_metadata.log.states import Held, Repaired
from muster_metadata.nodes.entries import arguments, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.reply import NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster

DYING = secrets.token_bytes(16)
"""The nonce of a claimant that gets one promise and is never heard of again."""


async def promise_to_the_dying(node: Node, epoch: int) -> None:
    """A node promises an epoch to a claimant that dies then."""
    assert (await node.prepare(0, epoch, DYING, b"tag")).status is Status.OK


async def test_a_node_that_promised_to_a_dead_claimant_votes_again_after_a_restart(tmp_path: Path) -> None:
    """... under the claim that stands: with another node away appends go on, and nobody claims."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        async with node_of(cluster, 0) as node:
            await promise_to_the_dying(node, writer.epoch + 1)
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        await cluster.nodes[0].kill()
        await cluster.nodes[0].start()
        await until_equal(lambda: voting(cluster, 0), 3, "all nodes vote")
        await until(lambda: cluster.level(0), "the node has the log of the claim that stands")
        await cluster.nodes[1].kill()
        assert (await writer.append(cluster[0], b"w:3")).outcome == metadata_pb2.LOG_OUTCOME_OK
        for index in (0, 2):
            async with node_of(cluster, index) as node:
                again = await node.prepare(0, writer.epoch + 1, DYING, b"again")
                assert again.status is Status.PROMISED
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def test_a_node_with_the_claim_of_a_dead_claimant_votes_again_where_nobody_writes(
    tmp_path: Path,
) -> None:
    """No other node has anything after the place from which on it has to be cut."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        await until(lambda: cluster.level(0), "all nodes have the log")
        id_, above = writer.end.position.stream_id, writer.epoch + 1
        dead = chain(writer.end, above, [(b"w:of the dead", DYING)])
        async with node_of(cluster, 0) as node:
            await promise_to_the_dying(node, above)
            batch: list[bytes | str] = [id_, writer.end.hash, "", *arguments(dead)]
            assert (await node.append(0, above, DYING, batch)).status is Status.OK
        await cluster.nodes[0].kill()
        await cluster.nodes[0].start()
        await until_equal(lambda: voting(cluster, 0), 3, "all nodes vote")
        await until(lambda: cluster.level(0), "the node has the log of the claim that stands")
        await cluster.nodes[1].kill()
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def test_a_node_that_promised_to_a_dead_claimant_takes_part_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody claims, nothing is written: with another node away then, appends go on all the same."""
    monkeypatch.setattr(upkeep, "_CLAIMANT_S", 0.5)
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = await claimed(cluster, b"w:1")
        async with node_of(cluster, 0) as node:
            await promise_to_the_dying(node, writer.epoch + 1)
        await until(lambda: cluster.level(0), "the node has the promise of the claim that stands")
        await cluster.nodes[1].kill()
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        for index in (0, 2):
            async with node_of(cluster, index) as node:
                again = await node.prepare(0, writer.epoch + 1, DYING, b"again")
                assert again.status is Status.PROMISED
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def test_a_claimant_that_a_majority_may_have_promised_to_is_left_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_CLAIMANT_S", 0.2)
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = await claimed(cluster, b"w:1")
        for index in (0, 1):
            async with node_of(cluster, index) as node:
                await promise_to_the_dying(node, writer.epoch + 1)
        metadata = cluster[0].server.metadata
        held = Held(0, writer.epoch, writer.nonce)
        repairer = metadata.upkeep._repairer
        result = await repairer.repair(metadata.quorum.nodes[0], held, waited=True)
        assert result is Repaired.LATER
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_FENCED


async def test_a_promise_is_lowered_up_to_the_floor(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        await stopped(cluster)
        held, floor = (0, writer.epoch, writer.nonce), 20
        async with node_of(cluster, 0) as node:
            await promise_to_the_dying(node, writer.epoch + 1)
        await cluster.nodes[0].kill()
        await cluster.nodes[0].start()
        async with node_of(cluster, 0) as node:
            assert (await node.lower(*held, writer.epoch)).status is Status.FENCED
            assert (await node.lower(*held, floor)).status is Status.OK
            state = await node.inspect(0, vote=False)
            assert (state.values[3], state.values[4]) == (b"%d" % writer.epoch, writer.nonce)
            assert (await node.inspect(0)).status is Status.RESTARTED


async def test_a_claim_that_does_not_hear_of_a_promise_takes_its_epoch_and_brings_the_node_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A majority answers before a node that restarted says what it promised: nobody waits for that one."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        metadata = cluster[0].server.metadata
        await metadata._patrol.stop()
        await metadata.upkeep.stop()
        async with node_of(cluster, 0) as node:
            await promise_to_the_dying(node, writer.epoch + 1)
        await cluster.nodes[0].kill()
        await cluster.nodes[0].start()
        slow = metadata.quorum.nodes[0]
        await until(lambda: slow.steps.connected, "the instance is connected again")
        inspect = slow.inspect

        def late(*arguments: Any, **options: Any) -> Answer:
            async def answer() -> NodeReply:
                await asyncio.sleep(0.2)
                return await inspect(*arguments, **options)

            return asyncio.ensure_future(answer())

        monkeypatch.setattr(slow, "inspect", late)
        successor = Writer(0, "c-2")
        assert (await successor.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert successor.epoch == writer.epoch + 1
        instance = await cluster.add_instance()
        await until_equal(lambda: voting(cluster, 0), 3, "all nodes vote")
        await cluster.nodes[1].kill()
        assert (await successor.append(instance, b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert records(await instance.read(0, successor)) == [b"w:1", b"w:2"]


async def test_a_log_that_nobody_writes_says_in_which_run_its_node_votes(tmp_path: Path) -> None:
    """An older version noted no run: what a node forgot together with the first note was not known."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        for index in range(3):
            async with cluster.client(index) as client:
                await client.hdel("muster:{0}:promise", "run")

        async def noted() -> int:
            runs = []
            for index in range(3):
                async with cluster.client(index) as client:
                    runs.append(await client.hget("muster:{0}:promise", "run"))
            return sum(bool(run) for run in runs)

        await until_equal(noted, 3, "each node has its run noted")
        await stopped(cluster)
        before = written_bytes(cluster.nodes[2])
        async with node_of(cluster, 2) as node:
            await promise_to_the_dying(node, 1)
        await forget(cluster.nodes[2], before)
        async with node_of(cluster, 2) as node:
            assert (await node.prepare(0, 1, secrets.token_bytes(16), b"tag")).status is Status.RESTARTED


async def test_a_node_that_is_rebuilt_has_the_floor_of_the_others(tmp_path: Path) -> None:
    """What another node forgot before the floor was raised gets no promise of it either."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        before = written_bytes(cluster.nodes[2])
        async with node_of(cluster, 2) as node:
            await promise_to_the_dying(node, writer.epoch + 1)
        await forget(cluster.nodes[2], before)
        await until_equal(lambda: voting(cluster, 0), 3, "the node that forgot votes again")
        async with cluster.client(1) as client:
            await client.flushall()
        await until_equal(lambda: voting(cluster, 0), 3, "the node that lost its data votes again")
        async with node_of(cluster, 1) as node:
            again = await node.prepare(0, writer.epoch + 1, DYING, b"again")
            assert again.status is Status.PROMISED
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged
